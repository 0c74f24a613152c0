#include "forebay/measure/load/bench_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/engine_probe.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file_space.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

absl::Status NoRoom(const std::string& directory, int64_t size_bytes, const std::string& why,
                    const std::string& free, std::string_view advice) {
  return DoesNotFitError(fmt::format("'{}' has no room for a file of {}: {}{} are free. {}",
                                     directory, FormatBinaryBytes(size_bytes), why, free, advice));
}

absl::Status Reserve(int fd, const std::string& directory, int64_t size_bytes) {
  int error = ReserveFileSpace(fd, size_bytes);
  // Such a file system cannot promise space: a full one shows while the file is filled.
  if (error == EOPNOTSUPP) error = ::ftruncate(fd, size_bytes) == 0 ? 0 : errno;
  if (error == 0) return absl::OkStatus();
  if (error == EFBIG) return FileTooLargeError(fmt::format("'{}'", directory), size_bytes);
  if (error == ENOSPC || error == EDQUOT) {
    const absl::StatusOr<int64_t> free = FreeSpace(directory);
    return NoRoom(directory, size_bytes, ErrnoText(error) + "; ",
                  free.ok() ? FormatBinaryBytes(*free) : "an unknown number of bytes",
                  kTakeASmallerSize);
  }
  return StorageError(fmt::format("reserving {} bytes in '{}' failed", size_bytes, directory),
                      error);
}

}  // namespace

absl::Status CheckRoom(const std::string& directory, int64_t size_bytes, int64_t free_bytes,
                       std::string_view advice) {
  if (free_bytes >= size_bytes) return absl::OkStatus();
  return NoRoom(directory, size_bytes, "", FormatBinaryBytes(free_bytes), advice);
}

absl::StatusOr<BenchFile> BenchFile::Create(const std::string& directory, int64_t size_bytes,
                                            bool direct, bool track) {
  FOREBAY_CHECK(size_bytes > 0 && size_bytes % kIoAlignBytes == 0);
  if (!IsDirectory(directory)) {
    return BadInputError(
        fmt::format("'{}' is no folder. Name one on the disk to be measured", directory));
  }
  FOREBAY_ASSIGN_OR_RETURN(ScratchFile scratch, OpenScratchFile(directory, direct));
  FOREBAY_RETURN_IF_ERROR(Reserve(scratch.fd.get(), directory, size_bytes));
  struct stat info = {};
  if (::fstat(scratch.fd.get(), &info) != 0) {
    return StorageError(fmt::format("stat of a file in '{}' failed", directory), errno);
  }
  BenchFile file;
  FOREBAY_RETURN_IF_ERROR(MakeFileId(file.id_));
  file.directory_ = directory;
  file.path_ = JoinPath(directory, "(unnamed file of swap-bench)");
  file.why_not_direct_ = std::move(scratch.why_not_direct);
  file.fd_ = std::move(scratch.fd);
  file.size_bytes_ = size_bytes;
  file.device_ = info.st_dev;
  if (track) file.generations_.assign(static_cast<size_t>(size_bytes / kPatternBlockBytes), 0);
  return file;
}

std::string BenchFile::PathForOthers() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), fd_.get());
}

absl::StatusOr<int> BenchFile::AddTo(Engine& engine) const {
  UniqueFd fd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
  if (!fd.valid()) {
    return StorageError(fmt::format("another descriptor of '{}' was refused", path_), errno);
  }
  return engine.AddFile(std::move(fd), path_);
}

PatternPlace BenchFile::NextPlace(int64_t offset_bytes, int64_t size_bytes) {
  if (!generations_.empty()) {
    const auto first = generations_.begin() + offset_bytes / kPatternBlockBytes;
    std::fill_n(first, size_bytes / kPatternBlockBytes, *first + 1);
  }
  return PlaceAt(offset_bytes);
}

PatternPlace BenchFile::PlaceAt(int64_t offset_bytes) const {
  const uint64_t generation =
      generations_.empty() ? 1
                           : generations_[static_cast<size_t>(offset_bytes / kPatternBlockBytes)];
  return {id_, offset_bytes, generation};
}

absl::Status RunFilePass(Engine& engine, const BenchFile& file, const FilePass& pass) {
  const auto num_ops = static_cast<int64_t>(pass.memory.size()) / pass.block_bytes;
  FOREBAY_CHECK(num_ops >= 1);
  FOREBAY_ASSIGN_OR_RETURN(const int number, file.AddTo(engine));
  const auto ops = std::make_unique<IoOp[]>(static_cast<size_t>(num_ops));
  const int64_t num_blocks = (file.size_bytes() + pass.block_bytes - 1) / pass.block_bytes;
  absl::Status status;
  for (int64_t i = 0; i < num_blocks + num_ops; ++i) {
    IoOp& op = ops[static_cast<size_t>(i % num_ops)];
    const bool was_submitted = !op.buffer.empty();
    const absl::Status done = engine.Wait(op);
    if (status.ok()) status = done;
    if (was_submitted && done.ok() && pass.kind == IoKind::kRead) {
      pass.use(op.offset_bytes, op.buffer);
    }
    op.buffer = {};
    if (status.ok() && pass.stop()) status = InterruptedError("stopped on request");
    if (i >= num_blocks || !status.ok()) continue;
    op.kind = pass.kind;
    op.io_class = pass.kind == IoKind::kRead ? IoClass::kPrefetch : IoClass::kWriteBack;
    op.file = number;
    op.offset_bytes = i * pass.block_bytes;
    const int64_t bytes = std::min(pass.block_bytes, file.size_bytes() - op.offset_bytes);
    op.buffer = pass.memory.subspan(static_cast<size_t>(i % num_ops * pass.block_bytes),
                                    static_cast<size_t>(bytes));
    if (pass.kind == IoKind::kWrite) pass.use(op.offset_bytes, op.buffer);
    engine.Submit(op);
    if (pass.progress) pass.progress(static_cast<double>(i) / static_cast<double>(num_blocks));
  }
  engine.RemoveFile(number);
  return status;
}

}  // namespace forebay
