#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "fmt/format.h"
#include "forebay/aio/engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file_space.h"
#include "forebay/base/file_system.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

struct alignas(kIoAlignBytes) Block {
  std::array<std::byte, kIoAlignBytes> bytes;
  std::span<std::byte> span() { return bytes; }
};

// Whether what is written over goes elsewhere, and so takes space that no reservation holds.
bool CopiesOnWrite(int fd) {
  const std::string fs = FileSystemOf(fd);
  if (fs == "zfs" || fs == "bcachefs") return true;
  if (fs != "btrfs") return false;
  int flags = 0;
  return ::ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0 || (flags & FS_NOCOW_FL) == 0;
}

// Whether every byte of a file has a place on the disk, where none is reserved without having been
// written. Both are asked: a file system may know no holes, and may count its own blocks as the
// file's.
bool HasNoHoles(int fd, int64_t size_bytes) {
  struct stat info = {};
  constexpr int64_t kBytesOfStatBlock = 512;
  return ::fstat(fd, &info) == 0 && info.st_blocks * kBytesOfStatBlock >= size_bytes &&
         ::lseek(fd, 0, SEEK_HOLE) >= size_bytes;
}

FileSpace SpaceOf(int fd, int64_t size_bytes, bool was_reserved) {
  if (CopiesOnWrite(fd)) return FileSpace::kNever;
  return was_reserved || HasNoHoles(fd, size_bytes) ? FileSpace::kReserved
                                                    : FileSpace::kOnceWritten;
}

std::string WhyUnreserved(FileSpace space) {
  switch (space) {
    case FileSpace::kReserved:
      return "";
    case FileSpace::kOnceWritten:
      return "its file system reserves no space for a file that is not written yet (no fallocate)";
    case FileSpace::kNever:
      return "its file system copies on write, so that writing over a file takes space that "
             "nothing reserves, and time (on btrfs, 'chattr +C' on the folder while it is empty "
             "switches that off for what is made in it)";
  }
  FOREBAY_CHECK(false);
}

absl::StatusOr<UniqueFd> OpenRegularFile(const std::string& path, bool create, bool read_only) {
  const int flags =
      (read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT | O_EXCL : 0);
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags, 0600);
  } while (fd < 0 && errno == EINTR);
  UniqueFd owned(fd);
  fd = owned.get();
  const int error = errno;
  if (fd < 0 && error == ELOOP) {
    return StorageError(
        fmt::format("'{}' is a symbolic link; forebay does not read or write its stores through "
                    "links. Replace it by the file itself",
                    path));
  }
  if (fd < 0 && error == EEXIST) {
    return StorageError(fmt::format(
        "'{}' exists already and is not overwritten. Remove it or choose another folder", path));
  }
  if (fd < 0 && error == ENOENT && !create) {
    return BadInputError(fmt::format("'{}' does not exist", path));
  }
  if (fd < 0) return StorageError(fmt::format("opening '{}' failed", path), error);
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return StorageError(fmt::format("stat of '{}' failed", path), errno);
  if (!S_ISREG(info.st_mode)) {
    return StorageError(fmt::format("'{}' is not a regular file", path));
  }
  return owned;
}

// `old_size_bytes`: of the file, which never shrinks here.
// `space`: DirectFile's.
absl::Status ReserveSpace(int fd, const std::string& path, int64_t old_size_bytes,
                          int64_t size_bytes, bool reserve, FileSpace& space) {
  int error = reserve ? ReserveFileSpace(fd, size_bytes) : EOPNOTSUPP;
  if (reserve) space = SpaceOf(fd, size_bytes, error == 0);
  // Such a file system cannot promise space; the file gets its size, and a later write may meet
  // ENOSPC.
  if (error == EOPNOTSUPP) {
    error = size_bytes <= old_size_bytes || ::ftruncate(fd, size_bytes) == 0 ? 0 : errno;
  }
  if (error == 0) return absl::OkStatus();
  if (error == EFBIG) return FileTooLargeError(fmt::format("'{}'", path), size_bytes);
  if (error == ENOSPC || error == EDQUOT) {
    struct statfs info = {};
    const bool known = ::fstatfs(fd, &info) == 0;
    const int64_t needed_bytes = MissingFileSpace(path, size_bytes).value_or(size_bytes);
    return DoesNotFitError(fmt::format(
        "'{}' needs {} ({} bytes), but its file system has {} free: {}. Free space there or choose "
        "another folder (DIR of swap-bench, --nvme of forebay)",
        path, FormatBytes(needed_bytes), needed_bytes,
        known ? FormatBytes(static_cast<int64_t>(info.f_bavail) * info.f_bsize) : "too little",
        ErrnoText(error)));
  }
  return StorageError(fmt::format("reserving {} bytes for '{}' failed", size_bytes, path), error);
}

// Also where the file is long enough already: a copy of it may have holes.
absl::Status ReserveInExisting(int fd, const std::string& path, int64_t size_bytes, bool reserve,
                               FileSpace& space) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return StorageError(fmt::format("stat of '{}' failed", path), errno);
  absl::Status status = ReserveSpace(fd, path, info.st_size, size_bytes, reserve, space);
  // What the file system gave before it was full goes back to it. Its failure would add nothing to
  // the error that is being reported.
  if (!status.ok()) [[maybe_unused]]
    const int ignored = ::ftruncate(fd, info.st_size);
  return status;
}

// "" when the kernel offers direct I/O at our alignment, else why not.
std::string WhyNotOffered(int fd) {
  const std::string fs = FileSystemOf(fd);
  // They accept the flag and any alignment, but their files are the page cache.
  if (fs == "tmpfs" || fs == "ramfs") return "tmpfs keeps its files in RAM";
#ifdef STATX_DIOALIGN
  struct statx info = {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    if (info.stx_dio_offset_align == 0) return "the file system has no direct I/O";
    const int64_t needed = std::max(info.stx_dio_offset_align, info.stx_dio_mem_align);
    if (needed > kIoAlignBytes)
      return fmt::format("the device wants transfers aligned to {} bytes", needed);
  }
#endif
  return "";
}

// Switches O_DIRECT on or off. 0 or errno.
int SetDirect(int fd, bool direct) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return errno;
  const int wanted = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
  return ::fcntl(fd, F_SETFL, wanted) == 0 ? 0 : errno;
}

// Some file systems accept the flag and refuse the transfer, with EINVAL. Any other error counts
// only for a new file, which is written, read back and left zeroed.
absl::StatusOr<bool> TransfersWork(int fd, const std::string& path, bool create) {
  Block written;
  written.bytes.fill(std::byte{0xa5});
  Block read;
  read.bytes.fill(std::byte{0});
  const auto failed = [&](std::string_view what) {
    return StorageError(
        fmt::format("a first direct {} of {} bytes at 0 of '{}' failed", what, kIoAlignBytes, path),
        errno);
  };
  if (create && ::pwrite(fd, written.bytes.data(), kIoAlignBytes, 0) != kIoAlignBytes) {
    if (errno == EINVAL) return false;
    return failed("write");
  }
  const ssize_t got = ::pread(fd, read.bytes.data(), kIoAlignBytes, 0);
  if (got < 0 && errno == EINVAL) return false;
  // A block that the medium has lost says nothing against direct transfers of the others.
  if (!create) return true;
  if (got < 0) return failed("read");
  if (got != kIoAlignBytes || read.bytes != written.bytes) {
    return StorageError(
        fmt::format("'{}' gave back other bytes than were just written to it: its device or file "
                    "system cannot be trusted. Choose another folder (DIR of swap-bench, "
                    "--nvme of forebay)",
                    path));
  }
  written.bytes.fill(std::byte{0});
  if (::pwrite(fd, written.bytes.data(), kIoAlignBytes, 0) != kIoAlignBytes) return failed("write");
  return true;
}

absl::StatusOr<DirectFile> MakeDirect(UniqueFd fd, const std::string& path,
                                      const DirectFileOptions& options, FileSpace space) {
  DirectFile file;
  file.fd = std::move(fd);
  file.space = space;
  file.why_unreserved = WhyUnreserved(space);
  file.why_not_direct =
      options.direct ? SwitchToDirect(file.fd.get()) : "buffered transfers were asked for";
  if (!file.why_not_direct.empty()) return file;
  FOREBAY_ASSIGN_OR_RETURN(file.direct, TransfersWork(file.fd.get(), path, options.create));
  if (!file.direct) {
    file.why_not_direct = "the file system accepted O_DIRECT and refused a direct transfer";
    const int error = SetDirect(file.fd.get(), false);
    if (error != 0)
      return StorageError(fmt::format("switching '{}' to buffered I/O failed", path), error);
  }
  return file;
}

}  // namespace

std::string SwitchToDirect(int fd) {
  const std::string why_not = WhyNotOffered(fd);
  if (!why_not.empty()) return why_not;
  const int error = SetDirect(fd, true);
  return error == 0 ? "" : fmt::format("the file system refused O_DIRECT: {}", ErrnoText(error));
}

int64_t DirectMemoryAlign([[maybe_unused]] int fd) {
#ifdef STATX_DIOALIGN
  struct statx info = {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0 && info.stx_dio_mem_align > 0) {
    return info.stx_dio_mem_align;
  }
#endif
  return kIoAlignBytes;
}

absl::StatusOr<DirectFile> OpenDirectFile(const std::string& path,
                                          const DirectFileOptions& options) {
  FOREBAY_CHECK(options.size_bytes >= (options.create ? 1 : 0));
  FOREBAY_CHECK(options.size_bytes % kIoAlignBytes == 0);
  FOREBAY_CHECK(!options.read_only || (!options.create && options.size_bytes == 0));
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd fd, OpenRegularFile(path, options.create, options.read_only));
  FileSpace space = FileSpace::kReserved;
  if (!options.create) {
    if (options.size_bytes > 0) {
      FOREBAY_RETURN_IF_ERROR(
          ReserveInExisting(fd.get(), path, options.size_bytes, options.reserve, space));
    }
    return MakeDirect(std::move(fd), path, options, space);
  }
  absl::Status reserved =
      ReserveSpace(fd.get(), path, 0, options.size_bytes, options.reserve, space);
  absl::StatusOr<DirectFile> file =
      reserved.ok() ? MakeDirect(std::move(fd), path, options, space) : std::move(reserved);
  if (!file.ok()) ::unlink(path.c_str());  // made by this call
  return file;
}

}  // namespace forebay
