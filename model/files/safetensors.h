// Reads and writes safetensors files and Hugging Face checkpoint folders. Input is untrusted: sizes
// are checked before they are used, names before they become paths, and files are read with pread,
// never mapped. Format and what readers accept: docs/formats.md.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/base/file.h"
#include "forebay/base/tensor_spec.h"

namespace forebay {

// The reference implementation's limit; readers refuse longer headers.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;  // as in the file: "BF16", "I64", ...
  Shape shape;
  int64_t begin_bytes = 0;  // relative to the data section
  int64_t end_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in file order (ascending offsets)
  std::map<std::string, std::string> metadata;
  int64_t data_begin_bytes = 0;  // in the file
};

// The length of the JSON header, from the first 8 bytes of a file of `file_size_bytes`: at most 100
// MB and within the file. BadInputError.
absl::StatusOr<int64_t> SafetensorsHeaderBytes(std::span<const std::byte> prefix,
                                               int64_t file_size_bytes, std::string_view source);

// Parses the 8-byte length and the JSON header of a file of `file_size_bytes`; `prefix` holds at
// least the header. Strict profile: the reference's checks, and no duplicate keys, control
// characters, empty names or leading blanks. BadInputError that names `source` and the tensor.
// Fuzzed.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> prefix,
                                                         int64_t file_size_bytes,
                                                         std::string_view source);

// What model.safetensors.index.json says: the file of every tensor. Files are bare names in the
// same folder (no separators, no
// ".."), so an index cannot point elsewhere; duplicate keys are errors. `metadata.total_size` is
// not looked at: published files get it wrong, and the headers say the truth. BadInputError.
// Fuzzed.
absl::StatusOr<std::map<std::string, std::string, std::less<>>> ParseSafetensorsIndex(
    std::string_view text, std::string_view source);

// A checkpoint folder: model.safetensors, or model.safetensors.index.json with its shards (the
// first where both are there, as transformers does). Files that are symbolic links are followed:
// Hugging Face's cache consists of them, and whoever makes the folder may read what it links to.
// Thread-safe once open.
class CheckpointReader {
 public:
  // Opens every file and reads the headers. BadInputError for what is missing, damaged or
  // inconsistent.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& model_directory);
  ~CheckpointReader();
  struct Tensor {
    SafetensorsEntry entry;
    int shard = 0;
  };
  const std::map<std::string, Tensor, std::less<>>& tensors() const;
  // nullptr when absent.
  const Tensor* Find(std::string_view name) const;
  int num_shards() const;
  const std::string& ShardPath(int shard) const;
  // Another descriptor of the same file, also where the path names another one by now.
  // StorageError.
  absl::StatusOr<UniqueFd> OpenShardAgain(int shard) const;
  // Reads elements of a tensor from `first_elem` on, as many as `out` takes (aligned to `dtype`),
  // converted from F32, BF16 or F16: exactly, or rounded to nearest even. BadInputError for other
  // dtypes, StorageError, CorruptError when the file was changed since Open. Allocates nothing.
  // Requires: the elements are within the tensor.
  absl::Status ReadAs(DType dtype, const Tensor& tensor, int64_t first_elem,
                      std::span<std::byte> out) const;
  absl::Status ReadF32(const Tensor& tensor, int64_t first_elem, std::span<float> out) const {
    return ReadAs(DType::kF32, tensor, first_elem, std::as_writable_bytes(out));
  }
  // The same of elements that somebody else has read, as they are stored.
  absl::Status Convert(const Tensor& tensor, std::span<const std::byte> stored, DType dtype,
                       std::span<std::byte> out) const;
  // CorruptError when the tensor's file was changed since Open.
  absl::Status CheckUnchanged(const Tensor& tensor) const;
  // Where a tensor lies in its file.
  struct Place {
    int64_t begin_bytes = 0;
    int64_t end_bytes = 0;
    int64_t file_bytes = 0;  // the length of the file
  };
  Place PlaceOf(const Tensor& tensor) const;
  // Tells the kernel that the file pages of a tensor will not be read again soon, so that streaming
  // a model larger than memory does not push out everything else.
  void DropCachedPages(const Tensor& tensor) const;

 private:
  struct Impl;
  explicit CheckpointReader(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Writes one safetensors file tensor by tensor, in the order given. It is made beside `path` under
// a temporary name, flushed, and put in its place by Finish (replacing what was there); abandoned
// when destroyed before. The data begins at a multiple of 4096, so that it can be read with direct
// I/O. Owned by one thread.
class SafetensorsWriter {
 public:
  struct Planned {
    std::string name;
    DType dtype = DType::kBF16;
    Shape shape;
  };
  // Lays out and reserves the whole file. `metadata` gets "format": "pt" unless it says otherwise,
  // which transformers asks for. DoesNotFitError when the disk is too small, BadInputError when the
  // header gets too long. Requires: no dtype is followed by a wider one (every tensor is then
  // aligned to its elements), names are unique.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, const std::vector<Planned>& tensors,
      const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  // Appends bytes of the current tensor; tensors follow one another in planned order.
  absl::Status Append(std::span<const std::byte> bytes);
  // Requires: every planned byte was appended. Returns the digest of the whole file, as xxh128sum
  // prints it.
  absl::StatusOr<std::string> Finish();

 private:
  struct Impl;
  explicit SafetensorsWriter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Checks a checkpoint against an inventory: every tensor there (under its name or an alternative),
// right shape and dtype, none unexpected. Returns, per inventory tensor, the checkpoint's. All
// problems are reported at once (the first 20 by name).
struct DecoderConfig;
absl::StatusOr<std::vector<const CheckpointReader::Tensor*>> MatchCheckpoint(
    const CheckpointReader& reader, const DecoderConfig& config, const Inventory& inventory);

}  // namespace forebay
