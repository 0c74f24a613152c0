#include "forebay/aio/faults/simulated_disk.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "forebay/aio/disk_calls.h"
#include "forebay/aio/faults/faulty_port.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"

namespace forebay {
namespace {

class SimulatedDisk : public IoPort {
 public:
  explicit SimulatedDisk(const SimulatedDiskOptions& options)
      : options_(options), pause_us_(options.pause_us) {
    FOREBAY_CHECK(options.least_latency_us > 0 &&
                  options.most_latency_us >= options.least_latency_us);
  }

  int depth() const override { return options_.depth; }
  void Wake() override {}
  int64_t NowUs() const override { return now_us_.load(); }
  std::string name() const override { return "simulated disk"; }

  void Queue(const Call& call) override {
    const auto range =
        static_cast<uint64_t>(options_.most_latency_us - options_.least_latency_us + 1);
    const auto latency_us =
        options_.least_latency_us +
        static_cast<int64_t>(CounterRng(options_.seed).Below(num_calls_++, range));
    in_flight_.push_back({call, NowUs() + latency_us});
  }

  void Cancel(uint32_t tag) override {
    const auto found = std::ranges::find_if(
        in_flight_, [tag](const InFlight& flight) { return flight.call.tag == tag; });
    if (found != in_flight_.end()) found->cancelled = true;
  }

  int Run(std::span<Result> results, int64_t timeout_us) override {
    const auto next = std::ranges::min_element(in_flight_, {}, &InFlight::done_us);
    const bool none = next == in_flight_.end() || results.empty();
    const int64_t deadline_us = timeout_us < 0 ? INT64_MAX : NowUs() + timeout_us;
    if (none || next->done_us > deadline_us) {
      // With nothing to wait for, time passes all the same.
      if (timeout_us > 0) now_us_ = deadline_us + std::exchange(pause_us_, 0);
      return 0;
    }
    now_us_ = std::max(NowUs(), next->done_us);
    const InFlight done = *next;
    in_flight_.erase(next);
    results[0] = {done.call.tag, done.cancelled ? -ECANCELED : Perform(done.call)};
    return 1;
  }

 private:
  struct InFlight {
    Call call;
    int64_t done_us = 0;
    bool cancelled = false;
  };

  int64_t Perform(const Call& call) {
    if (call.kind == IoKind::kFlush) return system_.Flush(call.fd, call.path);
    return system_.Transfer(call.kind, call.fd, call.path, call.buffer, call.offset_bytes);
  }

  const SimulatedDiskOptions options_;
  SystemDiskCalls system_;
  std::atomic<int64_t> now_us_ = 1;
  uint64_t num_calls_ = 0;
  int64_t pause_us_ = 0;  // still to come
  std::vector<InFlight> in_flight_;
};

}  // namespace

std::unique_ptr<IoPort> MakeSimulatedDisk(const SimulatedDiskOptions& options) {
  return std::make_unique<SimulatedDisk>(options);
}

std::unique_ptr<Engine> CreateSimulatedEngine(const EngineOptions& options,
                                              const SimulatedDiskOptions& disk,
                                              std::shared_ptr<FaultScript> script) {
  if (script == nullptr) script = std::make_shared<FaultScript>(FaultPlan{});
  auto engine = CreateRingEngine(options, RingDrive::kWaiter,
                                 [&]() -> absl::StatusOr<std::unique_ptr<IoPort>> {
                                   return MakeFaultyPort(MakeSimulatedDisk(disk), script);
                                 });
  FOREBAY_CHECK(engine.ok());
  return *std::move(engine);
}

}  // namespace forebay
