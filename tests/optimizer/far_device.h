// A device whose memory the host cannot touch and whose streams are as late as they may be: work is
// done when somebody waits for it. What forgets an event, or takes an address for the host's, does
// not get away with it.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/device.h"

namespace forebay {

// The work of a stream, done and to come.
struct FarWork {
  std::vector<std::function<absl::Status()>> pending;
  size_t num_done = 0;

  absl::Status RunUntil(size_t end) {
    while (num_done < end) FOREBAY_RETURN_IF_ERROR(pending[num_done++]());
    return absl::OkStatus();
  }
};

class FarEvent : public Event {
 public:
  absl::Status Await() override { return work == nullptr ? absl::OkStatus() : work->RunUntil(end); }
  absl::StatusOr<bool> IsReached() override { return work == nullptr || work->num_done >= end; }
  absl::StatusOr<double> SecondsSince(Event& /*first*/) override { return 0.0; }
  std::shared_ptr<FarWork> work;
  size_t end = 0;
};

class FarDevice : public Device {
 public:
  ~FarDevice() override { FOREBAY_CHECK(storage_.empty()); }
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string name() const override { return "far"; }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  std::unique_ptr<Stream> AdoptStream(void*) override { return nullptr; }
  absl::StatusOr<std::unique_ptr<Event>> CreateEvent() override {
    return std::make_unique<FarEvent>();
  }
  absl::StatusOr<std::unique_ptr<Event>> CreateTimedEvent() override { return CreateEvent(); }
  absl::StatusOr<DeviceMemory> Memory() override { return DeviceMemory(); }
  // Where the bytes behind an address of this device are.
  std::byte* Behind(const void* address) {
    const auto* const at = static_cast<const std::byte*>(address);
    auto storage = storage_.upper_bound(at);
    FOREBAY_CHECK(storage != storage_.begin());
    --storage;
    FOREBAY_CHECK(at < storage->first + storage->second.size());
    return storage->second.data() + (at - storage->first);
  }
  bool fails = false;

 protected:
  absl::StatusOr<void*> AllocateBytes(int64_t size_bytes) override {
    void* const address = ::mmap(nullptr, static_cast<size_t>(size_bytes), PROT_NONE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FOREBAY_CHECK(address != MAP_FAILED);
    storage_[static_cast<std::byte*>(address)].resize(static_cast<size_t>(size_bytes));
    return address;
  }
  void FreeBytes(void* address) override {
    const auto storage = storage_.find(static_cast<std::byte*>(address));
    FOREBAY_CHECK(storage != storage_.end());
    ::munmap(address, storage->second.size());
    storage_.erase(storage);
  }
  absl::Status PinBytes(std::span<std::byte>) override { return absl::OkStatus(); }
  void UnpinBytes(std::span<std::byte>) override {}

 private:
  std::map<const std::byte*, std::vector<std::byte>> storage_;
};

class FarStream : public Stream {
 public:
  explicit FarStream(FarDevice* device) : device_(*device) {}
  ~FarStream() override { Await().IgnoreError(); }
  absl::Status CopyToDevice(void* to, std::span<const std::byte> from) override {
    return Do([=, this] { std::memcpy(device_.Behind(to), from.data(), from.size()); });
  }
  absl::Status CopyToHost(std::span<std::byte> to, const void* from) override {
    return Do([=, this] { std::memcpy(to.data(), device_.Behind(from), to.size()); });
  }
  absl::Status CopyOnDevice(void* to, const void* from, int64_t size_bytes) override {
    return Do([=, this] {
      std::memcpy(device_.Behind(to), device_.Behind(from), static_cast<size_t>(size_bytes));
    });
  }
  absl::Status Fill(void* to, std::byte value, int64_t size_bytes) override {
    return Do([=, this] {
      std::memset(device_.Behind(to), std::to_integer<int>(value), static_cast<size_t>(size_bytes));
    });
  }
  absl::Status Record(Event& event) override {
    auto& far = dynamic_cast<FarEvent&>(event);
    far.work = work_;
    far.end = work_->pending.size();
    return absl::OkStatus();
  }
  absl::Status WaitFor(const Event& event) override {
    const auto& far = dynamic_cast<const FarEvent&>(event);
    work_->pending.push_back([work = far.work, end = far.end] { return work->RunUntil(end); });
    return absl::OkStatus();
  }
  absl::Status Await() override { return work_->RunUntil(work_->pending.size()); }
  absl::Status Launch(absl::FunctionRef<absl::Status(void* native_stream)> launch) override {
    FOREBAY_RETURN_IF_ERROR(Await());
    return launch(nullptr);
  }

 private:
  absl::Status Do(std::function<void()> work) {
    work_->pending.push_back([this, work = std::move(work)]() -> absl::Status {
      if (device_.fails) return EnvironmentError("the device failed");
      work();
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }

  FarDevice& device_;
  const std::shared_ptr<FarWork> work_ = std::make_shared<FarWork>();
};

inline absl::StatusOr<std::unique_ptr<Stream>> FarDevice::CreateStream() {
  return std::make_unique<FarStream>(this);
}

}  // namespace forebay
