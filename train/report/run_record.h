// A run as the files of its folder tell it: settings, plan, steps. Reads alone; the run may be
// going on meanwhile.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/train/files/written_record.h"
#include "forebay/train/report/metrics_table.h"

namespace forebay {

struct RunRecord {
  std::string folder;          // as it was named
  std::string name;            // short, and its own among the runs of a report
  int64_t num_steps = 0;       // that the run is to have; 0: not known
  bool is_in_use = false;      // a process works on it
  Json plan = Json::object();  // plan.json; empty where there is none
  MetricsTable metrics;
  std::optional<WrittenRecord> written;  // written.json; nullopt: there is none
  // Name and value of each option, as flags spell them, in the order of the option table.
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<std::string> notes;  // what is missing or damaged, for people

  // The value of an option; "" where it is not known.
  std::string Setting(std::string_view option) const;
  // A number of the plan, "forecast.step_s"; kMissing where it has none.
  double Planned(std::string_view key) const;
};

// Where a folder is no run: the error of ReadRunJson. What is damaged besides is a note. UsageError
// where a folder is named twice; StorageError.
absl::StatusOr<std::vector<RunRecord>> ReadRuns(const std::vector<std::string>& folders);

}  // namespace forebay
