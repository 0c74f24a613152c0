// Code that runs where the system starts no thread any more.
#pragma once

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <functional>
#include <system_error>
#include <thread>

#include "forebay/base/check.h"

namespace forebay {

// Makes the calling thread one of a user who may have limits; of this thread alone, so that the
// test goes on as before. Files stay accessible.
inline void BecomeLimited() {
  constexpr int kNobody = 65534;
  if (::geteuid() != 0) return;
  // No limit is one for root, nor for who may exceed limits.
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct capabilities[_LINUX_CAPABILITY_U32S_3] = {};
  FOREBAY_CHECK(::syscall(SYS_capget, &header, capabilities) == 0);
  for (const int capability : {CAP_SYS_RESOURCE, CAP_SYS_ADMIN}) {
    capabilities[0].effective &= ~(1U << capability);
  }
  FOREBAY_CHECK(::syscall(SYS_setresuid, kNobody, 0, 0) == 0);
  FOREBAY_CHECK(::syscall(SYS_capset, &header, capabilities) == 0);
}

inline bool AThreadCanBeHad() {
  try {
    std::thread([] {}).join();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

// Why a test of that may have to be skipped.
inline constexpr char kThreadsCannotBeForbidden[] =
    "threads cannot be forbidden here (a user namespace?)";

// Calls `run` in a thread whose user has as many threads as he may. False: they cannot be forbidden
// here, and nothing was called.
inline bool RunWithoutThreads(const std::function<void()>& run) {
  rlimit before;
  FOREBAY_CHECK(::getrlimit(RLIMIT_NPROC, &before) == 0);
  bool is_forbidden = false;
  std::thread confined([&] {
    BecomeLimited();
    const rlimit none = {0, before.rlim_max};
    FOREBAY_CHECK(::setrlimit(RLIMIT_NPROC, &none) == 0);
    is_forbidden = !AThreadCanBeHad();
    if (is_forbidden) run();
  });
  confined.join();
  FOREBAY_CHECK(::setrlimit(RLIMIT_NPROC, &before) == 0);
  return is_forbidden;
}

}  // namespace forebay
