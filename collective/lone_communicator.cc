// One rank: every sum and every gathering is there already.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/collective/communicator.h"
#include "forebay/collective/host_name.h"

namespace forebay {
namespace {

// Device memory is its own sum too, but only where it is ready.
class LoneCommunicator : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& host(int) const override { return host_; }
  const std::string& device_path() const override { return device_path_; }

  CollectiveTicket StartAllReduce(const CollectiveMemory& values) override { return Start(values); }
  CollectiveTicket StartReduceScatter(const CollectiveMemory& values,
                                      std::span<const int64_t>) override {
    return Start(values);
  }
  CollectiveTicket StartAllGather(const CollectiveMemory& bytes,
                                  std::span<const int64_t>) override {
    return Start(bytes);
  }
  CollectiveTicket StartBroadcast(const CollectiveMemory& bytes, int root) override {
    FOREBAY_CHECK(root == 0);
    return Start(bytes);
  }

  absl::StatusOr<bool> IsComplete(CollectiveTicket ticket) override {
    FOREBAY_RETURN_IF_ERROR(status_);
    for (; num_complete_ < ticket.number; ++num_complete_) {
      Event* const ready = Ready(num_complete_);
      if (ready == nullptr) continue;
      const absl::StatusOr<bool> is_reached = ready->IsReached();
      if (!is_reached.ok()) return status_ = is_reached.status();
      if (!*is_reached) return false;
    }
    return true;
  }
  absl::Status Await(CollectiveTicket ticket) override {
    for (; status_.ok() && num_complete_ < ticket.number; ++num_complete_) {
      if (Event* const ready = Ready(num_complete_)) status_ = ready->Await();
    }
    return status_;
  }
  absl::Status Barrier() override { return Await({num_started_}); }
  absl::StatusOr<std::vector<std::string>> GatherRecords(std::string_view own) override {
    FOREBAY_RETURN_IF_ERROR(Barrier());
    return std::vector<std::string>{std::string(own)};
  }
  void Abort(const absl::Status&) override {}
  CollectiveTraffic traffic() const override { return {.num_calls = num_started_}; }

 private:
  CollectiveTicket Start(const CollectiveMemory& memory) {
    if (num_started_ - num_complete_ == kMaxPendingCollectives) {
      Await({num_complete_ + 1}).IgnoreError();  // every later call returns it
    }
    Ready(num_started_) = memory.ready;
    return {++num_started_};
  }
  Event*& Ready(int64_t operation) { return ready_[operation % kMaxPendingCollectives]; }

  const std::string host_ = HostName();
  const std::string device_path_ = "not at all, with one rank";
  std::array<Event*, kMaxPendingCollectives> ready_ = {};
  int64_t num_started_ = 0;
  int64_t num_complete_ = 0;
  absl::Status status_;
};

}  // namespace

std::unique_ptr<Communicator> Communicator::CreateAlone() {
  return std::make_unique<LoneCommunicator>();
}

}  // namespace forebay
