// Descriptors that a forked child does not keep. Linux has close-on-exec, and no close-on-fork: a
// child that goes on as a copy of its parent, as workers of a DataLoader do, would hold the
// parent's connections open, and nobody would notice the parent's death before the child's.
#pragma once

#include <vector>

namespace forebay {

// While it lives, a child that fork() makes of this process has /dev/null at these descriptors. So
// their numbers are taken there, and none means another file than here. Thread-safe.
class NotInherited {
 public:
  NotInherited() = default;
  ~NotInherited() { Forget(); }
  NotInherited(const NotInherited&) = delete;
  NotInherited& operator=(const NotInherited&) = delete;

  void Add(int fd);
  // Before they are closed, as their numbers may be others' then.
  void Forget();

 private:
  std::vector<int> fds_;
};

}  // namespace forebay
