// The file that a benchmark reads and writes on one disk. It has no name (O_TMPFILE, or one that is
// removed at once where the file system has no such files): nothing that exists is overwritten, and
// nothing is left behind, however the program ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/measure/load/block_pattern.h"

namespace forebay {

// What to do where a file of --size does not fit.
inline constexpr std::string_view kTakeASmallerSize = "Take a smaller --size or another folder";
// OK when a file of `size_bytes` fits into the `free_bytes` of `directory`.
// DoesNotFitError, which ends in `advice`.
absl::Status CheckRoom(const std::string& directory, int64_t size_bytes, int64_t free_bytes,
                       std::string_view advice = kTakeASmallerSize);

// Thread-compatible; the generations of different blocks may be used by different threads.
class BenchFile {
 public:
  // In `directory`, with its space reserved. `track`: keep the generation of every block, for
  // verification (4 bytes for each 4 KiB). BadInputError when there is no such folder,
  // DoesNotFitError, StorageError.
  static absl::StatusOr<BenchFile> Create(const std::string& directory, int64_t size_bytes,
                                          bool direct, bool track);

  const std::string& directory() const { return directory_; }
  int64_t size_bytes() const { return size_bytes_; }
  bool direct() const { return why_not_direct_.empty(); }
  const std::string& why_not_direct() const { return why_not_direct_; }
  dev_t device() const { return device_; }
  const FileId& id() const { return id_; }
  // Opens under /proc for other processes while this one lives.
  std::string PathForOthers() const;

  // Adds it to `engine`, which gets a descriptor of its own; the number for IoOp::file.
  absl::StatusOr<int> AddTo(Engine& engine) const;

  // What the blocks of a range should be written as next, and have been written as last. A range
  // is one generation: that of its first block.
  PatternPlace NextPlace(int64_t offset_bytes, int64_t size_bytes);
  PatternPlace PlaceAt(int64_t offset_bytes) const;

 private:
  std::string directory_;
  std::string path_;  // for messages
  std::string why_not_direct_;
  UniqueFd fd_;
  int64_t size_bytes_ = 0;
  dev_t device_ = 0;
  FileId id_ = {};
  std::vector<uint32_t> generations_;  // of 4 KiB blocks; empty: not tracked, all are 1
};

// Goes through a file once, from its start, with several operations in flight.
struct FilePass {
  IoKind kind = IoKind::kRead;
  int64_t block_bytes = int64_t{1} << 20;
  std::span<std::byte> memory;  // cut into blocks, one for each operation in flight
  // Called before a write, or after a read, of the range at `offset_bytes`.
  std::function<void(int64_t offset_bytes, std::span<std::byte> buffer)> use;
  std::function<bool()> stop;                     // asked often
  std::function<void(double fraction)> progress;  // may be empty
};
// The last block is shorter where the size is no multiple. Errors of the engine; InterruptedError.
absl::Status RunFilePass(Engine& engine, const BenchFile& file, const FilePass& pass);

}  // namespace forebay
