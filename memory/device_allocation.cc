#include "forebay/memory/device_allocation.h"

#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

DeviceAllocation::DeviceAllocation(DeviceAllocation&& other) noexcept
    : buffer_(std::move(other.buffer_)),
      budget_(std::exchange(other.budget_, nullptr)),
      purpose_(std::move(other.purpose_)) {}

DeviceAllocation& DeviceAllocation::operator=(DeviceAllocation&& other) noexcept {
  if (this != &other) {
    Free();
    buffer_ = std::move(other.buffer_);
    budget_ = std::exchange(other.budget_, nullptr);
    purpose_ = std::move(other.purpose_);
  }
  return *this;
}

void DeviceAllocation::Free() {
  if (budget_ == nullptr) return;
  const int64_t size_bytes = buffer_.size_bytes();
  buffer_.Reset();
  std::exchange(budget_, nullptr)->Release(purpose_, size_bytes);
}

absl::StatusOr<DeviceAllocation> DeviceAllocation::Create(MemoryBudget* budget, Device* device,
                                                          std::string_view purpose,
                                                          int64_t size_bytes) {
  DeviceAllocation allocation;
  if (size_bytes == 0) return allocation;
  FOREBAY_RETURN_IF_ERROR(budget->Charge(purpose, size_bytes));
  absl::StatusOr<DeviceBuffer> buffer = device->Allocate(size_bytes);
  if (!buffer.ok()) {
    budget->Release(purpose, size_bytes);
    return Annotate(buffer.status(), purpose);
  }
  allocation.buffer_ = *std::move(buffer);
  allocation.budget_ = budget;
  allocation.purpose_ = purpose;
  return allocation;
}

}  // namespace forebay
