// Why the kernel refused, in words, with the fix: what stands between a machine and its fastest
// engine is nearly always a setting.
#pragma once

#include <cstddef>
#include <string>

namespace forebay {

// `error_number`: of io_uring_setup.
std::string WhyNoIoUring(int error_number);
// `error_number`: of io_setup.
std::string WhyNoLibaio(int error_number);
// `error_number`: of registering `size_bytes` of buffers with io_uring.
std::string WhyNotRegistered(int error_number, size_t size_bytes);

}  // namespace forebay
