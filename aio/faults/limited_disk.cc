#include "forebay/aio/faults/limited_disk.h"

#include <sys/sysmacros.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace forebay {
namespace {

// No driver has it.
constexpr unsigned kMadeUpMajor = 0xfff;

int64_t NowNs() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

LimitedDiskCalls::LimitedDiskCalls(const std::vector<LimitedDisk>& disks) {
  for (const LimitedDisk& limits : disks) {
    disks_.push_back(std::make_unique<Disk>());
    disks_.back()->limits = limits;
  }
}

LimitedDiskCalls::Disk* LimitedDiskCalls::DiskOf(std::string_view path) const {
  const auto found = std::ranges::find_if(
      disks_, [&](const auto& disk) { return path.starts_with(disk->limits.folder + "/"); });
  return found == disks_.end() ? nullptr : found->get();
}

dev_t LimitedDiskCalls::DeviceIdOf(std::string_view path, dev_t kernels) const {
  const Disk* const disk = DiskOf(path);
  if (disk == nullptr) return kernels;
  const auto found = std::ranges::find(disks_, disk, [](const auto& d) { return d.get(); });
  return makedev(kMadeUpMajor, static_cast<unsigned>(found - disks_.begin()));
}

int64_t LimitedDiskCalls::Transfer(IoKind kind, int fd, std::string_view path,
                                   std::span<std::byte> buffer, int64_t offset_bytes) {
  Disk* const disk = DiskOf(path);
  int64_t done_ns = 0;
  if (disk != nullptr) {
    const std::lock_guard lock(disk->mutex);
    const double ns = static_cast<double>(buffer.size()) / disk->limits.bytes_per_s * 1e9;
    done_ns = std::max(disk->free_ns, NowNs()) + static_cast<int64_t>(ns);
    disk->free_ns = done_ns;
  }
  const int64_t moved = system_.Transfer(kind, fd, path, buffer, offset_bytes);
  if (disk != nullptr) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(done_ns - NowNs()));
  }
  return moved;
}

int LimitedDiskCalls::Flush(int, std::string_view) {
  return 0;
}

}  // namespace forebay
