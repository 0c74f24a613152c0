// An engine under which the long files of a folder are folded into one smaller file: each of them
// gets a part of it, and what lies behind the end of the part is read from it and written to it
// again. So a store of hundreds of gigabytes can be exercised, transfer for transfer, on a disk
// that has room for a few. Bytes are not kept, as ranges share places. For measurements alone
// (swap-bench step).
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/engine.h"

namespace forebay {

struct FoldOptions {
  std::string folder;      // whose files; "": all
  int file = -1;           // of the inner engine: what the others are folded into
  int64_t size_bytes = 0;  // of that file
  // Files that are left as they are, with their own bytes: short ones, and those of this name.
  int64_t least_bytes = 0;
  std::string unfolded_name;
  int64_t together_bytes = 0;  // of all files that will be folded
};

// How much of the common file a file of `size_bytes` gets: as large a share of it as it is of all,
// in whole blocks of kIoAlignBytes, and no more than it is long.
int64_t FoldedBytes(const FoldOptions& options, int64_t size_bytes);

// Where a range lies in a part of `folded_bytes`. Requires: length_bytes <= folded_bytes.
int64_t FoldedOffset(int64_t offset_bytes, int64_t length_bytes, int64_t folded_bytes);

// Thread-safe. Submit changes file and offset of the op to where the transfer goes, which messages
// then name; who uses an op again sets them anew.
class FoldingEngine : public Engine {
 public:
  // `inner` must outlive it. `folds`: one for each folder.
  FoldingEngine(Engine* inner, std::vector<FoldOptions> folds)
      : inner_(inner), folds_(std::move(folds)), used_bytes_(folds_.size()) {}

  // Requires: `path` is in one of the folders, and the parts of all files of a folder fit its
  // common one, as they do when `together_bytes` is right.
  int AddFile(UniqueFd fd, std::string path) override;
  void RemoveFile(int file) override;
  absl::Status RegisterBuffers(std::span<std::byte> memory) override {
    return inner_->RegisterBuffers(memory);
  }
  void UnregisterBuffers(std::span<std::byte> memory) override {
    inner_->UnregisterBuffers(memory);
  }
  std::string RegistrationNote() const override { return inner_->RegistrationNote(); }
  RegistrationGap registration_gap() const override { return inner_->registration_gap(); }
  void Submit(IoOp& op) override;
  absl::Status Wait(IoOp& op) override { return inner_->Wait(op); }
  void WaitAny(std::span<IoOp* const> ops) override { inner_->WaitAny(ops); }
  void Cancel(IoOp& op) override { inner_->Cancel(op); }
  absl::Status Flush(int file) override;
  IoStats stats() const override { return inner_->stats(); }
  std::string name() const override { return inner_->name(); }
  bool direct() const override { return inner_->direct(); }

 private:
  struct File {
    int inner_file = -1;
    UniqueFd fd;  // of a folded file: whoever added it may hold a lock on it
    int64_t first_byte = 0;
    int64_t folded_bytes = 0;  // 0: the file is not folded
  };
  // Where a file is now; its numbers do not change.
  struct Place {
    int inner_file = -1;
    int64_t first_byte = 0;
    int64_t folded_bytes = 0;
  };
  Place PlaceOf(int file) const;
  size_t FoldOf(const std::string& path) const;

  Engine* const inner_;
  const std::vector<FoldOptions> folds_;
  mutable std::mutex mutex_;
  std::vector<File> files_;          // mutex; by number
  std::vector<int64_t> used_bytes_;  // mutex; of the common files, by fold
};

}  // namespace forebay
