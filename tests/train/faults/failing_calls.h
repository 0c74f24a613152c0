// The system calls that this program makes to files of one folder, one of which can be made to
// fail. The linker puts these functions in the place of libc's (-Wl,--wrap in CMakeLists.txt), so
// that small files, which have no engine, need no seam in the program for its tests.
//
// Not for: bulk transfers, which go through an engine (aio/faults/fault_script.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace forebay {

// A call by what it does.
struct FileCall {
  std::string function;  // "rename"
  std::string file;      // below the folder; empty: the folder itself. Of a rename, the new name.
  int64_t nth = 0;       // of the calls with this function and file, from 0

  auto operator<=>(const FileCall&) const = default;
};

// In the place of an error number: the process is killed before the call.
inline constexpr int kKillsTheProcess = -1;

// From its beginning to its end the calls are watched. One at a time. Thread-safe.
class FailingCalls {
 public:
  // Lets `fail` fail with `error_number`, once. `exchanges`: whether the file system can exchange
  // two folders.
  FailingCalls(std::string folder, std::optional<FileCall> fail = {}, int error_number = 0,
               bool exchanges = true);
  ~FailingCalls();
  FailingCalls(const FailingCalls&) = delete;
  FailingCalls& operator=(const FailingCalls&) = delete;

  // All so far, in their order. Transfers and flushes of the store's tiles are left out.
  std::vector<FileCall> calls() const;
};

}  // namespace forebay
