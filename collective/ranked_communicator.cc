// Several ranks: a queue of operations and the one thread that does them, in the order of their
// start.
#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/process/start_thread.h"
#include "forebay/collective/collective_rounds.h"
#include "forebay/collective/communicator.h"
#include "forebay/collective/transport.h"

namespace forebay {
namespace {

class RankedCommunicator : public Communicator {
 public:
  RankedCommunicator(std::unique_ptr<Transport> transport,
                     std::unique_ptr<DeviceTransport> device_transport,
                     std::string_view device_path)
      : transport_(std::move(transport)),
        device_transport_(std::move(device_transport)),
        device_path_(device_path) {
    // Offsets are copied: those of the caller may be gone when the operation runs.
    for (Slot& slot : slots_) slot.offsets.resize(static_cast<size_t>(size()) + 1);
  }
  absl::Status Begin(const CommunicatorOptions& options) {
    FOREBAY_ASSIGN_OR_RETURN(
        rounds_, CollectiveRounds::Create(*transport_, device_transport_.get(), options));
    FOREBAY_ASSIGN_OR_RETURN(worker_, StartThread("exchange between ranks", [this] { Work(); }));
    return absl::OkStatus();
  }
  ~RankedCommunicator() override {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
    }
    changed_.notify_all();
    if (worker_.joinable()) worker_.join();
    transport_.reset();  // before the memory of rounds_, which it may still send from
  }

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  const std::string& host(int rank) const override { return transport_->host(rank); }
  const std::string& device_path() const override { return device_path_; }
  std::string Warning() const override { return transport_->Warning(); }

  CollectiveTicket StartAllReduce(const CollectiveMemory& values) override {
    FOREBAY_CHECK(values.size_bytes % static_cast<int64_t>(sizeof(float)) == 0);
    FOREBAY_CHECK(values.wire == DType::kF32 || !values.on_device);
    return Start({.kind = CollectiveKind::kAllReduce, .memory = values});
  }
  CollectiveTicket StartReduceScatter(const CollectiveMemory& values,
                                      std::span<const int64_t> offsets) override {
    FOREBAY_CHECK(values.wire == DType::kF32 || !values.on_device);
    return Start({.kind = CollectiveKind::kReduceScatter,
                  .memory = values,
                  .offsets = offsets,
                  .unit_bytes = sizeof(float)});
  }
  CollectiveTicket StartAllGather(const CollectiveMemory& bytes,
                                  std::span<const int64_t> offsets) override {
    return Start({.kind = CollectiveKind::kAllGather, .memory = bytes, .offsets = offsets});
  }
  CollectiveTicket StartBroadcast(const CollectiveMemory& bytes, int root) override {
    FOREBAY_CHECK(root >= 0 && root < size());
    return Start({.kind = CollectiveKind::kBroadcast, .memory = bytes, .root = root});
  }

  absl::StatusOr<bool> IsComplete(CollectiveTicket ticket) override {
    const std::lock_guard lock(mutex_);
    if (num_complete_ >= ticket.number) return true;
    if (has_ended_) return status_;
    return false;
  }
  absl::Status Await(CollectiveTicket ticket) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return num_complete_ >= ticket.number || has_ended_; });
    return num_complete_ >= ticket.number ? absl::OkStatus() : status_;
  }
  absl::Status Barrier() override { return Await(Start({.kind = CollectiveKind::kBarrier})); }
  absl::StatusOr<std::vector<std::string>> GatherRecords(std::string_view own) override {
    FOREBAY_CHECK(static_cast<int64_t>(own.size()) <= kMaxRecordBytes);
    std::vector<std::string> records(static_cast<size_t>(size()));
    FOREBAY_RETURN_IF_ERROR(
        Await(Start({.kind = CollectiveKind::kRecords, .record = own, .records = &records})));
    return records;
  }

  void Abort(const absl::Status& why) override {
    FOREBAY_CHECK(!why.ok());
    {
      const std::lock_guard lock(mutex_);
      Fail({rank(), fmt::format("stopped: {}", MessageOf(why)), ExitCodeOf(why)});
    }
    changed_.notify_all();
  }

  CollectiveTraffic traffic() const override { return rounds_->traffic(); }

 private:
  struct Slot {
    CollectiveOperation operation;
    std::vector<int64_t> offsets;
  };

  CollectiveTicket Start(const CollectiveOperation& operation);
  void CheckOffsets(const CollectiveOperation& operation) const;
  Slot& SlotOf(int64_t number) {
    return slots_[static_cast<size_t>(number % kMaxPendingCollectives)];
  }

  void Work();
  // The next operation when there is one; nullptr: nothing more is to be done.
  const CollectiveOperation* NextOperation();
  // The first failure counts. Requires: mutex_ is held.
  void Fail(const RankFailure& failure);
  absl::Status StatusOf(const RankFailure& failure) const;

  std::unique_ptr<Transport> transport_;
  const std::unique_ptr<DeviceTransport> device_transport_;
  const std::string device_path_;
  std::unique_ptr<CollectiveRounds> rounds_;
  std::thread worker_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Slot, kMaxPendingCollectives> slots_;
  int64_t num_started_ = 0;
  int64_t num_complete_ = 0;
  bool is_closing_ = false;
  MaybeFailure failure_;
  absl::Status status_;  // which says it; of every operation that is not complete
  std::atomic<bool> stop_{false};
  bool has_ended_ = false;  // no operation's memory is touched any more
};

CollectiveTicket RankedCommunicator::Start(const CollectiveOperation& operation) {
  CheckOffsets(operation);
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return num_started_ - num_complete_ < kMaxPendingCollectives || has_ended_; });
  if (has_ended_) return {++num_started_};
  Slot& slot = SlotOf(num_started_);
  slot.operation = operation;
  if (!operation.offsets.empty()) {
    std::copy(operation.offsets.begin(), operation.offsets.end(), slot.offsets.begin());
    slot.operation.offsets = slot.offsets;
  }
  ++num_started_;
  lock.unlock();
  changed_.notify_all();
  return {num_started_};
}

void RankedCommunicator::CheckOffsets(const CollectiveOperation& operation) const {
  const std::span<const int64_t> offsets = operation.offsets;
  if (operation.kind != CollectiveKind::kReduceScatter &&
      operation.kind != CollectiveKind::kAllGather) {
    return;
  }
  FOREBAY_CHECK(std::ssize(offsets) == size() + 1);
  FOREBAY_CHECK(std::is_sorted(offsets.begin(), offsets.end()));
  FOREBAY_CHECK(offsets.front() == 0);
  FOREBAY_CHECK(offsets.back() * operation.unit_bytes == operation.memory.size_bytes);
}

const CollectiveOperation* RankedCommunicator::NextOperation() {
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return num_started_ > num_complete_ || is_closing_ || failure_.has_value(); });
  if (num_started_ == num_complete_ || failure_.has_value()) return nullptr;
  return &SlotOf(num_complete_).operation;
}

void RankedCommunicator::Work() {
  while (const CollectiveOperation* const operation = NextOperation()) {
    const MaybeFailure failure = rounds_->Run(*operation, stop_);
    {
      const std::lock_guard lock(mutex_);
      if (failure.has_value()) {
        Fail(*failure);
      } else {
        ++num_complete_;
      }
    }
    changed_.notify_all();
  }
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
  }
  changed_.notify_all();
  if (failure_.has_value()) transport_->Announce(*failure_);
}

void RankedCommunicator::Fail(const RankFailure& failure) {
  if (failure_.has_value()) return;
  failure_ = failure;
  status_ = StatusOf(failure);
  stop_ = true;
}

absl::Status RankedCommunicator::StatusOf(const RankFailure& failure) const {
  const std::string_view whose = failure.rank == rank() ? ", which is this one," : "";
  return ErrorOf(failure.code, fmt::format("rank {} of {} on {}{} {}", failure.rank, size(),
                                           host(failure.rank), whose, failure.reason));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Create(
    std::unique_ptr<Transport> transport, std::unique_ptr<DeviceTransport> device_transport,
    const CommunicatorOptions& options, std::string_view device_path) {
  auto communicator = std::make_unique<RankedCommunicator>(
      std::move(transport), std::move(device_transport), device_path);
  FOREBAY_RETURN_IF_ERROR(communicator->Begin(options));
  return communicator;
}

}  // namespace forebay
