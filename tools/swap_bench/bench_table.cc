#include "forebay/tools/swap_bench/bench_table.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/format.h"
#include "forebay/base/markup.h"

namespace forebay {
namespace {

// Rows of cells; every column as wide as its widest cell, the first one to the left.
class TextTable {
 public:
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string Text() const {
    std::vector<size_t> widths;
    for (const auto& row : rows_) {
      widths.resize(std::max(widths.size(), row.size()), 0);
      for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) {
        line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i])
                       : fmt::format("  {:>{}}", row[i], widths[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string Gb(double gbps) {
  return fmt::format("{:.{}f}", gbps, gbps < 0.1 ? 4 : 2);
}

std::string Ms(int64_t ns) {
  return fmt::format("{:.{}f}", static_cast<double>(ns) / 1e6, ns < 10'000'000 ? 2 : 1);
}

std::string PercentOrDash(const std::optional<double>& share) {
  return share.has_value() ? fmt::format("{:.0f}%", *share * 100) : "-";
}

std::string VerifyText(const std::optional<PatternTally>& tally) {
  if (!tally.has_value()) return "-";
  return tally->num_bad() == 0 ? "ok" : fmt::format("{} BAD", tally->num_bad());
}

// Those that not every table has.
struct Columns {
  bool turns = false;   // the length of turns
  bool spread = false;  // over the repeats, or over the last turns of a search
};

// `turns`: with a column for the length of turns.
std::vector<std::string> KeyCells(const CellKey& key, bool turns) {
  std::vector<std::string> cells = {key.device, LoadName(key.load), SizeText(key.block_bytes),
                                    SizeText(key.inflight_bytes)};
  if (turns) cells.push_back(key.burst_bytes > 0 ? SizeText(key.burst_bytes) : "-");
  cells.push_back(key.engine);
  return cells;
}

std::vector<std::string> KeyHeader(bool turns) {
  std::vector<std::string> header = {"device", "op", "bs", "inflt"};
  if (turns) header.emplace_back("turn");
  header.emplace_back("engine");
  return header;
}

std::vector<std::string> Joined(std::vector<std::string> first, std::vector<std::string> rest) {
  std::ranges::move(rest, std::back_inserter(first));
  return first;
}

// The spread of a single pass would be its figure again, as if there were no noise.
std::vector<std::string> Bandwidth(const Spread& gbps, bool spread) {
  std::vector<std::string> cells = {Gb(gbps.median)};
  if (!spread) return cells;
  cells.push_back(gbps.is_of_several() ? fmt::format("({}..{})", Gb(gbps.min), Gb(gbps.max)) : "-");
  return cells;
}

std::vector<std::string> Row(const CellResult& cell, const Columns& columns) {
  const auto percentile = [&](double percent) {
    return cell.latency.count() > 0 ? Ms(cell.latency.PercentileNs(percent)) : "-";
  };
  return Joined(
      Joined(KeyCells(cell.key, columns.turns), Bandwidth(cell.gbps, columns.spread)),
      {cell.flushed_gbps.has_value() ? Gb(cell.flushed_gbps->median) : "-", percentile(50),
       percentile(99), percentile(99.9), cell.latency.count() > 0 ? Ms(cell.latency.max_ns()) : "-",
       cell.submit_us.has_value() ? fmt::format("{:.1f}", *cell.submit_us) : "-",
       fmt::format("{:.1f}", cell.cpu_ms_per_gb), PercentOrDash(cell.punted),
       PercentOrDash(cell.splits),
       cell.flush_ms.has_value() ? fmt::format("{:.1f}", *cell.flush_ms) : "-",
       VerifyText(cell.verified)});
}

std::vector<std::string> Header(const Columns& columns) {
  std::vector<std::string> bandwidth = {"GB/s"};
  if (columns.spread) bandwidth.emplace_back("(min..max)");
  return Joined(Joined(KeyHeader(columns.turns), bandwidth),
                {"+flush", "p50ms", "p99ms", "p99.9ms", "maxms", "submit-us", "cpu ms/GB", "punt",
                 "split", "flush ms", "verify"});
}

std::string StorageLine(const StorageInfo& storage) {
  const std::string direct =
      !storage.direct.verified
          ? fmt::format("no O_DIRECT: {}",
                        storage.direct.why_not.empty() ? "not used" : storage.direct.why_not)
      : storage.direct.off_align > 0
          ? fmt::format("O_DIRECT verified, align {}/{}", storage.direct.mem_align,
                        storage.direct.off_align)
          : "O_DIRECT verified";
  std::string line =
      fmt::format("{}: {} on {} ({}), {} of {} free", storage.path, storage.fs, storage.device,
                  direct, FormatBytes(storage.free_bytes), FormatBytes(storage.total_bytes));
  const auto cache = storage.queue.find("write_cache");
  if (cache != storage.queue.end()) line += ", write cache: " + cache->second;
  if (!storage.pcie.speed.empty()) {
    line += fmt::format(", PCIe {} x{}", storage.pcie.speed, storage.pcie.width);
  }
  if (storage.heat.has_value()) line += fmt::format(", {:.0f} C", storage.heat->celsius);
  if (storage.heat_afterwards.has_value()) {
    line += fmt::format(", {:.0f} C afterwards", storage.heat_afterwards->celsius);
  }
  return line;
}

std::string HostLine(const HostInfo& host, const std::string& version) {
  return fmt::format("swap-bench {}  host {}  kernel {}  {} x {}  {} RAM  thp {}  memlock {}",
                     version, host.name, host.kernel, host.num_cores,
                     host.cpu.empty() ? "CPU" : host.cpu, FormatBinaryBytes(host.memory_bytes),
                     host.transparent_huge_pages,
                     host.memlock_bytes < 0 ? "unlimited" : FormatBinaryBytes(host.memlock_bytes));
}

// How long was measured, and how often.
std::string Passes(const BenchReport& report) {
  const Job& job = report.job;
  if (!report.budget_s.has_value() || report.runs.empty()) {
    return fmt::format("{} s measured after {} s of warm-up, {} interleaved repeat{}", job.seconds,
                       job.warmup_s, job.repeats, job.repeats == 1 ? "" : "s");
  }
  const auto [least, most] = std::ranges::minmax(report.runs, {}, &CellResult::seconds);
  return fmt::format(
      "{:.2f} to {:.2f} s measured of each setting, the best in interleaved turns, after up to "
      "0.5 s of warm-up, in a budget of {:.3g} s for each folder",
      least.seconds, most.seconds, *report.budget_s);
}

std::string Head(const BenchReport& report, const std::string& version) {
  const Job& job = report.job;
  return MachineText(report, version) +
         fmt::format("method: file of {} filled with {}, {}, {} thread{}\n\n",
                     FormatBinaryBytes(job.size_bytes),
                     job.compressible_percent == 0
                         ? "incompressible data"
                         : fmt::format("data that is {} % zeros", job.compressible_percent),
                     Passes(report), job.threads, job.threads == 1 ? "" : "s");
}

std::string WearLine(const BenchReport& report) {
  // What is kept in RAM wears nothing out.
  if (std::ranges::all_of(report.devices, &StorageInfo::in_memory)) return "";
  return fmt::format("wear: this wrote {} in all, {} of it to fill the file{}\n",
                     FormatBytes(WrittenBytes(report)), FormatBytes(report.filled_bytes),
                     report.devices.size() == 1 ? "" : "s");
}

// Verdicts by their text, with the runs that they are about: those that `about` is true of.
std::string Verdicts(const BenchReport& report,
                     const std::function<bool(const CellKey&)>& about = nullptr) {
  std::string text;
  for (const CellResult& run : report.runs) {
    if (about && !about(run.key)) continue;
    text += fmt::format("verdict {} {}: {}", run.key.device, LoadName(run.key.load),
                        fmt::join(run.verdict, "; "));
    if (run.key.load.op == LoadOp::kMixed) {
      text += fmt::format("; {} read + {} written GB/s", Gb(run.read_gbps.median),
                          Gb(run.write_gbps.median));
    }
    if (run.first10_gbps.has_value() && run.last10_gbps.has_value()) {
      text += fmt::format("; first 10 s {} GB/s, last 10 s {} GB/s", Gb(*run.first10_gbps),
                          Gb(*run.last10_gbps));
    }
    if (run.steady_repeats.has_value()) {
      text += fmt::format("; steady in {} of {} repeats", *run.steady_repeats, report.job.repeats);
    }
    if (CountersMatch(run)) {
      const std::optional<double>& ratio =
          run.disk_ratio.has_value() ? run.disk_ratio : run.process_ratio;
      text += fmt::format("; the kernel counted {:.1f} % of these bytes", *ratio * 100);
    }
    text += "\n";
  }
  return text;
}

std::string CsvOrEmpty(const std::optional<double>& value) {
  return value.has_value() ? fmt::format("{}", *value) : "";
}

std::string BurstCsv(const CellKey& key) {
  return key.burst_bytes > 0 ? fmt::format("{}", key.burst_bytes) : "";
}

Json JsonOrNull(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

std::string RatioText(const std::optional<double>& ratio) {
  return ratio.has_value() ? fmt::format("{:.3f}", *ratio) : "-";
}

// Of single passes there is no telling.
std::string NoiseText(const CellComparison& cell) {
  const bool of_several = cell.before.is_of_several() || cell.after.is_of_several();
  if (cell.ratio.has_value() && !of_several) return "-";
  return fmt::format("({}..{})", RatioText(cell.least_ratio), RatioText(cell.most_ratio));
}

std::string PointText(const SweepPoint& point, const std::vector<LoadKind>& loads) {
  std::string rates;
  for (size_t i = 0; i < loads.size() && i < point.gbps.size(); ++i) {
    rates += fmt::format("{}{} {} GB/s", i == 0 ? "" : ", ", LoadName(loads[i]), Gb(point.gbps[i]));
    if (i >= point.spread.size()) continue;
    rates += fmt::format(" ({}..{})", Gb(point.spread[i].min), Gb(point.spread[i].max));
  }
  if (point.num_turns > 0) rates += fmt::format(" of {} turns", point.num_turns);
  return fmt::format("--bs={} --inflight={} --engine={}: {}", SizeText(point.block_bytes),
                     SizeText(point.inflight_bytes), NameOf(point.engine), rates);
}

}  // namespace

std::string NotesText(const std::vector<std::string>& warnings) {
  std::string text;
  for (const std::string& warning : warnings) text += "note: " + warning + "\n";
  return text;
}

std::string MachineText(const BenchReport& report, const std::string& version) {
  std::string text = HostLine(report.host, version) + "\n";
  for (size_t i = 0; i < report.devices.size(); ++i) {
    text += StorageLine(report.devices[i]) + "\n";
    if (i < report.engine_lines.size()) text += "  engine " + report.engine_lines[i] + "\n";
  }
  return text;
}

std::string RunsText(const BenchReport& report, const std::string& version) {
  TextTable table;
  Columns columns;
  columns.turns = std::ranges::any_of(
      report.runs, [](const CellResult& run) { return run.key.burst_bytes > 0; });
  columns.spread = std::ranges::any_of(
      report.runs, [](const CellResult& run) { return run.gbps.is_of_several(); });
  table.Add(Header(columns));
  for (const CellResult& run : report.runs) table.Add(Row(run, columns));
  return Head(report, version) + table.Text() + "\n" + WearLine(report);
}

std::string ReportText(const BenchReport& report, const std::string& version) {
  return RunsText(report, version) + Verdicts(report) + NotesText(report.warnings);
}

std::string ReportCsv(const BenchReport& report, std::span<const double> percentiles) {
  std::string text =
      "device,op,read_percent,bs,inflight,engine,threads,gbps_median,gbps_min,gbps_max,"
      "read_gbps,write_gbps,flushed_gbps";
  for (const double percent : percentiles) text += fmt::format(",{}_us", PercentileKey(percent));
  text +=
      ",max_us,submit_us,cpu_ms_per_gb,punted,splits,flush_ms,process_ratio,disk_ratio,bad_"
      "blocks,burst_bytes\n";
  for (const CellResult& run : report.runs) {
    text += fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{},{}", CsvField(run.key.device), NameOf(run.key.load.op),
        run.key.load.read_percent, run.key.block_bytes, run.key.inflight_bytes, run.key.engine,
        run.threads, run.gbps.median, run.gbps.min, run.gbps.max, run.read_gbps.median,
        run.write_gbps.median,
        run.flushed_gbps.has_value() ? fmt::format("{}", run.flushed_gbps->median) : "");
    for (const double percent : percentiles) {
      text +=
          run.latency.count() == 0
              ? ","
              : fmt::format(",{}", static_cast<double>(run.latency.PercentileNs(percent)) / 1e3);
    }
    text += fmt::format(",{},{},{},{},{},{},{},{},{},{}\n",
                        static_cast<double>(run.latency.max_ns()) / 1e3, CsvOrEmpty(run.submit_us),
                        run.cpu_ms_per_gb, CsvOrEmpty(run.punted), CsvOrEmpty(run.splits),
                        CsvOrEmpty(run.flush_ms), CsvOrEmpty(run.process_ratio),
                        CsvOrEmpty(run.disk_ratio),
                        run.verified.has_value() ? fmt::format("{}", run.verified->num_bad()) : "",
                        BurstCsv(run.key));
  }
  return text;
}

std::string SweepText(const SweepReport& sweep, const std::string& version) {
  std::string text = RunsText(sweep.report, version);
  for (const SweepBest& best : sweep.best) {
    const std::vector<LoadKind>& loads = sweep.report.job.loads;
    text += fmt::format("best {}: {}\nknee {}: {}\n", best.device, PointText(best.best, loads),
                        best.device, PointText(best.knee, loads));
    text += Verdicts(sweep.report, [&](const CellKey& key) {
      return key.device == best.device && key.engine == NameOf(best.knee.engine) &&
             key.block_bytes == best.knee.block_bytes &&
             key.inflight_bytes == best.knee.inflight_bytes;
    });
  }
  return text + NotesText(sweep.report.warnings);
}

std::string ProbeText(const ProbeReport& probe, const std::string& version) {
  std::string text = HostLine(probe.host, version) + "\npages: " + probe.pages + "\n";
  text += fmt::format("registered buffers: {}\n",
                      probe.not_registered.empty() ? "yes" : probe.not_registered);
  for (const StorageProbe& device : probe.devices) {
    text += "\n" + StorageLine(device.storage) + "\n";
    text += fmt::format("  mounted {}\n", device.storage.mount_options);
    std::string queue;
    for (const auto& [key, value] : device.storage.queue) {
      queue += fmt::format("{}{}={}", queue.empty() ? "" : " ", key, value);
    }
    if (!queue.empty()) text += fmt::format("  queue {}\n", queue);
    for (const EngineProbe& engine : device.engines) {
      text += fmt::format("  {:<9} {}  {}\n", NameOf(engine.kind), engine.works ? "yes" : "no ",
                          engine.line);
    }
    text += fmt::format("  --engine=auto takes {}\n", device.chosen);
    text += NotesText(device.warnings);
  }
  return text;
}

std::string ProbeCsv(const ProbeReport& probe) {
  std::string text = "device,fs,direct,engine,works,line\n";
  for (const StorageProbe& device : probe.devices) {
    for (const EngineProbe& engine : device.engines) {
      text += fmt::format("{},{},{},{},{},{}\n", CsvField(device.storage.path), device.storage.fs,
                          device.storage.direct.verified, NameOf(engine.kind), engine.works,
                          CsvField(engine.line));
    }
  }
  return text;
}

std::string ComparisonText(const ReportComparison& comparison) {
  TextTable table;
  const bool turns = std::ranges::any_of(
      comparison.cells, [](const CellComparison& cell) { return cell.key.burst_bytes > 0; });
  table.Add(Joined(KeyHeader(turns), {"before GB/s", "after GB/s", "ratio", "(noise)"}));
  for (const CellComparison& cell : comparison.cells) {
    table.Add(Joined(KeyCells(cell.key, turns), {Gb(cell.before.median), Gb(cell.after.median),
                                                 RatioText(cell.ratio), NoiseText(cell)}));
  }
  std::string text = table.Text();
  for (const CellKey& key : comparison.only_before) {
    text += fmt::format("only before: {}\n", fmt::join(KeyCells(key, key.burst_bytes > 0), " "));
  }
  for (const CellKey& key : comparison.only_after) {
    text += fmt::format("only after: {}\n", fmt::join(KeyCells(key, key.burst_bytes > 0), " "));
  }
  return text;
}

std::string ComparisonCsv(const ReportComparison& comparison) {
  std::string text =
      "device,op,read_percent,bs,inflight,engine,before_gbps,after_gbps,ratio,least_ratio,"
      "most_ratio,burst_bytes\n";
  for (const CellComparison& cell : comparison.cells) {
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{}\n", CsvField(cell.key.device),
                        NameOf(cell.key.load.op), cell.key.load.read_percent, cell.key.block_bytes,
                        cell.key.inflight_bytes, cell.key.engine, cell.before.median,
                        cell.after.median, CsvOrEmpty(cell.ratio), CsvOrEmpty(cell.least_ratio),
                        CsvOrEmpty(cell.most_ratio), BurstCsv(cell.key));
  }
  return text;
}

Json ComparisonToJson(const ReportComparison& comparison) {
  const auto key_json = [](const CellKey& key) -> Json {
    return {{"device", key.device},
            {"op", NameOf(key.load.op)},
            {"read_percent", key.load.read_percent},
            {"bs", key.block_bytes},
            {"inflight", key.inflight_bytes},
            {"burst_bytes", key.burst_bytes > 0 ? Json(key.burst_bytes) : Json(nullptr)},
            {"engine", key.engine}};
  };
  Json cells = Json::array();
  for (const CellComparison& cell : comparison.cells) {
    Json json = key_json(cell.key);
    json["before_gbps"] = cell.before.median;
    json["after_gbps"] = cell.after.median;
    json["ratio"] = JsonOrNull(cell.ratio);
    json["least_ratio"] = JsonOrNull(cell.least_ratio);
    json["most_ratio"] = JsonOrNull(cell.most_ratio);
    cells.push_back(std::move(json));
  }
  Json only_before = Json::array();
  for (const CellKey& key : comparison.only_before) only_before.push_back(key_json(key));
  Json only_after = Json::array();
  for (const CellKey& key : comparison.only_after) only_after.push_back(key_json(key));
  return {{"cells", std::move(cells)},
          {"only_before", std::move(only_before)},
          {"only_after", std::move(only_after)}};
}

}  // namespace forebay
