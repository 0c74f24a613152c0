// Threads that may not be had: the system has a limit for them.
#pragma once

#include <functional>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"

namespace forebay {

// A thread that calls `run`. `purpose`: what it is for, in the message. EnvironmentError where the
// user or the container has as many threads as it may.
absl::StatusOr<std::thread> StartThread(std::string_view purpose, std::function<void()> run);

}  // namespace forebay
