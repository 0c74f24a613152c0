#include "forebay/measure/load/pass.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/measure/load/statistics.h"

namespace forebay {
namespace {

constexpr int kLookMs = 50;
// Passes that are long enough get one point a second, short ones ten; and a steady state is judged
// by ten points.
constexpr double kLongPassS = 20;

double IntervalOf(const Job& job) {
  const double interval_s = job.seconds >= kLongPassS ? 1.0 : 0.1;
  if (!job.steady.has_value()) return interval_s;
  return std::clamp(job.steady->window_s / 10, 0.05, interval_s);
}

// One thread of the pass, from its engine's beginning to its end.
struct PassThread {
  std::unique_ptr<LoadThread> load;
  absl::Status status;
  LoadTally tally;
  std::optional<double> flush_s;

  void Run(const LoadPlan& plan, LoadClock& clock, int index, const HostBuffer& memory) {
    load = std::make_unique<LoadThread>(plan, clock, index, memory);
    status = load->Open();
    const bool go = clock.AwaitStart();
    if (go) status = load->Run();
    clock.Drained();
    clock.AwaitLeave();
    tally = load->tally();
    // The files are shared by all threads, so one flushes for all.
    const bool flushes = go && index == 0 && plan.load.writes() && status.ok() &&
                         plan.job->flush != FlushRule::kNone;
    if (flushes) {
      const int64_t begin_ns = NowNs();
      status = load->Flush();
      flush_s = static_cast<double>(NowNs() - begin_ns) * 1e-9;
    }
    load.reset();  // on the thread that drives the engine
  }
};

struct CounterSnapshot {
  int64_t at_ns = 0;
  double cpu_s = 0;
  std::optional<IoAccount> process;
  std::optional<DiskAccount> disk;
};

std::optional<DiskAccount> DiskAccountOfAll(const LoadPlan& plan) {
  std::set<dev_t> devices;  // several files may lie on one
  for (const BenchFile* file : plan.files) devices.insert(file->device());
  DiskAccount sum;
  for (const dev_t device : devices) {
    const std::optional<DiskAccount> one = DiskAccountOf(device);
    if (!one.has_value()) return std::nullopt;
    sum.read_ios += one->read_ios;
    sum.read_merges += one->read_merges;
    sum.read_bytes += one->read_bytes;
    sum.write_ios += one->write_ios;
    sum.write_merges += one->write_merges;
    sum.write_bytes += one->write_bytes;
  }
  return sum;
}

CounterSnapshot TakeSnapshot(const LoadPlan& plan) {
  CounterSnapshot snapshot;
  snapshot.process = IoAccountOfProcess();
  snapshot.disk = DiskAccountOfAll(plan);
  snapshot.at_ns = NowNs();
  snapshot.cpu_s = ProcessCpuSeconds();
  return snapshot;
}

void TakeDifference(const CounterSnapshot& before, const CounterSnapshot& after,
                    PassResult& result) {
  result.all_seconds = static_cast<double>(after.at_ns - before.at_ns) * 1e-9;
  result.cpu_s = after.cpu_s - before.cpu_s;
  if (before.process.has_value() && after.process.has_value()) {
    result.process_io = {after.process->read_bytes - before.process->read_bytes,
                         after.process->write_bytes - before.process->write_bytes};
  }
  if (before.disk.has_value() && after.disk.has_value()) {
    const DiskAccount& a = *after.disk;
    const DiskAccount& b = *before.disk;
    result.disk = {a.read_ios - b.read_ios,         a.read_merges - b.read_merges,
                   a.read_bytes - b.read_bytes,     a.write_ios - b.write_ios,
                   a.write_merges - b.write_merges, a.write_bytes - b.write_bytes};
  }
}

bool IsSteady(const SteadyRule& rule, BandwidthSeries& series, int64_t measured_ns) {
  const std::vector<int64_t> bytes = series.Before(measured_ns);
  const auto window = static_cast<size_t>(rule.window_s / series.interval_s());
  if (window < 2 || bytes.size() < window) return false;
  const std::vector<double> last(bytes.end() - static_cast<std::ptrdiff_t>(window), bytes.end());
  return std::abs(RelativeTrend(last)) < rule.max_trend;
}

// Bytes per second over the last half second or so, warm-up included, so that there is one from the
// first look at a pass on.
class RecentRate {
 public:
  explicit RecentRate(int64_t start_ns) : looks_({{start_ns, 0}}) {}
  double At(int64_t now_ns, int64_t moved_bytes) {
    looks_.emplace_back(now_ns, moved_bytes);
    while (looks_.size() > 2 && now_ns - looks_[1].first >= kRateNs) looks_.pop_front();
    const auto& [then_ns, then_bytes] = looks_.front();
    const double seconds = static_cast<double>(now_ns - then_ns) * 1e-9;
    return seconds > 0 ? static_cast<double>(moved_bytes - then_bytes) / seconds : 0;
  }

 private:
  static constexpr int64_t kRateNs = 500'000'000;
  std::deque<std::pair<int64_t, int64_t>> looks_;
};

// Looks after the pass until all threads have drained. False: it was stopped on request.
bool WatchPass(const LoadPlan& plan, LoadClock& clock, const PassHooks& hooks, bool& steady) {
  bool stopped = false;
  RecentRate rate(clock.start_ns());
  const auto length_ns = static_cast<double>(clock.end_ns() - clock.start_ns());
  while (!clock.AllDrained(kLookMs)) {
    const int64_t now_ns = NowNs();
    const int64_t measured_ns = clock.MeasuredNs(now_ns);
    if (!stopped && hooks.stop && hooks.stop()) {
      stopped = true;
      clock.End();
    }
    if (!stopped && !steady && plan.job->steady.has_value() && !clock.ended(now_ns) &&
        IsSteady(*plan.job->steady, clock.series(), measured_ns)) {
      steady = true;
      clock.End();
    }
    if (hooks.progress) {
      hooks.progress(static_cast<double>(now_ns - clock.start_ns()) / length_ns,
                     rate.At(now_ns, clock.moved_bytes()));
    }
  }
  return !stopped;
}

void AddTally(const LoadTally& tally, PassResult& result) {
  result.read_bytes += tally.read_bytes;
  result.write_bytes += tally.write_bytes;
  result.latency.Add(tally.latency);
  result.all_read_bytes += tally.all_read_bytes;
  result.all_write_bytes += tally.all_write_bytes;
  result.all_ops += tally.all_read_ops + tally.all_write_ops;
  result.submit_ns += tally.submit_ns;
  result.submitted_calls += tally.submitted_calls;
  result.verified.Add(tally.verified);
}

// What the process moved and its load threads did not: io_uring's workers did.
int64_t PuntedBytes(const LoadPlan& plan, const std::vector<PassThread>& threads,
                    const PassResult& result) {
  if (plan.engine != EngineKind::kIoUring || !result.process_io.has_value()) return -1;
  int64_t own_bytes = 0;
  for (const PassThread& thread : threads) {
    if (thread.tally.own_bytes < 0) return -1;
    own_bytes += thread.tally.own_bytes;
  }
  const int64_t all_bytes = result.process_io->read_bytes + result.process_io->write_bytes;
  return std::max<int64_t>(0, all_bytes - own_bytes);
}

}  // namespace

double PassResult::flushed_bytes_per_s() const {
  const double all_s = seconds + flush_s.value_or(0);
  return all_s > 0 ? static_cast<double>(bytes()) / all_s : 0;
}

int64_t LoadMemoryBytes(const Job& job, int index, int num_targets) {
  return job.block_bytes * LoadThread::Depth(job, index) * num_targets;
}

absl::StatusOr<PassResult> RunPass(const LoadPlan& plan, std::span<const HostBuffer> memory,
                                   const PassHooks& hooks) {
  const Job& job = *plan.job;
  FOREBAY_CHECK(static_cast<int>(memory.size()) == job.threads && !plan.stripe.empty());
  const double interval_s = IntervalOf(job);
  LoadClock clock(job.threads, job.warmup_s, job.seconds, interval_s);
  std::vector<PassThread> threads(static_cast<size_t>(job.threads));
  std::vector<std::thread> running;
  for (int i = 0; i < job.threads; ++i) {
    running.emplace_back([&, i] {
      threads[static_cast<size_t>(i)].Run(plan, clock, i, memory[static_cast<size_t>(i)]);
    });
  }
  clock.AwaitReady();
  const CounterSnapshot before = TakeSnapshot(plan);
  const bool go = std::ranges::all_of(threads, [](const auto& t) { return t.status.ok(); });
  clock.Start(go);
  PassResult result;
  const bool whole = WatchPass(plan, clock, hooks, result.steady);
  TakeDifference(before, TakeSnapshot(plan), result);
  clock.Leave();
  for (std::thread& thread : running) thread.join();
  RegistrationGap registration;  // of all threads, since one limit counts them together
  for (const PassThread& thread : threads) {
    FOREBAY_RETURN_IF_ERROR(thread.status);
    AddTally(thread.tally, result);
    registration.Add(thread.tally.registration);
  }
  result.not_registered = registration.Note();
  if (!whole) return InterruptedError("stopped on request");
  const int64_t measured_ns = clock.end_ns() - clock.measure_ns();
  result.seconds = static_cast<double>(measured_ns) * 1e-9;
  result.interval_s = interval_s;
  result.series = clock.series().Before(measured_ns);
  result.punted_bytes = PuntedBytes(plan, threads, result);
  result.flush_s = threads[0].flush_s;
  return result;
}

}  // namespace forebay
