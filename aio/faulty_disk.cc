#include "forebay/aio/faulty_disk.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "forebay/base/counter_rng.h"

namespace forebay {

int FaultyDisk::BeginCall(int64_t* call) {
  const std::lock_guard lock(mutex_);
  *call = num_calls_++;
  const bool fails = plan_.fail_call >= 0 && (*call == plan_.fail_call ||
                                              (plan_.fail_all_after && *call > plan_.fail_call));
  return fails ? -plan_.error_number : 0;
}

int64_t FaultyDisk::Transfer(IoKind kind, int fd, std::string_view path,
                             std::span<std::byte> buffer, int64_t offset_bytes) {
  int64_t call = 0;
  if (const int error = BeginCall(&call); error != 0) return error;
  const CounterRng rng(plan_.seed);
  const auto index = static_cast<uint64_t>(2 * call);
  if (plan_.max_delay_us > 0) {
    const auto delay_us = rng.Below(index, static_cast<uint64_t>(plan_.max_delay_us) + 1);
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  }
  if (plan_.again_every > 0 && call % plan_.again_every == 0) return -EAGAIN;

  // A direct transfer that ends short stops at a sector, which need not be a block.
  constexpr int64_t kSectorBytes = 512;
  const auto asked_bytes = static_cast<int64_t>(buffer.size());
  int64_t moved_bytes = asked_bytes;
  if (plan_.max_transfer_bytes > 0 && asked_bytes > plan_.max_transfer_bytes) {
    const auto num_sectors = static_cast<uint64_t>(plan_.max_transfer_bytes / kSectorBytes);
    moved_bytes = kSectorBytes * (1 + static_cast<int64_t>(rng.Below(index + 1, num_sectors)));
  }
  // The device moves whole blocks; only the count is cut, as the caller must not rely on what lies
  // behind it.
  const int64_t rounded_bytes = (moved_bytes + kIoAlignBytes - 1) / kIoAlignBytes * kIoAlignBytes;
  const auto part = buffer.first(static_cast<size_t>(std::min(rounded_bytes, asked_bytes)));
  const int64_t result = system_.Transfer(kind, fd, path, part, offset_bytes);
  if (plan_.record && kind == IoKind::kWrite && result > 0) {
    const auto written = part.first(static_cast<size_t>(result));
    const std::lock_guard lock(mutex_);
    events_.push_back(
        {false, std::string(path), offset_bytes, std::vector(written.begin(), written.end())});
  }
  return std::min(result, moved_bytes);
}

int FaultyDisk::Flush(int fd, std::string_view path) {
  int64_t call = 0;
  if (const int error = BeginCall(&call); error != 0) return error;
  const int result = system_.Flush(fd, path);
  if (plan_.record && result == 0) {
    const std::lock_guard lock(mutex_);
    events_.push_back({true, std::string(path), 0, {}});
  }
  return result;
}

int64_t FaultyDisk::num_calls() const {
  const std::lock_guard lock(mutex_);
  return num_calls_;
}

std::vector<DiskEvent> FaultyDisk::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

}  // namespace forebay
