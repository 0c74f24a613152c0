// The storage traffic of this process, as the kernel has counted it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace forebay {

// /proc/PID/io: bytes that really went to or came from storage, page cache hits left out.
struct IoAccount {
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
};
std::optional<IoAccount> ParseIoAccount(std::string_view text);
std::optional<IoAccount> IoAccountOfProcess();
// The account of the calling thread alone. Work that io_uring hands to its workers counts as
// theirs.
std::optional<IoAccount> IoAccountOfThread();

}  // namespace forebay
