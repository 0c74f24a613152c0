#include "forebay/aio/faults/fault_script.h"

#include <algorithm>

#include "forebay/base/counter_rng.h"

namespace forebay {
namespace {

// A direct transfer that ends short stops at a sector, which need not be a block.
constexpr int64_t kSectorBytes = 512;

// How many of at most `most` sectors are moved. Seldom less than a block: as direct I/O goes on
// where a block ends, many such calls in a row would be a disk that moves nothing.
int64_t ShortSectors(uint64_t random, int64_t most) {
  constexpr int64_t kBlockSectors = kIoAlignBytes / kSectorBytes;
  const auto choice = static_cast<int64_t>(random >> 8);
  if (most <= kBlockSectors || random % 8 == 0) {
    return 1 + choice % std::min(most, kBlockSectors - 1);
  }
  return kBlockSectors + choice % (most - kBlockSectors + 1);
}

void CutShort(Fault& fault, int64_t num_sectors) {
  fault.moved_bytes = kSectorBytes * num_sectors;
  fault.asked_bytes = std::min(
      (fault.moved_bytes + kIoAlignBytes - 1) / kIoAlignBytes * kIoAlignBytes, fault.asked_bytes);
}

}  // namespace

bool FaultScript::Fails() const {
  const auto number = static_cast<int64_t>(calls_.size()) - 1;
  if (plan_.fail_call >= 0 &&
      (number == plan_.fail_call || (plan_.fail_all_after && number > plan_.fail_call))) {
    return true;
  }
  if (!plan_.fail_named.has_value()) return false;
  CallName named = *plan_.fail_named;
  const CallName& call = calls_.back();
  if (plan_.fail_all_after && call.nth > named.nth) named.nth = call.nth;
  return call == named;
}

std::string FaultScript::FileOf(std::string_view path) const {
  // A store has files of one name in a folder of second copies.
  constexpr std::string_view kCopies = "/copy/";
  const size_t at = path.rfind('/') + 1;
  const bool is_copy = path.substr(0, at).ends_with(kCopies);
  std::string name(path.substr(is_copy ? at - kCopies.size() + 1 : at));
  for (size_t i = 0; i < plan_.folders.size(); ++i) {
    if (path.starts_with(plan_.folders[i] + "/")) return std::to_string(i) + "/" + name;
  }
  return name;
}

Fault FaultScript::Next(IoKind kind, std::string_view path, int64_t offset_bytes,
                        int64_t size_bytes) {
  int64_t call = 0;
  bool fails = false;
  {
    const std::lock_guard lock(mutex_);
    call = static_cast<int64_t>(calls_.size());
    CallName name = {kind, FileOf(path), offset_bytes, 0};
    name.nth = num_same_[name]++;
    calls_.push_back(std::move(name));
    fails = Fails();
  }
  Fault fault;
  fault.asked_bytes = fault.moved_bytes = size_bytes;
  const bool is_short = fails && plan_.effect == FaultEffect::kShort;
  if (fails && !is_short) {
    fault.made_up = plan_.effect == FaultEffect::kError ? -plan_.error_number : 0;
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
  if (plan_.again_every > 0 && call % plan_.again_every == 0) fault.made_up = -EAGAIN;
  if (plan_.max_transfer_bytes > 0 && size_bytes > plan_.max_transfer_bytes) {
    CutShort(fault, ShortSectors(rng.Bits64(index + 1), plan_.max_transfer_bytes / kSectorBytes));
  }
  if (is_short) CutShort(fault, size_bytes / 2 / kSectorBytes);
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
  return static_cast<int64_t>(calls_.size());
}

std::vector<CallName> FaultScript::calls() const {
  const std::lock_guard lock(mutex_);
  return calls_;
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
