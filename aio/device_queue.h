// What waits for one device, and who is next.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "forebay/aio/engine.h"

namespace forebay {

// First in, first out within a class; classes in their order, with two exceptions.
//  - A disk that reads and writes at once is slower than one that does them in turn, so write-backs
//    that began go on for `burst_bytes` before prefetches interrupt them. A demand, for which
//    somebody waits, interrupts them at once.
//  - A class that was passed over while `burst_bytes` were started gets a turn of that length,
//    which nothing interrupts. So nothing starves: with four classes, each waits for at most
//    4 * burst_bytes (its own wait to come of age, and the turns of the three others).
// Intrusive: allocates nothing. Thread-compatible.
class DeviceQueue {
 public:
  explicit DeviceQueue(int64_t burst_bytes) : burst_bytes_(burst_bytes) {}

  bool empty() const;
  void Push(IoOp& op);
  // The op that Take would take a piece of. Requires: !empty().
  const IoOp& Peek() const { return *lanes_[static_cast<size_t>(ChooseLane().lane)].first; }

  // A part of an op: `op->buffer` from `offset_bytes` on.
  struct Piece {
    IoOp* op = nullptr;
    int64_t offset_bytes = 0;
    int64_t bytes = 0;
  };
  // The next piece, of at most `max_bytes`; the op leaves the queue with its last one.
  // Requires: !empty().
  Piece Take(int64_t max_bytes);

  // Drops what of `op` was not taken yet. Requires: it is queued here.
  void Remove(IoOp& op);
  // Whether an op that is queued here, in whole or in part, reads or writes any of `memory`.
  bool HasUserOf(std::span<const std::byte> memory) const;
  // Any op of the queue. Requires: !empty().
  IoOp& Any();

 private:
  static constexpr int kNumClasses = 4;
  static constexpr int kDemandLane = static_cast<int>(IoClass::kDemand);
  struct Lane {
    IoOp* first = nullptr;
    IoOp* last = nullptr;
    int64_t waited_bytes = 0;  // started of other lanes while this one had something to do
  };
  struct Choice {
    int lane = -1;
    bool of_age = false;  // by waiting, not by its class
  };
  Choice ChooseLane() const;
  int Oldest() const;
  void PopFirst(Lane& lane);

  const int64_t burst_bytes_;
  std::array<Lane, kNumClasses> lanes_;
  int turn_lane_ = -1;
  int64_t turn_left_bytes_ = 0;
  bool turn_of_age_ = false;
};

}  // namespace forebay
