#include <sched.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "forebay/device/emulation/runtime.h"
#include "forebay/device/emulation/sanitizers.h"

namespace forebay::emulation {
namespace {

std::atomic_flag is_locked;
void* caller = nullptr;

// ---- Stacks of operations. TSan knows a stack by its addresses alone: an operation that ran where
// the frames of the program were would race with them. One runs at a time.

Context program;
const std::function<void()>* current_run = nullptr;
Fiber* current_stack = nullptr;

void RunThoseThatCome() {
  Arrived(program);
  while (true) {
    (*current_run)();
    Switch(*current_stack, program, program);
  }
}

void RunOn(Fiber* stack, const std::function<void()>& run) {
  if (stack == nullptr) return run();
  current_run = &run;
  current_stack = stack;
  Switch(program, *stack, program);
}

}  // namespace

Locked::Locked() {
  while (is_locked.test_and_set(std::memory_order_acquire)) sched_yield();
  caller = TsanSelf();
  TsanBecome(TsanDriver());
}

Locked::~Locked() {
  TsanBecome(caller);
  is_locked.clear(std::memory_order_release);
}

void* Caller() {
  return caller;
}

Gpu& TheGpu() {
  static auto* const gpu = new Gpu;
  return *gpu;
}

Counters CountersNow() {
  const Locked locked;
  return TheGpu().counters;
}

void CountGuess() {
  const Locked locked;
  ++TheGpu().counters.num_guesses;
}

// ---- Streams -----------------------------------------------------------------------------------

cudaStream_t Streams::Create(int gpu) {
  auto* const stream = new CUstream_st;
  stream->gpu = gpu;
  if (HasTsan()) {
    const TsanAs as(Caller());
    stream->tsan = __tsan_create_fiber(0);
    __tsan_set_fiber_name(stream->tsan, "CUDA stream");
    stream->stack = std::make_unique<Fiber>(RunThoseThatCome);
  }
  streams_.insert(stream);
  return stream;
}

void Streams::Destroy(cudaStream_t stream) {
  CheckStream(stream);
  RunUntil(stream, stream->num_enqueued);
  streams_.erase(stream);
  if (stream->tsan != nullptr) __tsan_destroy_fiber(stream->tsan);
  delete stream;
}

void Streams::CheckStream(cudaStream_t stream) const {
  if (streams_.contains(stream)) return;
  Die("%p is no stream (the default stream is not used here)", static_cast<void*>(stream));
}

void Streams::Enqueue(cudaStream_t stream, StreamOperation operation) {
  CheckStream(stream);
  operation.enqueued.reset(new char);
  operation.enqueued_at_s = program_s_[stream->gpu];
  {
    const TsanAs as(Caller());
    Release(operation.enqueued.get());
  }
  stream->operations.push_back(std::move(operation));
  ++stream->num_enqueued;
  MayRun();
}

std::shared_ptr<Point> Streams::Record(cudaStream_t stream) {
  CheckStream(stream);
  auto point = std::make_shared<Point>();
  point->stream = stream;
  point->gpu = stream->gpu;
  point->index = stream->num_enqueued + 1;
  Enqueue(stream, {.run = {}, .waits_for = nullptr, .reaches = point});
  return point;
}

void Streams::Await(const std::shared_ptr<Point>& point) {
  if (point == nullptr) return;
  if (!point->is_reached) RunUntil(point->stream, point->index);
  double& program_s = program_s_[point->gpu];
  program_s = std::max(program_s, point->reached_at_s);
  Counters& counters = TheGpu().counters;
  counters.awaited_s = std::max(counters.awaited_s, program_s);
  const TsanAs as(Caller());
  Acquire(point.get());
}

void Streams::AwaitAll() {
  const std::set<cudaStream_t> all = streams_;
  for (const cudaStream_t stream : all) Await(Record(stream));
}

void Streams::MayRun() {
  switch (TheOptions().streams) {
    case StreamPace::kLazy:
      return;
    case StreamPace::kEager:
      for (const cudaStream_t stream : streams_) RunUntil(stream, stream->num_enqueued);
      return;
    case StreamPace::kRandom:
      while (random_.Below(4) == 0) {
        std::vector<cudaStream_t> ready;
        for (const cudaStream_t stream : streams_) {
          if (!stream->operations.empty()) ready.push_back(stream);
        }
        if (ready.empty()) return;
        RunOne(ready[random_.Below(ready.size())]);
      }
  }
}

void Streams::Abandon(int gpu) {
  for (const cudaStream_t stream : streams_) {
    if (stream->gpu != gpu) continue;
    stream->operations.clear();
    stream->num_done = stream->num_enqueued;
  }
}

void Streams::RunUntil(cudaStream_t stream, uint64_t index) {
  while (stream->num_done < index) RunOne(stream);
}

void Streams::RunOne(cudaStream_t stream) {
  if (stream->operations.empty()) Die("a stream waits for work that was never enqueued");
  // Not on the stack, where the program's own frames were: to TSan they would be what it reads.
  const auto held = std::make_unique<StreamOperation>(std::move(stream->operations.front()));
  const StreamOperation& operation = *held;
  stream->operations.pop_front();
  Point* const awaited = operation.waits_for.get();
  if (awaited != nullptr && !awaited->is_reached) RunUntil(awaited->stream, awaited->index);
  stream->clock_s = std::max(stream->clock_s, operation.enqueued_at_s);
  if (awaited != nullptr) stream->clock_s = std::max(stream->clock_s, awaited->reached_at_s);
  stream->clock_s += operation.seconds;
  TheGpu().counters.busy_s += operation.seconds;
  if (operation.reaches != nullptr) operation.reaches->reached_at_s = stream->clock_s;
  {
    const TsanAs as(stream->tsan);
    Acquire(operation.enqueued.get());
    if (awaited != nullptr) Acquire(awaited);
    if (operation.reaches != nullptr) {
      operation.reaches->is_reached = true;
      Release(operation.reaches.get());
    }
    if (operation.run) {
      memory_.Open();
      RunOn(stream->stack.get(), operation.run);
      memory_.Close();
    }
  }
  ++stream->num_done;
}

}  // namespace forebay::emulation
