// Space of a file system that is kept for what a run is going to write there, so that no other
// program takes it meanwhile. It is held by a file without a name: whatever ends the process gives
// it back.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/base/file.h"

namespace forebay {

// Owned by one thread.
class HeldSpace {
 public:
  HeldSpace() = default;  // of nothing
  // In the file system of `folder`. DoesNotFitError where less than `bytes` is free; StorageError.
  // Where space cannot be promised, none is held, and that is no error; nor is it that no more is
  // held than a file may have ('ulimit -f').
  static absl::StatusOr<HeldSpace> Take(const std::string& folder, int64_t bytes);

  // Gives space back.
  void ShrinkTo(int64_t bytes);
  // Takes more, where it can be had.
  void GrowTo(int64_t bytes);
  int64_t bytes() const { return bytes_; }

 private:
  UniqueFd fd_;
  int64_t bytes_ = 0;
};

}  // namespace forebay
