#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/file_space.h"
#include "forebay/base/format.h"
#include "forebay/base/hash.h"
#include "forebay/base/json.h"
#include "forebay/base/shared_file.h"
#include "forebay/model/files/safetensors.h"

namespace forebay {
namespace {

constexpr int64_t kDataAlignBytes = 4096;
// Written data is pushed to the disk in pieces of this size and then dropped from the page cache,
// so that exporting a large model neither fills memory with dirty pages nor ends in one long flush.
constexpr int64_t kFlushBytes = int64_t{32} << 20;

std::string FolderOf(const std::string& path) {
  const std::string directory = std::filesystem::path(path).parent_path().string();
  return directory.empty() ? "." : directory;
}

// Length and JSON, padded with spaces.
absl::StatusOr<std::string> MakeHeader(const std::string& path,
                                       const std::vector<SafetensorsWriter::Planned>& tensors,
                                       std::map<std::string, std::string> metadata,
                                       int64_t* data_bytes) {
  metadata.try_emplace("format", "pt");
  Json text = Json::object();
  text["__metadata__"] = metadata;
  std::string json = text.dump(-1, ' ', false, Json::error_handler_t::replace);
  json.pop_back();  // the closing brace; the tensors follow, outside the linear search of an
                    // ordered Json
  std::set<std::string_view> names;
  int64_t end = 0;
  for (const SafetensorsWriter::Planned& tensor : tensors) {
    const int64_t begin = end;
    FOREBAY_CHECK(names.insert(tensor.name).second && begin % SizeOf(tensor.dtype) == 0);
    end += NumElems(tensor.shape) * SizeOf(tensor.dtype);
    Json entry = {{"dtype", std::string(SafetensorsName(tensor.dtype))},
                  {"shape", tensor.shape},
                  {"data_offsets", {begin, end}}};
    json += fmt::format(",{}:{}",
                        Json(tensor.name).dump(-1, ' ', false, Json::error_handler_t::replace),
                        entry.dump());
  }
  json += "}";
  const auto used = static_cast<int64_t>(sizeof(uint64_t) + json.size());
  const int64_t padded = (used + kDataAlignBytes - 1) / kDataAlignBytes * kDataAlignBytes;
  json.append(static_cast<size_t>(padded - used), ' ');
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeaderBytes) {
    return BadInputError(fmt::format(
        "'{}': {} tensors need a header of {} bytes; safetensors allows {}. Write them to "
        "several files",
        path, tensors.size(), json.size(), kMaxSafetensorsHeaderBytes));
  }
  const uint64_t length = json.size();
  json.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
  *data_bytes = end;
  return json;
}

// Takes the space before anything is written, so that a full disk is found now.
absl::Status Reserve(int fd, const std::string& path, int64_t size_bytes) {
  const int error = ReserveFileSpace(fd, size_bytes);
  if (error == 0) return absl::OkStatus();
  if (error == EFBIG) return FileTooLargeError(fmt::format("'{}'", path), size_bytes);
  FOREBAY_ASSIGN_OR_RETURN(const int64_t free_bytes, FreeSpace(FolderOf(path)));
  const bool no_space = error == ENOSPC || error == EDQUOT;
  // File systems without fallocate (NFS before 4.2, some FUSE) still tell how much is free.
  if (no_space || (error == EOPNOTSUPP && free_bytes < size_bytes)) {
    return DoesNotFitError(
        fmt::format("'{}' needs {}, but the disk has {} to give ({}). Free space there, or write "
                    "elsewhere",
                    path, FormatBytes(size_bytes), FormatBytes(free_bytes), ErrnoText(error)));
  }
  if (error == EOPNOTSUPP) return absl::OkStatus();
  return StorageError(fmt::format("reserving {} bytes for '{}' failed", size_bytes, path), error);
}

}  // namespace

struct SafetensorsWriter::Impl {
  std::string path;
  std::string temporary;
  UniqueFd fd;
  int64_t file_bytes = 0;
  int64_t written_bytes = 0;
  int64_t started_bytes = 0;  // up to here, writing to the disk has begun
  int64_t dropped_bytes = 0;  // up to here, it is done and the pages are dropped
  Xxh3_128 hash;              // of what is written

  ~Impl() {
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }

  // Starts writing out the newest piece, waits for the one before it and drops that from the page
  // cache. Only a hint: errors show up in fdatasync.
  void FlushBehind() {
    if (written_bytes - started_bytes < kFlushBytes) return;
    (void)::sync_file_range(fd.get(), started_bytes, written_bytes - started_bytes,
                            SYNC_FILE_RANGE_WRITE);
    if (started_bytes > dropped_bytes) {
      const int64_t size = started_bytes - dropped_bytes;
      (void)::sync_file_range(
          fd.get(), dropped_bytes, size,
          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
      (void)::posix_fadvise(fd.get(), dropped_bytes, size, POSIX_FADV_DONTNEED);
    }
    dropped_bytes = started_bytes;
    started_bytes = written_bytes;
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SafetensorsWriter::~SafetensorsWriter() = default;

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, const std::vector<Planned>& tensors,
    const std::map<std::string, std::string>& metadata) {
  int64_t data_bytes = 0;
  FOREBAY_ASSIGN_OR_RETURN(const std::string header,
                           MakeHeader(path, tensors, metadata, &data_bytes));
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  const std::string temporary = path + ".tmp";
  ::unlink(temporary.c_str());  // of a writer that was killed
  FOREBAY_ASSIGN_OR_RETURN(impl->fd, CreateSharedFile(temporary, O_RDWR | O_EXCL));
  impl->temporary = temporary;
  impl->file_bytes = static_cast<int64_t>(header.size()) + data_bytes;
  FOREBAY_RETURN_IF_ERROR(Reserve(impl->fd.get(), path, impl->file_bytes));
  FOREBAY_RETURN_IF_ERROR(
      PwriteAll(impl->fd.get(), std::as_bytes(std::span(header)), 0, temporary));
  impl->written_bytes = static_cast<int64_t>(header.size());
  impl->hash.Update(header);
  return std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter(std::move(impl)));
}

absl::Status SafetensorsWriter::Append(std::span<const std::byte> bytes) {
  FOREBAY_CHECK(impl_->written_bytes + static_cast<int64_t>(bytes.size()) <= impl_->file_bytes);
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), static_cast<size_t>(kFlushBytes)));
    FOREBAY_RETURN_IF_ERROR(
        PwriteAll(impl_->fd.get(), piece, impl_->written_bytes, impl_->temporary));
    impl_->written_bytes += static_cast<int64_t>(piece.size());
    impl_->hash.Update(piece);
    impl_->FlushBehind();
    bytes = bytes.subspan(piece.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> SafetensorsWriter::Finish() {
  FOREBAY_CHECK(impl_->written_bytes == impl_->file_bytes && !impl_->temporary.empty());
  FOREBAY_RETURN_IF_ERROR(SyncFile(impl_->fd.get(), impl_->temporary));
  if (::rename(impl_->temporary.c_str(), impl_->path.c_str()) != 0) {
    return StorageError(fmt::format("renaming '{}' to '{}' failed", impl_->temporary, impl_->path),
                        errno);
  }
  impl_->temporary.clear();
  FOREBAY_RETURN_IF_ERROR(SyncDirectory(FolderOf(impl_->path)));
  return impl_->hash.Hex();
}

}  // namespace forebay
