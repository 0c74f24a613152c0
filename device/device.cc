#include "forebay/device/device.h"

#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    Reset();
    device_ = std::exchange(other.device_, nullptr);
    address_ = std::exchange(other.address_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

void DeviceBuffer::Reset() {
  if (device_ != nullptr) device_->FreeBytes(address_);
  device_ = nullptr;
  address_ = nullptr;
  size_bytes_ = 0;
}

PinnedRegion& PinnedRegion::operator=(PinnedRegion&& other) noexcept {
  if (this != &other) {
    Reset();
    device_ = std::exchange(other.device_, nullptr);
    memory_ = std::exchange(other.memory_, {});
  }
  return *this;
}

void PinnedRegion::Reset() {
  if (device_ != nullptr) device_->UnpinBytes(memory_);
  device_ = nullptr;
  memory_ = {};
}

absl::StatusOr<DeviceBuffer> Device::Allocate(int64_t size_bytes) {
  FOREBAY_CHECK(size_bytes > 0);
  FOREBAY_ASSIGN_OR_RETURN(void* const address, AllocateBytes(size_bytes));
  return DeviceBuffer(this, address, size_bytes);
}

absl::StatusOr<PinnedRegion> Device::Pin(std::span<std::byte> memory) {
  FOREBAY_CHECK(!memory.empty());
  FOREBAY_RETURN_IF_ERROR(PinBytes(memory));
  return PinnedRegion(this, memory);
}

DeviceChoice ChooseDevice() {
  absl::StatusOr<std::unique_ptr<Device>> cuda = CreateCudaDevice(0);
  if (cuda.ok()) return {*std::move(cuda), ""};
  return {CreateHostDevice(), MessageOf(cuda.status())};
}

}  // namespace forebay
