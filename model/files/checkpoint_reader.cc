// Checkpoint folders: their files, which tensors they hold, and reading elements of them.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <optional>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/lfs_pointer.h"
#include "forebay/model/adapter_folder.h"
#include "forebay/model/files/convert_floats.h"
#include "forebay/model/files/json_reader.h"
#include "forebay/model/files/safetensors.h"

namespace forebay {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 100'000'000;
// Staging of a conversion, on the stack: large enough that a system call costs little, small enough
// for the second cache.
constexpr size_t kChunkBytes = size_t{128} << 10;

struct Shard {
  std::string path;
  UniqueFd fd;
  struct stat opened = {};  // what the header was read from
};

absl::StatusOr<Shard> OpenShard(const std::string& directory, const std::string& name) {
  Shard shard;
  shard.path = JoinPath(directory, name);
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  FOREBAY_ASSIGN_OR_RETURN(shard.fd, OpenFile(shard.path, O_RDONLY | O_NONBLOCK));
  if (::fstat(shard.fd.get(), &shard.opened) != 0) {
    return StorageError(fmt::format("stat of '{}' failed", shard.path), errno);
  }
  if (!S_ISREG(shard.opened.st_mode))
    return BadInputError(fmt::format("'{}' is not a regular file", shard.path));
  return shard;
}

absl::StatusOr<SafetensorsHeader> ReadHeader(const Shard& shard) {
  const int64_t file_bytes = shard.opened.st_size;
  constexpr int64_t kLineBytes = 64;
  std::vector<std::byte> prefix(static_cast<size_t>(std::min(kLineBytes, file_bytes)));
  FOREBAY_RETURN_IF_ERROR(PreadAll(shard.fd.get(), prefix, 0, shard.path));
  const std::string_view text(reinterpret_cast<const char*>(prefix.data()), prefix.size());
  FOREBAY_RETURN_IF_ERROR(RefuseLfsPointer(text, shard.path));
  FOREBAY_ASSIGN_OR_RETURN(const int64_t header_bytes,
                           SafetensorsHeaderBytes(prefix, file_bytes, shard.path));
  prefix.resize(static_cast<size_t>(8 + header_bytes));
  FOREBAY_RETURN_IF_ERROR(PreadAll(shard.fd.get(), prefix, 0, shard.path));
  return ParseSafetensorsHeader(prefix, file_bytes, shard.path);
}

absl::Status CheckUnchanged(const Shard& shard) {
  struct stat now = {};
  if (::fstat(shard.fd.get(), &now) != 0)
    return StorageError(fmt::format("stat of '{}' failed", shard.path), errno);
  const bool same = now.st_size == shard.opened.st_size &&
                    now.st_mtim.tv_sec == shard.opened.st_mtim.tv_sec &&
                    now.st_mtim.tv_nsec == shard.opened.st_mtim.tv_nsec;
  if (same) return absl::OkStatus();
  return CorruptError(fmt::format(
      "'{}' was changed while it was being read. Do not write to a model that is in use; "
      "start again",
      shard.path));
}

// What to say of a folder without safetensors files.
absl::Status NoWeightsError(const std::string& directory) {
  FOREBAY_RETURN_IF_ERROR(RefuseAdapter(directory));
  std::string_view hint =
      "A model folder holds model.safetensors, or model.safetensors.index.json and its shards";
  if (FileExists(JoinPath(directory, "pytorch_model.bin")) ||
      FileExists(JoinPath(directory, "pytorch_model.bin.index.json"))) {
    hint =
        "Its weights are in PyTorch's pickle format, which can run code when loaded and is not "
        "read; save the model "
        "again with transformers (save_pretrained writes safetensors)";
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(directory));
  for (const std::string& name : names) {
    if (!name.ends_with(".safetensors")) continue;
    return BadInputError(fmt::format(
        "'{}' has '{}', but neither model.safetensors nor model.safetensors.index.json. Rename the "
        "file to model.safetensors if it is the whole model; if it is a part, copy the index there",
        directory, name));
  }
  return BadInputError(fmt::format("'{}' has no safetensors weights. {}", directory, hint));
}

std::optional<DType> DTypeOf(const SafetensorsEntry& entry) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (entry.dtype_name == SafetensorsName(dtype)) return dtype;
  }
  return std::nullopt;
}

}  // namespace

struct CheckpointReader::Impl {
  std::vector<Shard> shards;
  std::vector<int64_t> data_begin_bytes;  // per shard
  std::map<std::string, Tensor, std::less<>> tensors;

  absl::Status AddShard(const std::string& directory, const std::string& name);
  absl::Status AddIndexedShards(const std::string& directory, const std::string& index_path);

  // Reads elements of `elem_bytes` each as they are stored.
  absl::Status ReadRaw(const Tensor& tensor, int64_t first_elem, int64_t elem_bytes,
                       std::span<std::byte> out) const {
    const auto shard = static_cast<size_t>(tensor.shard);
    const int64_t at = data_begin_bytes[shard] + tensor.entry.begin_bytes + first_elem * elem_bytes;
    return PreadAll(shards[shard].fd.get(), out, at, shards[shard].path);
  }

  // Reads elements of type `stored` in pieces, and converts them.
  absl::Status ReadConverted(const Tensor& tensor, DType stored, int64_t first_elem, DType dtype,
                             std::span<std::byte> out) const {
    alignas(64) std::array<std::byte, kChunkBytes> chunk;
    const int64_t num_elems = std::ssize(out) / SizeOf(dtype);
    const int64_t chunk_elems = std::ssize(chunk) / SizeOf(stored);
    for (int64_t done = 0; done < num_elems; done += chunk_elems) {
      const int64_t count = std::min(chunk_elems, num_elems - done);
      const auto piece = std::span(chunk).first(static_cast<size_t>(count * SizeOf(stored)));
      FOREBAY_RETURN_IF_ERROR(ReadRaw(tensor, first_elem + done, SizeOf(stored), piece));
      ConvertFloats(stored, piece, dtype,
                    out.subspan(static_cast<size_t>(done * SizeOf(dtype)),
                                static_cast<size_t>(count * SizeOf(dtype))));
    }
    return absl::OkStatus();
  }

  absl::Status DTypeError(const Tensor& tensor) const {
    return BadInputError(
        fmt::format("'{}': tensor '{}' has dtype {}; F32, BF16 and F16 are supported",
                    shards[static_cast<size_t>(tensor.shard)].path, Printable(tensor.entry.name),
                    tensor.entry.dtype_name));
  }
};

absl::Status CheckpointReader::Impl::AddShard(const std::string& directory,
                                              const std::string& name) {
  FOREBAY_ASSIGN_OR_RETURN(Shard shard, OpenShard(directory, name));
  FOREBAY_ASSIGN_OR_RETURN(SafetensorsHeader header, ReadHeader(shard));
  const int index = static_cast<int>(shards.size());
  for (SafetensorsEntry& entry : header.entries) {
    std::string tensor_name = entry.name;
    const auto [position, added] =
        tensors.try_emplace(std::move(tensor_name), Tensor{std::move(entry), index});
    if (!added) {
      return BadInputError(fmt::format(
          "tensor '{}' is in two files: '{}' and '{}'. Save the model again, so that each "
          "tensor has one",
          Printable(position->first), shards[static_cast<size_t>(position->second.shard)].path,
          shard.path));
    }
  }
  data_begin_bytes.push_back(header.data_begin_bytes);
  shards.push_back(std::move(shard));
  return absl::OkStatus();
}

absl::Status CheckpointReader::Impl::AddIndexedShards(const std::string& directory,
                                                      const std::string& index_path) {
  FOREBAY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(index_path, kMaxIndexBytes));
  FOREBAY_ASSIGN_OR_RETURN(const auto weight_map, ParseSafetensorsIndex(text, index_path));
  std::map<std::string, int, std::less<>> shard_numbers;
  for (const auto& [tensor, file] : weight_map) {
    if (!shard_numbers.try_emplace(file, static_cast<int>(shard_numbers.size())).second) continue;
    if (!FileExists(JoinPath(directory, file))) {
      return BadInputError(fmt::format(
          "'{}' says that tensor '{}' is in '{}', but there is no such file. Download the "
          "missing file",
          index_path, Printable(tensor), file));
    }
    FOREBAY_RETURN_IF_ERROR(AddShard(directory, file));
  }
  for (const auto& [name, file] : weight_map) {
    const auto found = tensors.find(name);
    if (found == tensors.end() || found->second.shard != shard_numbers.find(file)->second) {
      return BadInputError(fmt::format(
          "'{}' says that tensor '{}' is in '{}', but that file does not hold it. Download "
          "the index and the files again",
          index_path, Printable(name), file));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!weight_map.contains(name)) {
      return BadInputError(fmt::format(
          "'{}' holds tensor '{}', of which '{}' says nothing. Download the index and the "
          "files again",
          shards[static_cast<size_t>(tensor.shard)].path, Printable(name), index_path));
    }
  }
  return absl::OkStatus();
}

CheckpointReader::CheckpointReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointReader::~CheckpointReader() = default;

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    const std::string& model_directory) {
  auto impl = std::make_unique<Impl>();
  const std::string index_path = JoinPath(model_directory, kIndexFile);
  if (FileExists(JoinPath(model_directory, kSingleFile))) {
    FOREBAY_RETURN_IF_ERROR(impl->AddShard(model_directory, kSingleFile));
  } else if (FileExists(index_path)) {
    FOREBAY_RETURN_IF_ERROR(impl->AddIndexedShards(model_directory, index_path));
  } else {
    return NoWeightsError(model_directory);
  }
  return std::unique_ptr<CheckpointReader>(new CheckpointReader(std::move(impl)));
}

const std::map<std::string, CheckpointReader::Tensor, std::less<>>& CheckpointReader::tensors()
    const {
  return impl_->tensors;
}

const CheckpointReader::Tensor* CheckpointReader::Find(std::string_view name) const {
  const auto found = impl_->tensors.find(name);
  return found == impl_->tensors.end() ? nullptr : &found->second;
}

int CheckpointReader::num_shards() const {
  return static_cast<int>(impl_->shards.size());
}

const std::string& CheckpointReader::ShardPath(int shard) const {
  return impl_->shards[static_cast<size_t>(shard)].path;
}

absl::StatusOr<UniqueFd> CheckpointReader::OpenShardAgain(int shard) const {
  return OpenFile(
      fmt::format("/proc/self/fd/{}", impl_->shards[static_cast<size_t>(shard)].fd.get()),
      O_RDONLY);
}

absl::Status CheckpointReader::ReadAs(DType dtype, const Tensor& tensor, int64_t first_elem,
                                      std::span<std::byte> out) const {
  const auto count = static_cast<int64_t>(out.size()) / SizeOf(dtype);
  FOREBAY_CHECK(first_elem >= 0 && first_elem + count <= NumElems(tensor.entry.shape));
  const std::optional<DType> stored = DTypeOf(tensor.entry);
  if (!stored.has_value()) return impl_->DTypeError(tensor);
  FOREBAY_RETURN_IF_ERROR(*stored == dtype
                              ? impl_->ReadRaw(tensor, first_elem, SizeOf(dtype), out)
                              : impl_->ReadConverted(tensor, *stored, first_elem, dtype, out));
  return CheckUnchanged(tensor);
}

absl::Status CheckpointReader::CheckUnchanged(const Tensor& tensor) const {
  return forebay::CheckUnchanged(impl_->shards[static_cast<size_t>(tensor.shard)]);
}

absl::Status CheckpointReader::Convert(const Tensor& tensor, std::span<const std::byte> stored,
                                       DType dtype, std::span<std::byte> out) const {
  const std::optional<DType> stored_dtype = DTypeOf(tensor.entry);
  if (!stored_dtype.has_value()) return impl_->DTypeError(tensor);
  const auto count = std::ssize(out) / SizeOf(dtype);
  ConvertFloats(*stored_dtype, stored.first(static_cast<size_t>(count * SizeOf(*stored_dtype))),
                dtype, out);
  return CheckUnchanged(tensor);
}

CheckpointReader::Place CheckpointReader::PlaceOf(const Tensor& tensor) const {
  const auto shard = static_cast<size_t>(tensor.shard);
  const int64_t data_begin = impl_->data_begin_bytes[shard];
  return {data_begin + tensor.entry.begin_bytes, data_begin + tensor.entry.end_bytes,
          impl_->shards[shard].opened.st_size};
}

void CheckpointReader::DropCachedPages(const Tensor& tensor) const {
  const auto shard = static_cast<size_t>(tensor.shard);
  // Advice only: where the file system ignores it, nothing is wrong but the size of the page cache.
  (void)::posix_fadvise(impl_->shards[shard].fd.get(),
                        impl_->data_begin_bytes[shard] + tensor.entry.begin_bytes,
                        tensor.entry.end_bytes - tensor.entry.begin_bytes, POSIX_FADV_DONTNEED);
}

}  // namespace forebay
