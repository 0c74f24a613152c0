#include "forebay/collective/sockets/not_inherited.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "forebay/base/check.h"

namespace forebay {
namespace {

// All of this process: what runs in a child is told nothing else.
struct AllFds {
  std::mutex mutex;
  std::set<int> fds;
};

AllFds& All() {
  static auto* const all = new AllFds;
  return *all;
}

// No thread changes the list while another forks.
void BeforeFork() {
  All().mutex.lock();
}

void InParent() {
  All().mutex.unlock();
}

// Calls only what a child of several threads may.
void InChild() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : All().fds) {
    if (null < 0 || ::dup3(null, fd, O_CLOEXEC) < 0) ::close(fd);
  }
  if (null >= 0) ::close(null);
  All().mutex.unlock();
}

}  // namespace

void NotInherited::Add(int fd) {
  static const int registered = ::pthread_atfork(&BeforeFork, &InParent, &InChild);
  FOREBAY_CHECK(registered == 0);
  const std::lock_guard<std::mutex> lock(All().mutex);
  All().fds.insert(fd);
  fds_.push_back(fd);
}

void NotInherited::Forget() {
  const std::lock_guard<std::mutex> lock(All().mutex);
  for (const int fd : fds_) All().fds.erase(fd);
  fds_.clear();
}

}  // namespace forebay
