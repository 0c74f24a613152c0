// Numbers as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace forebay {

// "1.05 GB", "786 KB", "12 B": powers of 1000, three significant digits.
std::string FormatBytes(int64_t bytes);
// "1.00 GiB": powers of 1024, for memory budgets as users state them.
std::string FormatBinaryBytes(int64_t bytes);
// The same rounded down, for a budget beside a need that is rounded up: where the need is more, it
// reads so.
std::string FormatBinaryBytesDown(int64_t bytes);
// "1M", "256K", "4096": as flags of sizes take it, exactly.
std::string SizeText(int64_t bytes);
// The least whole number of MiB that holds `bytes`, for advice such as "--ram=256MiB".
inline constexpr int64_t MebibytesUp(int64_t bytes) {
  return (bytes + (int64_t{1} << 20) - 1) >> 20;
}
// "134.5 M", "13.02 G", "812".
std::string FormatCount(int64_t count);
// "4.2 s", "3m12s", "9h39m".
std::string FormatDuration(double seconds);

// "1GiB", "64M", "512Ki", "1.5G", "4096": K, M, G and T are powers of 1024 with or without "i" and
// "B" (as fio reads them). UsageError (without the option's name) when it is no size.
absl::StatusOr<int64_t> ParseSize(std::string_view text);

// "3", "3s", "500ms", "2m", "1h": seconds. UsageError (without the option's name) when it is none.
absl::StatusOr<double> ParseDuration(std::string_view text);

// A path or other word as a shell reads it: in quotes where it needs them.
std::string ShellQuoted(const std::string& word);

// The candidate closest to `name` by edit distance, or "" when none is close enough to be meant.
std::string NearestName(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace forebay
