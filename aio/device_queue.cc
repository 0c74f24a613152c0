#include "forebay/aio/device_queue.h"

#include <algorithm>

#include "forebay/aio/transfer.h"
#include "forebay/base/check.h"

namespace forebay {

bool DeviceQueue::empty() const {
  return std::ranges::all_of(lanes_, [](const Lane& lane) { return lane.first == nullptr; });
}

void DeviceQueue::Push(IoOp& op) {
  Lane& lane = lanes_[static_cast<size_t>(op.io_class)];
  op.next_ = nullptr;
  op.queued_ = true;
  (lane.first == nullptr ? lane.first : lane.last->next_) = &op;
  lane.last = &op;
}

// The lane that is of age and waited longest; -1: none.
int DeviceQueue::Oldest() const {
  int oldest = -1;
  for (int i = 0; i < kNumClasses; ++i) {
    const Lane& lane = lanes_[i];
    if (lane.first == nullptr || lane.waited_bytes < burst_bytes_) continue;
    if (oldest < 0 || lane.waited_bytes > lanes_[oldest].waited_bytes) oldest = i;
  }
  return oldest;
}

DeviceQueue::Choice DeviceQueue::ChooseLane() const {
  int best = 0;
  while (best < kNumClasses - 1 && lanes_[best].first == nullptr) ++best;
  const bool turn_goes_on =
      turn_lane_ >= 0 && turn_left_bytes_ > 0 && lanes_[turn_lane_].first != nullptr;
  if (turn_goes_on && (turn_of_age_ || best != kDemandLane)) return {turn_lane_, turn_of_age_};
  const int oldest = Oldest();
  if (oldest >= 0) return {oldest, true};
  return {best, false};
}

DeviceQueue::Piece DeviceQueue::Take(int64_t max_bytes) {
  const Choice choice = ChooseLane();
  Lane& lane = lanes_[choice.lane];
  FOREBAY_CHECK(lane.first != nullptr);
  if (choice.lane != turn_lane_ || turn_left_bytes_ <= 0 || choice.of_age != turn_of_age_) {
    turn_lane_ = choice.lane;
    turn_left_bytes_ = burst_bytes_;
    turn_of_age_ = choice.of_age;
  }
  IoOp& op = *lane.first;
  const Piece piece = {&op, op.taken_bytes_, std::min(max_bytes, op.left_bytes())};
  op.taken_bytes_ += piece.bytes;
  if (op.left_bytes() == 0) PopFirst(lane);
  turn_left_bytes_ -= piece.bytes;
  lane.waited_bytes = 0;
  for (Lane& other : lanes_) {
    if (&other == &lane) continue;
    other.waited_bytes = other.first == nullptr ? 0 : other.waited_bytes + piece.bytes;
  }
  return piece;
}

void DeviceQueue::PopFirst(Lane& lane) {
  IoOp& op = *lane.first;
  lane.first = op.next_;
  if (lane.first == nullptr) lane.last = nullptr;
  op.next_ = nullptr;
  op.queued_ = false;
}

void DeviceQueue::Remove(IoOp& op) {
  Lane& lane = lanes_[static_cast<size_t>(op.io_class)];
  if (lane.first == &op) return PopFirst(lane);
  IoOp* before = lane.first;
  while (before != nullptr && before->next_ != &op) before = before->next_;
  FOREBAY_CHECK(before != nullptr);
  before->next_ = op.next_;
  if (lane.last == &op) lane.last = before;
  op.next_ = nullptr;
  op.queued_ = false;
}

bool DeviceQueue::HasUserOf(std::span<const std::byte> memory) const {
  for (const Lane& lane : lanes_) {
    for (const IoOp* op = lane.first; op != nullptr; op = op->next_) {
      if (Overlap(op->buffer, memory)) return true;
    }
  }
  return false;
}

IoOp& DeviceQueue::Any() {
  for (const Lane& lane : lanes_) {
    if (lane.first != nullptr) return *lane.first;
  }
  FOREBAY_CHECK(false);
  return *lanes_[0].first;
}

}  // namespace forebay
