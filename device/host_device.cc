// The host as a device: its memory is ours, and a stream does its work in the call. So events are
// reached when recorded.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/numbers_in_text.h"
#include "forebay/device/device.h"

namespace forebay {
namespace {

// What cudaMalloc gives, so that alignment does not differ.
constexpr size_t kAlignBytes = 256;

class HostEvent : public Event {
 public:
  explicit HostEvent(bool is_timed) : is_timed_(is_timed) {}
  absl::Status Await() override { return absl::OkStatus(); }
  absl::StatusOr<bool> IsReached() override { return true; }
  absl::StatusOr<double> SecondsSince(Event& first) override {
    auto* const since = dynamic_cast<HostEvent*>(&first);
    FOREBAY_CHECK(since != nullptr && since->reached_.has_value() && reached_.has_value());
    return std::chrono::duration<double>(*reached_ - *since->reached_).count();
  }
  void Reach() {
    if (is_timed_) reached_ = std::chrono::steady_clock::now();
  }

 private:
  const bool is_timed_;
  std::optional<std::chrono::steady_clock::time_point> reached_;
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
  absl::Status CopyOnDevice(void* to, const void* from, int64_t size_bytes) override {
    std::memcpy(to, from, static_cast<size_t>(size_bytes));
    return absl::OkStatus();
  }
  absl::Status Fill(void* to, std::byte value, int64_t size_bytes) override {
    std::memset(to, std::to_integer<int>(value), static_cast<size_t>(size_bytes));
    return absl::OkStatus();
  }
  absl::Status Record(Event& event) override {
    auto* const host_event = dynamic_cast<HostEvent*>(&event);
    FOREBAY_CHECK(host_event != nullptr);
    host_event->Reach();
    return absl::OkStatus();
  }
  absl::Status WaitFor(const Event& event) override {
    FOREBAY_CHECK(dynamic_cast<const HostEvent*>(&event) != nullptr);
    return absl::OkStatus();
  }
  absl::Status Await() override { return absl::OkStatus(); }
  absl::Status Launch(absl::FunctionRef<absl::Status(void*)> launch) override {
    return launch(nullptr);
  }
};

class HostDevice : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kHost; }
  std::string name() const override { return "host"; }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return std::make_unique<HostStream>();
  }
  std::unique_ptr<Stream> AdoptStream(void*) override { return std::make_unique<HostStream>(); }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::make_unique<HostEvent>(/*is_timed=*/false);
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateTimedEvent() override {
    return std::make_unique<HostEvent>(/*is_timed=*/true);
  }
  absl::StatusOr<DeviceMemory> Memory() override {
    constexpr int64_t kMostBytes = 64 << 10;
    FOREBAY_ASSIGN_OR_RETURN(const std::string meminfo, ReadWholeFile("/proc/meminfo", kMostBytes));
    const std::optional<int64_t> free_kib = NumberOf(meminfo, "MemAvailable:");
    const std::optional<int64_t> total_kib = NumberOf(meminfo, "MemTotal:");
    if (!free_kib.has_value() || !total_kib.has_value()) {
      return EnvironmentError("/proc/meminfo does not say MemAvailable and MemTotal");
    }
    return DeviceMemory{*free_kib << 10, *total_kib << 10};
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
