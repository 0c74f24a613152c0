#include "forebay/aio/faults/faulty_port.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

namespace forebay {
namespace {

class FaultyPort : public IoPort {
 public:
  FaultyPort(std::unique_ptr<IoPort> inner, std::shared_ptr<FaultScript> script)
      : inner_(std::move(inner)),
        script_(std::move(script)),
        calls_(static_cast<size_t>(inner_->depth())) {}

  int depth() const override { return inner_->depth(); }
  void Wake() override { inner_->Wake(); }
  int RegisterFile(int fd) override { return inner_->RegisterFile(fd); }
  void UnregisterFile(int registered) override { inner_->UnregisterFile(registered); }
  bool registers_buffers() const override { return inner_->registers_buffers(); }
  int RegisterBuffers(std::span<std::byte> memory) override {
    return inner_->RegisterBuffers(memory);
  }
  void UnregisterBuffers(std::span<std::byte> memory) override {
    inner_->UnregisterBuffers(memory);
  }
  int64_t NowUs() const override { return inner_->NowUs(); }
  void AbandonCalls() override { inner_->AbandonCalls(); }
  std::string name() const override { return inner_->name(); }

  void Queue(const Call& call) override {
    Pending& pending = calls_[call.tag];
    pending = {call,
               script_->Next(call.kind, call.path, call.offset_bytes,
                             static_cast<int64_t>(call.buffer.size())),
               {},
               false};
    const Fault& fault = pending.fault;
    if (fault.stall) {
      pending.stalled = true;
    } else if (fault.made_up.has_value()) {
      made_up_.push_back({call.tag, *fault.made_up});
    } else {
      Pass(pending);
    }
  }

  void Cancel(uint32_t tag) override {
    if (!calls_[tag].stalled) return inner_->Cancel(tag);
    if (!script_->plan().stall_returns) return;
    calls_[tag].stalled = false;
    made_up_.push_back({tag, -ECANCELED});
  }

  void Submit() override { inner_->Submit(); }

  int Run(std::span<Result> results, int64_t timeout_us) override {
    if (script_->released()) {
      for (Pending& pending : calls_) {
        if (std::exchange(pending.stalled, false)) Pass(pending);
      }
    }
    size_t count = 0;
    while (!made_up_.empty() && count < results.size()) {
      results[count++] = made_up_.back();
      made_up_.pop_back();
    }
    const auto rest = results.subspan(count);
    const int num_inner = inner_->Run(rest, count > 0 ? 0 : timeout_us);
    for (Result& result : rest.first(static_cast<size_t>(num_inner))) Alter(result);
    return static_cast<int>(count) + num_inner;
  }

 private:
  struct Pending {
    Call call;
    Fault fault;
    std::vector<std::byte> flipped;
    bool stalled = false;
  };

  // Asks the disk for as much of the call as the fault leaves.
  void Pass(Pending& pending) {
    Call call = pending.call;
    const auto asked = static_cast<size_t>(pending.fault.asked_bytes);
    call.buffer = call.buffer.first(std::min(call.buffer.size(), asked));
    if (pending.fault.flip && call.kind == IoKind::kWrite) {
      // Direct transfers need aligned memory, so the bit is flipped in place until the result.
      pending.flipped = FaultScript::Flipped(pending.fault, call.buffer);
      std::swap_ranges(pending.flipped.begin(), pending.flipped.end(), call.buffer.begin());
    }
    pending.call = call;
    script_->CountInFlight(call.kind, static_cast<int64_t>(call.buffer.size()));
    inner_->Queue(call);
  }

  void Alter(Result& result) {
    Pending& pending = calls_[result.tag];
    const Call& call = pending.call;
    script_->CountInFlight(call.kind, -static_cast<int64_t>(call.buffer.size()));
    if (pending.fault.flip && call.kind == IoKind::kRead) {
      std::ranges::copy(FaultScript::Flipped(pending.fault, call.buffer), call.buffer.begin());
    } else if (pending.fault.flip && call.kind == IoKind::kWrite) {
      std::swap_ranges(pending.flipped.begin(), pending.flipped.end(), call.buffer.begin());
    }
    if (script_->plan().record && call.kind == IoKind::kWrite && result.result > 0) {
      script_->RecordWrite(call.path, call.offset_bytes,
                           call.buffer.first(static_cast<size_t>(result.result)));
    }
    if (script_->plan().record && call.kind == IoKind::kFlush && result.result == 0) {
      script_->RecordFlush(call.path);
    }
    if (call.kind != IoKind::kFlush) {
      result.result = std::min(result.result, pending.fault.moved_bytes);
    }
  }

  const std::unique_ptr<IoPort> inner_;
  const std::shared_ptr<FaultScript> script_;
  std::vector<Pending> calls_;  // by tag
  std::vector<Result> made_up_;
};

}  // namespace

std::unique_ptr<IoPort> MakeFaultyPort(std::unique_ptr<IoPort> inner,
                                       std::shared_ptr<FaultScript> script) {
  return std::make_unique<FaultyPort>(std::move(inner), std::move(script));
}

}  // namespace forebay
