// Disks of a set speed under the threads engine, each with its own queue, in folders of one real
// file system: what several disks do together becomes a test for a machine with one. For tests and
// benchmarks only.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/aio/disk_calls.h"

namespace forebay {

struct LimitedDisk {
  std::string folder;         // files in it are on this disk
  double bytes_per_s = 1e12;  // reads and writes take turns, as on a half-duplex disk
};

// Thread-safe. Other files are on the system's own disk.
class LimitedDiskCalls : public DiskCalls {
 public:
  explicit LimitedDiskCalls(const std::vector<LimitedDisk>& disks);

  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override;
  int Flush(int fd, std::string_view path) override;
  // The page cache is the disk.
  int DropCache(IoKind, int, int64_t, int64_t) override { return 0; }
  dev_t DeviceIdOf(std::string_view path, dev_t kernels) const override;

 private:
  struct Disk {
    LimitedDisk limits;
    std::mutex mutex;
    int64_t free_ns = 0;  // mutex: when everything that it was asked for is done
  };
  Disk* DiskOf(std::string_view path) const;

  SystemDiskCalls system_;
  std::vector<std::unique_ptr<Disk>> disks_;
};

}  // namespace forebay
