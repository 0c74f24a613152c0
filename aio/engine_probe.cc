#include "forebay/aio/engine_probe.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr int64_t kFullBytes = int64_t{1} << 20;
constexpr int64_t kRoundTripBytes = kIoAlignBytes + kFullBytes;

// Page-aligned memory for one op, outside every budget: 2 MiB for a moment.
class Scratch {
 public:
  Scratch() {
    void* const mapped =
        ::mmap(nullptr, 2 * kFullBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped != MAP_FAILED) data_ = static_cast<std::byte*>(mapped);
  }
  ~Scratch() {
    if (data_ != nullptr) ::munmap(data_, 2 * kFullBytes);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  bool valid() const { return data_ != nullptr; }
  std::span<std::byte> first(int64_t bytes) { return {data_, static_cast<size_t>(bytes)}; }
  std::span<std::byte> second(int64_t bytes) {
    return {data_ + kFullBytes, static_cast<size_t>(bytes)};
  }

 private:
  std::byte* data_ = nullptr;
};

// What to do where no file can be made.
const char* MakingAdvice(int error_number) {
  switch (error_number) {
    case EROFS:
      return "It is mounted read-only: remount it, or choose another folder";
    case EACCES:
    case EPERM:
      return "This user may not write there: change the folder's owner or mode, or choose another "
             "folder";
    case EMFILE:
    case ENFILE:
      return "Too many files are open: raise 'ulimit -n'";
    default:
      return "Its file system takes no files of ours: choose a folder on a disk";
  }
}

// The error for a file in `folder`, with the numbers that `df` has.
absl::Status NoRoomError(const std::string& folder, int error_number) {
  return DoesNotFitError(fmt::format(
      "the disk of '{}' has no room for a small file, with which transfers are tried: {} ({} bytes "
      "are free for this user). Free some space there (see 'df', 'df -i' and the quota), or choose "
      "another folder (DIR of swap-bench, --nvme of forebay)",
      folder, ErrnoText(error_number), FreeSpace(folder).value_or(0)));
}

bool LacksRoom(int error_number) {
  return error_number == ENOSPC || error_number == EDQUOT;
}

absl::Status RunOp(Engine& engine, IoKind kind, int file, int64_t offset_bytes,
                   std::span<std::byte> buffer) {
  IoOp op;
  op.kind = kind;
  op.file = file;
  op.offset_bytes = offset_bytes;
  op.buffer = buffer;
  engine.Submit(op);
  return engine.Wait(op);
}

absl::Status RoundTrip(Engine& engine, int file, const std::string& path, Scratch& memory) {
  const CounterRng rng(0x70726f6265);
  int64_t offset_bytes = 0;
  for (const int64_t bytes : {kIoAlignBytes, kFullBytes}) {
    const std::span<std::byte> written = memory.first(bytes);
    const std::span<std::byte> read = memory.second(bytes);
    rng.Fill(written);
    FOREBAY_RETURN_IF_ERROR(RunOp(engine, IoKind::kWrite, file, offset_bytes, written));
    FOREBAY_RETURN_IF_ERROR(RunOp(engine, IoKind::kRead, file, offset_bytes, read));
    if (std::memcmp(read.data(), written.data(), written.size()) != 0) {
      return StorageError(fmt::format(
          "aio: {} bytes at {} of a new file '{}' were read back differently than written: its "
          "device or file system cannot be trusted. Choose another folder (DIR of swap-bench, "
          "--nvme of forebay)",
          bytes, offset_bytes, path));
    }
    offset_bytes += bytes;
  }
  return absl::OkStatus();
}

// The file that is there to be read; invalid where none is.
UniqueFd OpenToRead(const std::string& folder, const std::string& name) {
  if (name.empty()) return UniqueFd();
  // O_NONBLOCK: what is no file must not be waited for.
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  UniqueFd fd(::open(JoinPath(folder, name).c_str(), kFlags));
  struct stat info = {};
  const bool is_file = fd.valid() && ::fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode);
  return is_file ? std::move(fd) : UniqueFd();
}

// Whether the disk fails to give a block to anybody, whatever asks for it.
bool MediumFails(int fd, int64_t offset_bytes, std::span<std::byte> block) {
  const ssize_t got = ::pread(fd, block.data(), block.size(), offset_bytes);
  return got < 0 && (errno == EIO || errno == ENODATA || errno == EILSEQ);
}

absl::Status ReadBlock(Engine& engine, UniqueFd fd, const std::string& path, int64_t offset_bytes,
                       Scratch& memory) {
  const UniqueFd same(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  const int file = engine.AddFile(std::move(fd), path);
  const absl::Status status =
      RunOp(engine, IoKind::kRead, file, offset_bytes, memory.first(kIoAlignBytes));
  engine.RemoveFile(file);
  // A file that ends too early was read as well: its owner finds out what is wrong with it.
  if (status.ok() || ExitCodeOf(status) == ExitCode::kCorrupt) return absl::OkStatus();
  if (same.valid() && MediumFails(same.get(), offset_bytes, memory.second(kIoAlignBytes))) {
    return absl::OkStatus();
  }
  return status;
}

}  // namespace

absl::StatusOr<ScratchFile> OpenScratchFile(const std::string& folder, bool direct) {
  const std::string existing = NearestFolder(folder);
  ScratchFile file;
  file.path = JoinPath(existing, fmt::format(".forebay-probe-{}", ::getpid()));
  file.fd = UniqueFd(::open(existing.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.fd.valid()) {
    // Not every file system has files without names.
    constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    file.fd = UniqueFd(::open(file.path.c_str(), kFlags, 0600));
    if (!file.fd.valid()) {
      const int error = errno;
      if (LacksRoom(error)) return NoRoomError(existing, error);
      return StorageError(fmt::format("making a file in '{}' failed: {}. {}", existing,
                                      ErrnoText(error), MakingAdvice(error)));
    }
    ::unlink(file.path.c_str());
  }
  file.why_not_direct =
      direct ? SwitchToDirect(file.fd.get()) : "buffered transfers were asked for";
  return file;
}

absl::StatusOr<std::string> WhyNoDirectIo(const std::string& folder,
                                          const std::string& file_to_read) {
  const UniqueFd fd = OpenToRead(folder, file_to_read);
  if (fd.valid()) return SwitchToDirect(fd.get());
  FOREBAY_ASSIGN_OR_RETURN(const ScratchFile scratch, OpenScratchFile(folder, /*direct=*/true));
  return scratch.why_not_direct;
}

absl::Status ProveEngine(Engine& engine, const std::string& folder, const std::string& file_to_read,
                         int64_t offset_to_read_bytes) {
  Scratch memory;
  if (!memory.valid()) {
    return OutOfMemoryError("aio: the system refused 2 MiB for trying the disk: " +
                            ErrnoText(errno));
  }
  if (UniqueFd fd = OpenToRead(folder, file_to_read); fd.valid()) {
    if (engine.direct()) SwitchToDirect(fd.get());
    return ReadBlock(engine, std::move(fd), JoinPath(folder, file_to_read), offset_to_read_bytes,
                     memory);
  }
  FOREBAY_ASSIGN_OR_RETURN(ScratchFile scratch, OpenScratchFile(folder, engine.direct()));
  const std::string path = scratch.path;
  const int error = ReserveFileSpace(scratch.fd.get(), kRoundTripBytes);
  if (LacksRoom(error)) return NoRoomError(NearestFolder(folder), error);
  const int file = engine.AddFile(std::move(scratch.fd), path);
  const absl::Status status = RoundTrip(engine, file, path, memory);
  engine.RemoveFile(file);
  return status;
}

}  // namespace forebay
