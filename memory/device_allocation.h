// Memory of a device, charged to a budget: what HostBuffer is for host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"

namespace forebay {

// Not initialised. Move-only; charged to `budget` while it lives.
class DeviceAllocation {
 public:
  DeviceAllocation() = default;
  ~DeviceAllocation() { Free(); }
  DeviceAllocation(DeviceAllocation&& other) noexcept;
  DeviceAllocation& operator=(DeviceAllocation&& other) noexcept;

  // `budget` is the device's; both outlive this. `purpose` is copied. 0 bytes: no memory.
  // OutOfMemoryError that names the purpose: the budget's limit, or what the device has free.
  static absl::StatusOr<DeviceAllocation> Create(MemoryBudget* budget, Device* device,
                                                 std::string_view purpose, int64_t size_bytes);

  // An address on the device.
  std::byte* address() const { return buffer_.As<std::byte>(); }
  int64_t size_bytes() const { return buffer_.size_bytes(); }

 private:
  void Free();

  DeviceBuffer buffer_;
  MemoryBudget* budget_ = nullptr;
  std::string purpose_;
};

}  // namespace forebay
