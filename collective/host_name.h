// The name that this machine has, for messages.
#pragma once

#include <unistd.h>

#include <string>

namespace forebay {

inline std::string HostName() {
  char name[256] = "an unnamed host";
  if (::gethostname(name, sizeof name - 1) != 0) return "an unnamed host";
  return name;
}

}  // namespace forebay
