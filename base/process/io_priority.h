// Disk transfers that give way to those of everybody else.
#pragma once

namespace forebay {

// While it lives, what the calling thread reads and writes itself, and what threads do that it
// starts, is of the lowest I/O priority, where the disk's scheduler knows priorities. Where the
// system does not let it, nothing changes. For one thread.
class LowIoPriority {
 public:
  LowIoPriority();
  ~LowIoPriority();
  LowIoPriority(const LowIoPriority&) = delete;
  LowIoPriority& operator=(const LowIoPriority&) = delete;

 private:
  int before_ = -1;  // -1: it was not changed
};

}  // namespace forebay
