// The memory that the transfers of a store go from and to: a HostBuffer on the NUMA node of the
// store's disks that is registered with its engine for exactly as long as it is mapped.
//
// A buffer has one owner, which knows what is in it and when it is free again: the swapper each
// layer of its window, the optimizer its ring of staging tiles. Nobody takes buffers from others,
// so nobody waits for others; each owner proves beside its buffers that waiting for transfers ends
// (docs/design/memory.md, "Back-pressure").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/aio/buffer_registration.h"
#include "forebay/device/device.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

// Move-only. The end of a buffer has a fixed order: whoever started transfers has waited for them
// (checked for those under way), the registration ends, the memory is unmapped.
class TransferBuffer {
 public:
  TransferBuffer() = default;
  TransferBuffer(TransferBuffer&&) noexcept = default;
  TransferBuffer& operator=(TransferBuffer&& other) noexcept;

  // `unit_bytes`: transfers stay between two multiples of it, so that each lies in one registered
  // piece (HostBuffer::IoPieces). `store` and its engine, and `budget`, must outlive the buffer. 0
  // bytes: an empty buffer. `device`: pins the memory for its copies too, so that both DMAs go from
  // and to the same pages; must outlive the buffer. OutOfMemoryError. A refused registration is no
  // error; the engine's RegistrationNote tells.
  static absl::StatusOr<TransferBuffer> Create(TensorStore* store, MemoryBudget* budget,
                                               std::string_view purpose, int64_t size_bytes,
                                               int64_t unit_bytes, Device* device = nullptr);

  std::span<std::byte> bytes() const { return memory_.bytes(); }
  bool pinned() const { return memory_.pinned(); }

 private:
  HostBuffer memory_;
  BufferRegistration registration_;  // behind the memory, so that it ends first
};

}  // namespace forebay
