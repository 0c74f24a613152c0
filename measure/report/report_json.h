// Results as JSON: docs/formats.md, "swap-bench results", has every key. The order of keys, their
// names and units are stable within one "schema".
#pragma once

#include <span>
#include <string>
#include <vector>

#include "forebay/base/json.h"
#include "forebay/measure/runs/run_job.h"

namespace forebay {

inline constexpr int kReportSchema = 1;

// `version`: of the program. `percentiles`: of the latency, beside 50, 99 and 99.9.
Json ReportToJson(const BenchReport& report, const std::string& version,
                  std::span<const double> percentiles);
Json HostToJson(const HostInfo& host);
Json StorageToJson(const StorageInfo& storage);
Json CellToJson(const CellResult& cell, std::span<const double> percentiles);

// "p99", "p999", "p9.5": the key of a percentile.
std::string PercentileKey(double percent);

// What a comparison needs of one run.
struct ReportCell {
  CellKey key;
  Spread gbps;
};
// The runs of a results file. `source`: for messages. BadInputError when it is none of this schema.
absl::StatusOr<std::vector<ReportCell>> CellsFromJson(const Json& json, const std::string& source);

}  // namespace forebay
