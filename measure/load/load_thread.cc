#include "forebay/measure/load/load_thread.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/measure/load/kernel_counters.h"

namespace forebay {

struct LoadThread::Slot {
  IoOp op;
  bool started = false;  // and not finished
  int64_t submitted_ns = 0;
  Region* region = nullptr;
  int64_t block = 0;  // of the region
  PatternPlace place;
};

absl::StatusOr<std::unique_ptr<Engine>> MakeEngineOf(EngineKind kind, EngineOptions options) {
  FOREBAY_CHECK(kind != EngineKind::kAuto);
  options.engine = kind;
  if (kind == EngineKind::kIoUring) return CreateIoUringEngine(options);
  if (kind == EngineKind::kLibaio) return CreateLibaioEngine(options);
  return CreateThreadsEngine(options);
}

EngineOptions EngineOptionsOf(const Job& job, int depth) {
  EngineOptions options;
  options.strict = job.strict;
  options.block_bytes = job.block_bytes;
  options.max_in_flight_bytes = job.cap_bytes > 0 ? job.cap_bytes : job.block_bytes * depth;
  if (job.burst_bytes > 0) options.burst_bytes = job.burst_bytes;
  options.num_threads = depth;
  options.drive = RingDrive::kWaiter;
  options.time_submissions = true;
  return options;
}

LoadThread::~LoadThread() = default;

LoadThread::LoadThread(const LoadPlan& plan, LoadClock& clock, int index, const HostBuffer& memory)
    : plan_(plan), job_(*plan.job), clock_(clock), index_(index), memory_(memory) {}

int LoadThread::Depth(const Job& job, int index) {
  return job.depth / job.threads + (index < job.depth % job.threads ? 1 : 0);
}

absl::Status LoadThread::Open() {
  const int depth = Depth(job_, index_);
  EngineOptions options = EngineOptionsOf(job_, depth);
  options.report = plan_.report;
  // The threads of that engine serve all files.
  options.num_threads = depth * static_cast<int>(plan_.files.size());
  FOREBAY_ASSIGN_OR_RETURN(engine_, plan_.make_engine ? plan_.make_engine(options)
                                                      : MakeEngineOf(plan_.engine, options));
  for (BenchFile* file : plan_.files) {
    FOREBAY_ASSIGN_OR_RETURN(const int number, file->AddTo(*engine_));
    OpenRegion(*file, number);
  }
  const size_t num_slots = static_cast<size_t>(depth) * plan_.files.size();
  FOREBAY_RETURN_IF_ERROR(CheckBlocks(num_slots));
  if (job_.fixed) {
    registration_ = BufferRegistration(engine_.get(), memory_.IoPieces(job_.block_bytes));
    tally_.registration = engine_->registration_gap();
  }
  slots_ = std::make_unique<Slot[]>(num_slots);
  for (size_t i = 0; i < num_slots; ++i) {
    const auto block = static_cast<size_t>(job_.block_bytes);
    slots_[i].op.buffer = memory_.bytes().subspan(i * block, block);
    ops_.push_back(&slots_[i].op);
    // What is written, unless it has to be verified and so is made anew for each write.
    plan_.pattern->Fill(slots_[i].op.buffer, {{}, static_cast<int64_t>(i * block), job_.seed});
  }
  return absl::OkStatus();
}

// So that every operation finds a block, whatever is in flight.
absl::Status LoadThread::CheckBlocks(size_t num_operations) const {
  int64_t num_blocks = 0;
  for (const Region& region : regions_) num_blocks += region.count;
  if (num_blocks >= static_cast<int64_t>(num_operations)) return absl::OkStatus();
  return UsageError(fmt::format(
      "{} operations of {} at a time do not fit into files of {}: take a larger --size, or smaller "
      "--bs and --qd",
      num_operations, FormatBinaryBytes(job_.block_bytes), FormatBinaryBytes(job_.size_bytes)));
}

void LoadThread::OpenRegion(BenchFile& file, int number) {
  Region region;
  region.file = &file;
  region.number = number;
  const int64_t num_blocks = file.size_bytes() / job_.block_bytes;
  region.first = num_blocks * index_ / job_.threads;
  region.count = num_blocks * (index_ + 1) / job_.threads - region.first;
  // Reads and writes of a mixed load go through different halves.
  region.next_write = plan_.load.op == LoadOp::kMixed ? region.count / 2 : 0;
  region.busy.assign(static_cast<size_t>(region.count), 0);
  regions_.push_back(std::move(region));
}

// Of the file whose turn it is. Behind a disk that lags all operations may queue, and where its
// file has no block left for one more, the next file takes it.
LoadThread::Region& LoadThread::NextRegion() {
  auto region = static_cast<size_t>(plan_.stripe[next_turn_]);
  next_turn_ = (next_turn_ + 1) % plan_.stripe.size();
  // Open saw to it that there is one.
  while (regions_[region].num_busy == regions_[region].count) {
    region = (region + 1) % regions_.size();
  }
  return regions_[region];
}

// A block that is not in flight: two transfers at one place would make it unclear what it holds.
// Requires: the region has one.
int64_t LoadThread::TakeBlock(Region& region, IoKind kind) {
  int64_t& next = kind == IoKind::kRead ? region.next_read : region.next_write;
  int64_t block = next;
  if (job_.pattern == AccessPattern::kRandom) {
    const CounterRng rng(job_.seed, static_cast<uint64_t>(index_));
    block = static_cast<int64_t>(rng.Below(num_random_++, static_cast<uint64_t>(region.count)));
  }
  while (region.busy[static_cast<size_t>(block)] != 0) block = (block + 1) % region.count;
  region.busy[static_cast<size_t>(block)] = 1;
  ++region.num_busy;
  next = (block + 1) % region.count;
  return block;
}

IoKind LoadThread::NextKind() {
  if (plan_.load.op != LoadOp::kMixed) {
    return plan_.load.op == LoadOp::kRead ? IoKind::kRead : IoKind::kWrite;
  }
  mix_ += plan_.load.read_percent;
  if (mix_ < 100) return IoKind::kWrite;
  mix_ -= 100;
  return IoKind::kRead;
}

void LoadThread::Start(Slot& slot) {
  Region& region = NextRegion();
  IoOp& op = slot.op;
  op.kind = NextKind();
  op.io_class = op.kind == IoKind::kRead ? IoClass::kPrefetch : IoClass::kWriteBack;
  slot.region = &region;
  slot.block = TakeBlock(region, op.kind);
  op.file = region.number;
  op.offset_bytes = (region.first + slot.block) * job_.block_bytes;
  if (job_.verify) {
    slot.place = op.kind == IoKind::kWrite
                     ? region.file->NextPlace(op.offset_bytes, job_.block_bytes)
                     : region.file->PlaceAt(op.offset_bytes);
    if (op.kind == IoKind::kWrite) plan_.pattern->Fill(op.buffer, slot.place);
  }
  slot.started = true;
  slot.submitted_ns = NowNs();
  engine_->Submit(op);
}

absl::Status LoadThread::Finish(Slot& slot, int64_t now_ns) {
  IoOp& op = slot.op;
  slot.started = false;
  FOREBAY_RETURN_IF_ERROR(engine_->Wait(op));
  slot.region->busy[static_cast<size_t>(slot.block)] = 0;
  --slot.region->num_busy;
  const bool reads = op.kind == IoKind::kRead;
  const int64_t bytes = job_.block_bytes;
  (reads ? tally_.all_read_bytes : tally_.all_write_bytes) += bytes;
  ++(reads ? tally_.all_read_ops : tally_.all_write_ops);
  writes_since_flush_ += reads ? 0 : 1;
  clock_.AddMoved(bytes);
  const int64_t measured_ns = clock_.MeasuredNs(now_ns);
  if (measured_ns >= 0 && !clock_.ended(now_ns)) {
    (reads ? tally_.read_bytes : tally_.write_bytes) += bytes;
    tally_.latency.Record(now_ns - slot.submitted_ns);
    clock_.series().Add(measured_ns, bytes);
  }
  if (job_.verify && reads) CheckPattern(op.buffer, slot.place, tally_.verified);
  return absl::OkStatus();
}

absl::Status LoadThread::FlushWhenDue() {
  if (job_.flush != FlushRule::kEveryN || writes_since_flush_ < job_.flush_every) return {};
  writes_since_flush_ = 0;
  return Flush();
}

absl::Status LoadThread::Flush() {
  for (const Region& region : regions_) {
    FOREBAY_RETURN_IF_ERROR(engine_->Flush(region.number));
  }
  return absl::OkStatus();
}

// Keeps the operations in flight until the time is over.
absl::Status LoadThread::Keep() {
  const std::span<Slot> slots(slots_.get(), ops_.size());
  for (Slot& slot : slots) Start(slot);
  int64_t now_ns = NowNs();
  while (!clock_.ended(now_ns)) {
    engine_->WaitAny(ops_);
    now_ns = NowNs();
    for (Slot& slot : slots) {
      if (slot.op.pending()) continue;
      FOREBAY_RETURN_IF_ERROR(Finish(slot, now_ns));
      if (clock_.ended(now_ns)) break;
      FOREBAY_RETURN_IF_ERROR(FlushWhenDue());
      Start(slot);
    }
  }
  return absl::OkStatus();
}

void LoadThread::CountSubmissions() {
  const IoStats stats = engine_->stats();
  tally_.submit_ns = stats.submit_ns - tally_.submit_ns;
  tally_.submitted_calls = stats.submitted_calls - tally_.submitted_calls;
}

absl::Status LoadThread::Run() {
  const std::optional<IoAccount> before = IoAccountOfThread();
  CountSubmissions();
  absl::Status status = Keep();
  if (!status.ok()) clock_.End();  // for the others
  for (Slot& slot : std::span(slots_.get(), ops_.size())) {
    if (!slot.started) continue;
    IoOp* const op = &slot.op;
    engine_->WaitAny({&op, 1});
    const absl::Status finished = Finish(slot, NowNs());
    if (status.ok()) status = finished;
  }
  CountSubmissions();
  const std::optional<IoAccount> after = IoAccountOfThread();
  if (before.has_value() && after.has_value()) {
    tally_.own_bytes =
        after->read_bytes - before->read_bytes + after->write_bytes - before->write_bytes;
  }
  return status;
}

}  // namespace forebay
