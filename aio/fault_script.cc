#include "forebay/aio/fault_script.h"

#include <algorithm>

#include "forebay/base/counter_rng.h"

namespace forebay {

Fault FaultScript::Next(int64_t size_bytes) {
  int64_t call = 0;
  {
    const std::lock_guard lock(mutex_);
    call = num_calls_++;
  }
  Fault fault;
  fault.asked_bytes = fault.moved_bytes = size_bytes;
  const bool fails = plan_.fail_call >= 0 &&
                     (call == plan_.fail_call || (plan_.fail_all_after && call > plan_.fail_call));
  if (fails) {
    fault.error = -plan_.error_number;
    return fault;
  }
  fault.stall = call == plan_.stall_call;
  if (size_bytes == 0) return fault;
  const CounterRng rng(plan_.seed);
  const auto index = static_cast<uint64_t>(3 * call);
  fault.random = rng.Bits64(index + 2);
  fault.flip = call == plan_.flip_call;
  if (plan_.max_delay_us > 0) {
    fault.delay_us =
        static_cast<int64_t>(rng.Below(index, static_cast<uint64_t>(plan_.max_delay_us) + 1));
  }
  if (plan_.again_every > 0 && call % plan_.again_every == 0) fault.error = -EAGAIN;
  if (plan_.max_transfer_bytes > 0 && size_bytes > plan_.max_transfer_bytes) {
    // A direct transfer that ends short stops at a sector, which need not be a block.
    constexpr int64_t kSectorBytes = 512;
    const auto num_sectors = static_cast<uint64_t>(plan_.max_transfer_bytes / kSectorBytes);
    fault.moved_bytes =
        kSectorBytes * (1 + static_cast<int64_t>(rng.Below(index + 1, num_sectors)));
    fault.asked_bytes = std::min(
        (fault.moved_bytes + kIoAlignBytes - 1) / kIoAlignBytes * kIoAlignBytes, size_bytes);
  }
  return fault;
}

std::vector<std::byte> FaultScript::Flipped(const Fault& fault, std::span<const std::byte> data) {
  std::vector<std::byte> copy(data.begin(), data.end());
  const uint64_t bit = fault.random % (copy.size() * 8);
  copy[bit / 8] ^= std::byte{1} << (bit % 8);
  return copy;
}

void FaultScript::RecordWrite(std::string_view path, int64_t offset_bytes,
                              std::span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  events_.push_back(
      {false, std::string(path), offset_bytes, std::vector(data.begin(), data.end())});
}

void FaultScript::RecordFlush(std::string_view path) {
  const std::lock_guard lock(mutex_);
  events_.push_back({true, std::string(path), 0, {}});
}

std::vector<DiskEvent> FaultScript::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

int64_t FaultScript::num_calls() const {
  const std::lock_guard lock(mutex_);
  return num_calls_;
}

void FaultScript::CountInFlight(IoKind kind, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  (kind == IoKind::kRead ? reading_ : writing_) += bytes;
  peak_load_.in_flight_bytes = std::max(peak_load_.in_flight_bytes, reading_ + writing_);
  peak_load_.opposing_bytes = std::max(peak_load_.opposing_bytes, std::min(reading_, writing_));
}

DiskLoad FaultScript::peak_load() const {
  const std::lock_guard lock(mutex_);
  return peak_load_;
}

void FaultScript::ReleaseStalled() {
  const std::lock_guard lock(mutex_);
  released_ = true;
  released_changed_.notify_all();
}

bool FaultScript::released() const {
  const std::lock_guard lock(mutex_);
  return released_;
}

void FaultScript::AwaitRelease() {
  std::unique_lock lock(mutex_);
  released_changed_.wait(lock, [this] { return released_; });
}

}  // namespace forebay
