// oneDNN runs on OpenMP in the distributions' packages and would start its own threads. Our pool
// calls it from every thread instead, so each calling thread's OpenMP team must be that thread
// alone.
#pragma once

namespace forebay::cpu {

// For the life of a pool thread.
void ConfineOpenMpToThisThread();

// For a scope on a thread that belongs to someone else: the number of threads it had is restored.
class OneThreadOpenMp {
 public:
  OneThreadOpenMp();
  ~OneThreadOpenMp();
  OneThreadOpenMp(const OneThreadOpenMp&) = delete;
  OneThreadOpenMp& operator=(const OneThreadOpenMp&) = delete;

 private:
  int previous_ = 1;
};

}  // namespace forebay::cpu
