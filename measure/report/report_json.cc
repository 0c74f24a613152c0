#include "forebay/measure/report/report_json.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// Absent figures are null, so that every run has the same keys.
template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json ToJson(const Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

Json LatencyToJson(const LatencyHistogram& latency, std::span<const double> percentiles) {
  Json json = Json::object();
  const auto us = [](int64_t ns) { return static_cast<double>(ns) / 1e3; };
  const auto add = [&](double percent) {
    json[PercentileKey(percent)] =
        latency.count() > 0 ? Json(us(latency.PercentileNs(percent))) : Json(nullptr);
  };
  for (const double percent : {50.0, 99.0, 99.9}) add(percent);
  for (const double percent : percentiles) add(percent);
  json["max"] = us(latency.max_ns());
  Json histogram = Json::array();
  for (const LatencyHistogram::Bucket& bucket : latency.buckets()) {
    histogram.push_back({us(bucket.le_ns), bucket.count});
  }
  json["hist"] = std::move(histogram);
  return json;
}

Json VerifiedToJson(const std::optional<PatternTally>& tally) {
  if (!tally.has_value()) return nullptr;
  return {{"blocks", tally->num_blocks},   {"bad", tally->num_bad()},
          {"stale", tally->num_stale},     {"misdirected", tally->num_misdirected},
          {"foreign", tally->num_foreign}, {"damaged", tally->num_damaged},
          {"torn_writes", tally->num_torn}};
}

Json FioToJson(const CellResult& cell) {
  if (!cell.fio.has_value()) return nullptr;
  return {{"gbps", ToJson(cell.fio->gbps)},
          {"pages", cell.fio->pages},
          {"ratio", OrNull(cell.fio_ratio())}};
}

Json JobToJson(const BenchReport& report) {
  const Job& job = report.job;
  // A search gives each pass its own time and depth, and `step` has no passes.
  const bool own = report.budget_s.has_value() || report.runs.empty();
  Json json = Json::object();
  json["size"] = job.size_bytes;
  json["seconds"] = own ? Json(nullptr) : Json(job.seconds);
  json["warmup_s"] = own ? Json(nullptr) : Json(job.warmup_s);
  json["repeats"] = report.runs.empty() ? Json(nullptr) : Json(job.repeats);
  json["depth"] = own ? Json(nullptr) : Json(job.depth);
  json["engine"] = NameOf(job.engine);
  json["fixed"] = job.fixed;
  json["pages"] = NameOf(job.pages);
  json["verify"] = job.verify;
  json["flush"] = job.flush == FlushRule::kNone    ? std::string("none")
                  : job.flush == FlushRule::kAtEnd ? std::string("step")
                                                   : fmt::format("every={}", job.flush_every);
  json["compressible_percent"] = job.compressible_percent;
  json["seed"] = job.seed;
  json["budget_s"] = OrNull(report.budget_s);
  return json;
}

// A key of one run, of the type that its place demands.
template <typename T>
bool Read(const Json& json, const char* key, T& value) {
  const auto found = json.find(key);
  if (found == json.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!found->is_string()) return false;
  } else if constexpr (std::is_same_v<T, double>) {
    if (!found->is_number()) return false;
  } else {
    if (!found->is_number_integer()) return false;
  }
  value = found->template get<T>();
  return true;
}

std::optional<LoadOp> LoadOpOf(const std::string& name) {
  for (const LoadOp op : {LoadOp::kRead, LoadOp::kWrite, LoadOp::kMixed}) {
    if (NameOf(op) == name) return op;
  }
  return std::nullopt;
}

std::optional<ReportCell> CellFromJson(const Json& run) {
  ReportCell cell;
  std::string op;
  int64_t read_percent = 0;
  if (!run.is_object() || !Read(run, "device", cell.key.device) || !Read(run, "op", op) ||
      !Read(run, "read_percent", read_percent) || !Read(run, "bs", cell.key.block_bytes) ||
      !Read(run, "inflight", cell.key.inflight_bytes) || !Read(run, "engine", cell.key.engine)) {
    return std::nullopt;
  }
  const std::optional<LoadOp> load = LoadOpOf(op);
  const auto gbps = run.find("gbps");
  if (!load.has_value() || read_percent < 0 || read_percent > 100 || gbps == run.end() ||
      !gbps->is_object() || !Read(*gbps, "median", cell.gbps.median) ||
      !Read(*gbps, "min", cell.gbps.min) || !Read(*gbps, "max", cell.gbps.max)) {
    return std::nullopt;
  }
  cell.key.load = {*load, static_cast<int>(read_percent)};
  // Of some runs of tune alone: in all others it is null.
  Read(run, "burst_bytes", cell.key.burst_bytes);
  return cell;
}

// What a file holds that swap-bench made and that has no runs; "": it may have some.
std::string OtherContents(const Json& json) {
  if (!json.is_object()) return "";
  if (json.contains("made_by") && json.contains("devices")) return "settings of tune (an io.json)";
  if (json.contains("step")) return "results of step";
  if (json.contains("cells")) return "results of compare";
  return json.contains("not_registered") ? "results of probe" : "";
}

}  // namespace

std::string PercentileKey(double percent) {
  std::string digits = fmt::format("{}", percent);
  // 9.99 would be taken for 99.9.
  if (percent >= 10) std::erase(digits, '.');
  return "p" + digits;
}

Json HostToJson(const HostInfo& host) {
  return {{"name", host.name},
          {"kernel", host.kernel},
          {"cpu", host.cpu},
          {"cores", host.num_cores},
          {"memory_bytes", host.memory_bytes},
          {"thp", host.transparent_huge_pages},
          {"memlock_bytes", host.memlock_bytes < 0 ? Json(nullptr) : Json(host.memlock_bytes)},
          {"io_uring_disabled",
           host.io_uring_disabled.empty() ? Json(nullptr) : Json(host.io_uring_disabled)}};
}

Json HeatToJson(const StorageInfo& storage) {
  if (!storage.heat.has_value()) return nullptr;
  const auto& after = storage.heat_afterwards;
  return {{"celsius", storage.heat->celsius},
          {"afterwards_celsius", after.has_value() ? Json(after->celsius) : Json(nullptr)},
          {"limit_celsius", OrNull(storage.heat->limit_celsius)}};
}

Json StorageToJson(const StorageInfo& storage) {
  Json queue = Json::object();
  for (const auto& [key, value] : storage.queue) queue[key] = value;
  Json pcie = nullptr;
  if (!storage.pcie.speed.empty()) {
    pcie = {{"speed", storage.pcie.speed},
            {"width", storage.pcie.width},
            {"max_speed", storage.pcie.max_speed},
            {"max_width", storage.pcie.max_width}};
  }
  return {
      {"path", storage.path},
      {"fs", storage.fs},
      {"mount_options", storage.mount_options},
      {"device", storage.device},
      {"total_bytes", storage.total_bytes},
      {"free_bytes", storage.free_bytes},
      {"queue", std::move(queue)},
      {"pcie", std::move(pcie)},
      {"numa_node", storage.numa_node < 0 ? Json(nullptr) : Json(storage.numa_node)},
      {"direct",
       {{"verified", storage.direct.verified},
        {"why_not", storage.direct.why_not.empty() ? Json(nullptr) : Json(storage.direct.why_not)},
        {"mem_align", storage.direct.mem_align},
        {"off_align", storage.direct.off_align}}},
      {"heat", HeatToJson(storage)}};
}

Json CellToJson(const CellResult& cell, std::span<const double> percentiles) {
  Json json = Json::object();
  json["device"] = cell.key.device;
  json["op"] = NameOf(cell.key.load.op);
  json["read_percent"] = cell.key.load.read_percent;
  json["bs"] = cell.key.block_bytes;
  json["inflight"] = cell.key.inflight_bytes;
  json["burst_bytes"] = cell.key.burst_bytes > 0 ? Json(cell.key.burst_bytes) : Json(nullptr);
  json["engine"] = cell.key.engine;
  json["threads"] = cell.threads;
  json["fixed"] = cell.fixed;
  json["pages"] = cell.pages;
  json["pattern"] = cell.pattern;
  json["reasons"] = cell.reasons;
  json["bytes"] = cell.bytes;
  json["seconds"] = cell.seconds;
  json["gbps"] = ToJson(cell.gbps);
  json["read_gbps"] = ToJson(cell.read_gbps);
  json["write_gbps"] = ToJson(cell.write_gbps);
  json["flushed_gbps"] = cell.flushed_gbps.has_value() ? ToJson(*cell.flushed_gbps) : Json(nullptr);
  json["lat_us"] = LatencyToJson(cell.latency, percentiles);
  json["submit_us"] = OrNull(cell.submit_us);
  json["cpu_ms_per_gb"] = cell.cpu_ms_per_gb;
  json["cpu_cores"] = cell.cpu_cores;
  json["punted"] = OrNull(cell.punted);
  json["splits"] = OrNull(cell.splits);
  json["flush_ms"] = OrNull(cell.flush_ms);
  json["process_ratio"] = OrNull(cell.process_ratio);
  json["disk_ratio"] = OrNull(cell.disk_ratio);
  json["steady_repeats"] = OrNull(cell.steady_repeats);
  Json series = Json::array();
  for (const auto& [end_s, bytes] : cell.series) series.push_back({end_s, bytes});
  json["series"] = std::move(series);
  json["first10_gbps"] = OrNull(cell.first10_gbps);
  json["last10_gbps"] = OrNull(cell.last10_gbps);
  json["verify"] = VerifiedToJson(cell.verified);
  json["fio"] = FioToJson(cell);
  json["errors"] = Json::array();
  if (cell.verified.has_value() && !cell.verified->first_problem.empty()) {
    json["errors"].push_back(cell.verified->first_problem);
  }
  json["verdict"] = cell.verdict;
  return json;
}

Json ReportToJson(const BenchReport& report, const std::string& version,
                  std::span<const double> percentiles) {
  Json devices = Json::array();
  for (const StorageInfo& storage : report.devices) devices.push_back(StorageToJson(storage));
  Json runs = Json::array();
  for (const CellResult& cell : report.runs) runs.push_back(CellToJson(cell, percentiles));
  return {{"schema", kReportSchema},
          {"tool", {{"name", "swap-bench"}, {"version", version}}},
          {"host", HostToJson(report.host)},
          {"devices", std::move(devices)},
          {"config", JobToJson(report)},
          {"runs", std::move(runs)},
          // What `step` replays is counted in its own key.
          {"written_bytes", report.runs.empty() ? Json(nullptr) : Json(WrittenBytes(report))},
          {"warnings", report.warnings}};
}

absl::StatusOr<std::vector<ReportCell>> CellsFromJson(const Json& json, const std::string& source) {
  const auto bad = [&](const std::string& what) {
    return BadInputError(
        fmt::format("{}: {}. A results file is what --out of 'swap-bench run' or 'sweep' writes",
                    source, what));
  };
  const std::string other = OtherContents(json);
  if (!other.empty()) return bad(fmt::format("these are {}, which compare does not read", other));
  int64_t schema = 0;
  if (!json.is_object() || !Read(json, "schema", schema)) return bad("this has no \"schema\"");
  if (schema != kReportSchema) {
    return bad(fmt::format("its schema is {}, and this program knows {}", schema, kReportSchema));
  }
  const auto runs = json.find("runs");
  if (runs == json.end() || !runs->is_array()) return bad("this has no \"runs\"");
  std::vector<ReportCell> cells;
  for (const Json& run : *runs) {
    const std::optional<ReportCell> cell = CellFromJson(run);
    if (!cell.has_value()) {
      return bad(fmt::format("run {} lacks a key, or has one of another type", cells.size()));
    }
    cells.push_back(*cell);
  }
  return cells;
}

}  // namespace forebay
