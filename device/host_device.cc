// The host as a device: its memory is ours, and a stream does its work in the call. So events are
// reached when recorded.
#include <cstdlib>
#include <cstring>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/device/device.h"

namespace forebay {
namespace {

// What cudaMalloc gives, so that alignment does not differ.
constexpr size_t kAlignBytes = 256;

class HostEvent : public Event {
 public:
  absl::Status Await() override { return absl::OkStatus(); }
};

class HostStream : public Stream {
 public:
  absl::Status CopyToDevice(void* to, std::span<const std::byte> from) override {
    std::memcpy(to, from.data(), from.size());
    return absl::OkStatus();
  }
  absl::Status CopyToHost(std::span<std::byte> to, const void* from) override {
    std::memcpy(to.data(), from, to.size());
    return absl::OkStatus();
  }
  absl::Status Fill(void* to, std::byte value, int64_t size_bytes) override {
    std::memset(to, std::to_integer<int>(value), static_cast<size_t>(size_bytes));
    return absl::OkStatus();
  }
  absl::Status Record(Event& event) override {
    FOREBAY_CHECK(dynamic_cast<HostEvent*>(&event) != nullptr);
    return absl::OkStatus();
  }
  absl::Status WaitFor(const Event& event) override {
    FOREBAY_CHECK(dynamic_cast<const HostEvent*>(&event) != nullptr);
    return absl::OkStatus();
  }
  absl::Status Await() override { return absl::OkStatus(); }
  void* native_handle() const override { return nullptr; }
};

class HostDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string name() const override { return "host"; }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::make_unique<HostStream>();
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::make_unique<HostEvent>();
  }

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t size_bytes) override {
    void* address = nullptr;
    if (::posix_memalign(&address, kAlignBytes, static_cast<size_t>(size_bytes)) != 0) {
      return OutOfMemoryError(fmt::format(
          "{} of host memory could not be allocated. Close other programs, or lower --ram",
          FormatBytes(size_bytes)));
    }
    return address;
  }
  void FreeBytes(void* address) override { std::free(address); }
  // Nothing to do: no DMA will touch it.
  absl::Status PinBytes(std::span<std::byte>) override { return absl::OkStatus(); }
  void UnpinBytes(std::span<std::byte>) override {}
};

}  // namespace

std::unique_ptr<Device> CreateHostDevice() {
  return std::make_unique<HostDevice>();
}

}  // namespace forebay
