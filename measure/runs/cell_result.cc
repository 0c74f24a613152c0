#include "forebay/measure/runs/cell_result.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "fmt/format.h"
#include "forebay/base/check.h"

namespace forebay {
namespace {

// Two such parts must not overlap.
constexpr double kEndS = 10;

// Small requests of others that may be among those of the load: more would count as splits of it.
constexpr double kForeignShare = 0.05;
constexpr int64_t kLeastRequestBytes = 4096;

// What the kernel may count more or less: requests at the edges, metadata.
constexpr double kTolerance = 0.02;
constexpr double kBusyShare = 0.9;

Spread SpreadOver(std::span<const PassResult> passes,
                  const std::function<double(const PassResult&)>& value) {
  std::vector<double> values;
  for (const PassResult& pass : passes) values.push_back(value(pass));
  return SpreadOf(std::move(values));
}

double Gbps(int64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds / 1e9 : 0;
}

std::optional<double> Ratio(double counted, int64_t own) {
  if (own == 0) return std::nullopt;
  return counted / static_cast<double>(own);
}

struct Totals {
  int64_t bytes = 0;
  int64_t ops = 0;
  double seconds = 0;
  double cpu_s = 0;
  std::optional<int64_t> process_bytes = 0;
  std::optional<int64_t> disk_bytes = 0;
  // Of the directions that the load has, as they reached the block layer, before merging.
  int64_t disk_requests = 0;
  int64_t excess_bytes = 0;  // at the disk, beyond our own
  std::optional<int64_t> punted_bytes = 0;
  int64_t submit_ns = 0;
  int64_t submitted_calls = 0;
};

Totals TotalsOf(std::span<const PassResult> passes) {
  Totals totals;
  const auto add = [](std::optional<int64_t>& sum, bool known, int64_t bytes) {
    sum = known && sum.has_value() ? std::optional(*sum + bytes) : std::nullopt;
  };
  for (const PassResult& pass : passes) {
    totals.bytes += pass.all_read_bytes + pass.all_write_bytes;
    totals.ops += pass.all_ops;
    totals.seconds += pass.all_seconds;
    totals.cpu_s += pass.cpu_s;
    const IoAccount process = pass.process_io.value_or(IoAccount{});
    add(totals.process_bytes, pass.process_io.has_value(),
        process.read_bytes + process.write_bytes);
    const DiskAccount disk = pass.disk.value_or(DiskAccount{});
    add(totals.disk_bytes, pass.disk.has_value(), disk.read_bytes + disk.write_bytes);
    if (pass.all_read_bytes > 0) {
      totals.disk_requests += disk.read_ios + disk.read_merges;
      totals.excess_bytes += disk.read_bytes - pass.all_read_bytes;
    }
    if (pass.all_write_bytes > 0) {
      totals.disk_requests += disk.write_ios + disk.write_merges;
      totals.excess_bytes += disk.write_bytes - pass.all_write_bytes;
    }
    add(totals.punted_bytes, pass.punted_bytes >= 0, pass.punted_bytes);
    totals.submit_ns += pass.submit_ns;
    totals.submitted_calls += pass.submitted_calls;
  }
  return totals;
}

void SummarizeCosts(std::span<const PassResult> passes, CellResult& cell) {
  const Totals totals = TotalsOf(passes);
  if (totals.submitted_calls > 0) {
    cell.submit_us =
        static_cast<double>(totals.submit_ns) / 1e3 / static_cast<double>(totals.submitted_calls);
  }
  const double gb = static_cast<double>(totals.bytes) / 1e9;
  cell.cpu_ms_per_gb = gb > 0 ? totals.cpu_s * 1e3 / gb : 0;
  cell.cpu_cores = totals.seconds > 0 ? totals.cpu_s / totals.seconds : 0;
  if (totals.punted_bytes.has_value()) {
    // The file system's own bytes may come on top.
    const std::optional<double> share =
        Ratio(static_cast<double>(*totals.punted_bytes), totals.bytes);
    if (share.has_value()) cell.punted = std::min(1.0, *share);
  }
  if (totals.process_bytes.has_value()) {
    cell.process_ratio = Ratio(static_cast<double>(*totals.process_bytes), totals.bytes);
  }
  if (!totals.disk_bytes.has_value() || totals.ops == 0) return;
  cell.disk_ratio = Ratio(static_cast<double>(*totals.disk_bytes), totals.bytes);
  const double foreign = static_cast<double>(std::abs(totals.excess_bytes)) / kLeastRequestBytes;
  if (foreign > kForeignShare * static_cast<double>(totals.ops)) return;
  const double per_op = static_cast<double>(totals.disk_requests) / static_cast<double>(totals.ops);
  cell.splits = std::max(0.0, per_op - 1);
}

void SummarizeSeries(const PassResult& pass, CellResult& cell) {
  for (size_t i = 0; i < pass.series.size(); ++i) {
    cell.series.emplace_back(static_cast<double>(i + 1) * pass.interval_s, pass.series[i]);
  }
  const auto num_end = static_cast<std::ptrdiff_t>(kEndS / std::max(pass.interval_s, 1e-3));
  if (pass.all_write_bytes == 0 || std::ssize(pass.series) < 2 * num_end) return;
  const auto sum = [&](auto begin, auto end) {
    return Gbps(std::accumulate(begin, end, int64_t{0}), kEndS);
  };
  cell.first10_gbps = sum(pass.series.begin(), pass.series.begin() + num_end);
  cell.last10_gbps = sum(pass.series.end() - num_end, pass.series.end());
}

std::string Percent(double share) {
  return fmt::format("{:.{}f} %", share * 100, share < 0.0995 ? 1 : 0);
}

bool Matches(const std::optional<double>& ratio) {
  return std::abs(ratio.value_or(1) - 1) <= kTolerance;
}

// What bounds a load that leaves the CPU idle: the device, where the kernel's counters show that
// nothing else stood between.
std::string Bound(const CellResult& cell) {
  if (cell.in_memory()) return "bound by memory";
  if (cell.num_files_in_memory > 0) {
    return fmt::format("not CPU-bound, and partly memory: {} of {} folders keep their files in RAM",
                       cell.num_files_in_memory, cell.num_files);
  }
  if (cell.key.engine == "buffered") return "not CPU-bound";
  if (!cell.held_back_by.empty()) return "not device-bound: held back by " + cell.held_back_by;
  return CountersMatch(cell) ? "device-bound" : "not CPU-bound";
}

void JudgeCounters(const CellResult& cell, std::vector<std::string>& verdict) {
  const double process = cell.process_ratio.value_or(1);
  const double disk = cell.disk_ratio.value_or(1);
  if (process < 1 - kTolerance) {
    verdict.push_back(fmt::format(
        "page cache suspected: the kernel counted only {} of these bytes at the storage",
        Percent(process)));
  } else if (disk < 1 - kTolerance) {
    verdict.push_back(fmt::format(
        "a cache or compression below the file system is suspected: the disk counted only {} of "
        "these bytes",
        Percent(disk)));
  }
  if (process > 1 + kTolerance && cell.key.engine == "buffered") {
    verdict.push_back(fmt::format("the page cache moved {} of these bytes", Percent(process)));
  } else if (process > 1 + kTolerance) {
    verdict.push_back(
        fmt::format("the file system moved {} of these bytes (copy on write, or "
                    "blocks that are smaller than its own)",
                    Percent(process)));
  } else if (disk > 1 + kTolerance) {
    verdict.push_back(fmt::format("the disk was not idle beside this: it counted {} of these bytes",
                                  Percent(disk)));
  }
}

}  // namespace

bool CountersMatch(const CellResult& cell) {
  return (cell.process_ratio.has_value() || cell.disk_ratio.has_value()) &&
         Matches(cell.process_ratio) && Matches(cell.disk_ratio);
}

std::string LoadName(const LoadKind& load) {
  if (load.op != LoadOp::kMixed) return std::string(NameOf(load.op));
  return fmt::format("mixed{}", load.read_percent);
}

std::optional<double> CellResult::fio_ratio() const {
  if (!fio.has_value() || fio->gbps.median <= 0) return std::nullopt;
  return gbps.median / fio->gbps.median;
}

CellResult Summarize(std::span<const PassResult> passes) {
  FOREBAY_CHECK(!passes.empty());
  CellResult cell;
  cell.gbps = SpreadOver(passes, [](const PassResult& p) { return p.bytes_per_s() / 1e9; });
  cell.read_gbps =
      SpreadOver(passes, [](const PassResult& p) { return Gbps(p.read_bytes, p.seconds); });
  cell.write_gbps =
      SpreadOver(passes, [](const PassResult& p) { return Gbps(p.write_bytes, p.seconds); });
  const bool flushed =
      std::ranges::all_of(passes, [](const PassResult& p) { return p.flush_s.has_value(); });
  if (flushed) {
    cell.flushed_gbps =
        SpreadOver(passes, [](const PassResult& p) { return p.flushed_bytes_per_s() / 1e9; });
    cell.flush_ms = SpreadOver(passes, [](const PassResult& p) { return *p.flush_s * 1e3; }).median;
  }
  std::vector<double> rates;
  for (const PassResult& pass : passes) {
    cell.bytes += pass.bytes();
    cell.seconds += pass.seconds;
    cell.written_bytes += pass.all_write_bytes;
    cell.latency.Add(pass.latency);
    rates.push_back(pass.bytes_per_s());
    if (!pass.not_registered.empty() && cell.reasons.empty()) {
      cell.reasons.push_back(pass.not_registered);
    }
  }
  SummarizeCosts(passes, cell);
  SummarizeSeries(passes[MedianIndex(rates)], cell);
  return cell;
}

std::vector<std::string> VerdictOf(const CellResult& cell, int num_cores) {
  std::vector<std::string> verdict;
  if (cell.bytes == 0) {
    verdict.emplace_back("nothing was completed in the measured time; take a longer --time");
    verdict.insert(verdict.end(), cell.reasons.begin(), cell.reasons.end());
    return verdict;
  }
  // These engines have a thread for each operation in flight.
  const bool threaded = cell.key.engine == "threads" || cell.key.engine == "buffered";
  const double core_limit = threaded ? num_cores : std::min(num_cores, cell.threads);
  if (cell.cpu_cores >= kBusyShare * core_limit) {
    verdict.push_back(fmt::format("CPU-bound: {} of one core is busy", Percent(cell.cpu_cores)));
  } else {
    verdict.push_back(fmt::format("{} (CPU {} of one core)", Bound(cell), Percent(cell.cpu_cores)));
  }
  // Of memory there is no storage to count anything, and of a part of it nobody knows how much.
  if (cell.num_files_in_memory == 0) JudgeCounters(cell, verdict);
  if (cell.verified.has_value() && cell.verified->num_bad() > 0) {
    verdict.push_back("the disk gave back other bytes than were written to it");
  }
  for (const std::string& reason : cell.reasons) verdict.push_back(reason);
  return verdict;
}

}  // namespace forebay
