#include "forebay/base/file_space.h"

#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

constexpr int64_t kBytesOfStatBlock = 512;

struct Range {
  int64_t begin_bytes;
  int64_t end_bytes;
};

// FS_IOC_FIEMAP fills this in: a head, and room for extents behind it.
class ExtentQuery {
 public:
  // The extents from `begin_bytes` on, as many as there is room for; nothing where the file system
  // does not tell.
  std::optional<std::span<const fiemap_extent>> Ask(int fd, int64_t begin_bytes,
                                                    int64_t end_bytes) {
    head()->fm_start = static_cast<uint64_t>(begin_bytes);
    head()->fm_length = static_cast<uint64_t>(end_bytes - begin_bytes);
    head()->fm_flags = 0;
    head()->fm_mapped_extents = 0;
    head()->fm_extent_count = kMostExtents;
    if (::ioctl(fd, FS_IOC_FIEMAP, head()) != 0) return std::nullopt;
    return std::span<const fiemap_extent>(head()->fm_extents, head()->fm_mapped_extents);
  }

 private:
  static constexpr size_t kMostExtents = 128;
  fiemap* head() { return reinterpret_cast<fiemap*>(memory_.data()); }

  alignas(fiemap)
      std::array<std::byte, sizeof(fiemap) + kMostExtents * sizeof(fiemap_extent)> memory_ = {};
};

// The parts of the first `size_bytes` that have no place on the disk; nothing where the file system
// does not tell (tmpfs, NFS, many in user space). SEEK_HOLE would be no help: it takes space that
// was reserved and not written for a hole.
std::optional<std::vector<Range>> MissingRanges(int fd, int64_t size_bytes) {
  std::vector<Range> missing;
  ExtentQuery query;
  int64_t seen_bytes = 0;  // up to here it is known
  const auto see = [&](int64_t begin_bytes, int64_t end_bytes) {
    if (begin_bytes > seen_bytes) missing.push_back({seen_bytes, begin_bytes});
    seen_bytes = std::max(seen_bytes, end_bytes);
  };
  while (seen_bytes < size_bytes) {
    const auto extents = query.Ask(fd, seen_bytes, size_bytes);
    if (!extents.has_value()) return std::nullopt;
    for (const fiemap_extent& extent : *extents) {
      const auto begin_bytes = static_cast<int64_t>(extent.fe_logical);
      see(std::min(begin_bytes, size_bytes), begin_bytes + static_cast<int64_t>(extent.fe_length));
    }
    if (extents->empty() || (extents->back().fe_flags & FIEMAP_EXTENT_LAST) != 0) {
      see(size_bytes, size_bytes);
    }
  }
  return missing;
}

int64_t TotalBytes(std::span<const Range> ranges) {
  int64_t bytes = 0;
  for (const Range& range : ranges) bytes += range.end_bytes - range.begin_bytes;
  return bytes;
}

bool IsFree(int fd, int64_t bytes) {
  struct statvfs disk = {};
  if (::fstatvfs(fd, &disk) != 0 || disk.f_blocks == 0) return true;  // the try will tell
  // Root may use the blocks that a file system reserves for root.
  const auto free_blocks = static_cast<int64_t>(::geteuid() == 0 ? disk.f_bfree : disk.f_bavail);
  return bytes <= free_blocks * static_cast<int64_t>(disk.f_frsize);
}

}  // namespace

absl::StatusOr<int64_t> SpaceOfFile(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) {
    return StorageError(fmt::format("stat of '{}' failed", path), errno);
  }
  return static_cast<int64_t>(info.st_blocks) * kBytesOfStatBlock;
}

absl::StatusOr<int64_t> MissingFileSpace(const std::string& path, int64_t size_bytes) {
  FOREBAY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_RDONLY));
  const auto missing = MissingRanges(fd.get(), size_bytes);
  if (missing.has_value()) return TotalBytes(*missing);
  FOREBAY_ASSIGN_OR_RETURN(const int64_t has_bytes, SpaceOfFile(path));
  return std::max<int64_t>(0, size_bytes - has_bytes);
}

int64_t MostBytesOfAFile() {
  struct rlimit limit = {};
  const bool limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  return limited ? static_cast<int64_t>(std::min<uint64_t>(limit.rlim_cur, kNone)) : kNone;
}

absl::Status FileTooLargeError(const std::string& what, int64_t size_bytes) {
  const std::string needs =
      fmt::format("{} needs {} ({} bytes) in one file", what, FormatBytes(size_bytes), size_bytes);
  const int64_t most_bytes = MostBytesOfAFile();
  if (size_bytes <= most_bytes) {
    return DoesNotFitError(
        needs + ", and its file system has no files as large. Choose a folder on another");
  }
  return DoesNotFitError(
      fmt::format("{}, and this process may make none larger than {} ({} bytes). Raise that limit "
                  "('ulimit -f unlimited')",
                  needs, FormatBytes(most_bytes), most_bytes));
}

int ReserveFileSpace(int fd, int64_t size_bytes, FileLength length) {
  // The kernel would say so with a signal, and not where a file keeps its length.
  if (size_bytes > MostBytesOfAFile()) return EFBIG;
  struct stat file = {};
  if (::fstat(fd, &file) != 0) return errno;
  const auto known = MissingRanges(fd, size_bytes);
  // Not all of it, where the file has some: XFS would want all of it to be free once more.
  const std::vector<Range> missing = known.value_or(std::vector<Range>{{0, size_bytes}});
  const int64_t wanted_bytes =
      known.has_value() ? TotalBytes(missing) : size_bytes - file.st_blocks * kBytesOfStatBlock;
  // Asked before it is tried: an attempt takes all that there is until it fails, and meanwhile
  // every other program on the disk finds it full.
  if (!IsFree(fd, wanted_bytes)) return ENOSPC;
  const int mode = length == FileLength::kStays ? FALLOC_FL_KEEP_SIZE : 0;
  for (const Range& range : missing) {
    while (::fallocate(fd, mode, range.begin_bytes, range.end_bytes - range.begin_bytes) != 0) {
      if (errno != EINTR) return errno;
    }
  }
  // Space behind its end may have been the file's already.
  const bool has_its_end = !missing.empty() && missing.back().end_bytes == size_bytes;
  const bool grows = length == FileLength::kGrows && size_bytes > file.st_size && !has_its_end;
  return grows && ::ftruncate(fd, size_bytes) != 0 ? errno : 0;
}

}  // namespace forebay
