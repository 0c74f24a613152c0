// Where activations wait for their backward pass that are kept (OperationKind::kKeep) and do not
// stay in memory: kSpill writes them out, kFetch reads them back.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"

namespace forebay {

// The activations that a pass keeps are a stack, as the backward pass uses the newest first. A
// place is a number in it, from 0 on: that of the layer, unless segments leave layers out
// (Chain::segment_layers). The activation at place p lies in buffer p modulo the number of buffers,
// before it is written as after it was read: ChainSchedule has it so that no other needs the buffer
// then. Owned by one thread.
class ActivationStorage {
 public:
  virtual ~ActivationStorage() = default;

  // All buffers, of one size, one behind the other. Whoever computes fills and reads them.
  virtual std::span<std::byte> buffers() const = 0;
  virtual int num_buffers() const = 0;

  // Starts writing the activation at a place. Its buffer may be read meanwhile. Requires: the place
  // is one of those that the plan spills, and Await of whatever was under way in its buffer.
  virtual void StartWrite(int place) = 0;
  // Starts reading what was written in the same pass. Requires: the same, and it is read once.
  virtual void StartRead(int place) = 0;
  // Waits for the place's transfer, if one is under way: then its buffer is free after a write, and
  // has the activation after a read. A place < 0 has none. StorageError; CorruptError when what was
  // read is not what was written.
  virtual absl::Status Await(int place) = 0;
  // Waits for all that is under way, and forgets what was written.
  virtual void Abandon() = 0;
};

}  // namespace forebay
