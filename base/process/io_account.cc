#include "forebay/base/process/io_account.h"

#include <charconv>
#include <string>

#include "forebay/base/file.h"

namespace forebay {
namespace {

constexpr int64_t kMaxAccountBytes = 4096;

std::optional<int64_t> CounterAfter(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  int64_t value = 0;
  const char* const begin = text.data() + at + key.size();
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<IoAccount> ReadIoAccount(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path, kMaxAccountBytes);
  return text.ok() ? ParseIoAccount(*text) : std::nullopt;
}

}  // namespace

std::optional<IoAccount> ParseIoAccount(std::string_view text) {
  const std::optional<int64_t> read = CounterAfter(text, "\nread_bytes: ");
  const std::optional<int64_t> written = CounterAfter(text, "\nwrite_bytes: ");
  if (!read.has_value() || !written.has_value()) return std::nullopt;
  return IoAccount{*read, *written};
}

std::optional<IoAccount> IoAccountOfProcess() {
  return ReadIoAccount("/proc/self/io");
}
std::optional<IoAccount> IoAccountOfThread() {
  return ReadIoAccount("/proc/thread-self/io");
}

}  // namespace forebay
