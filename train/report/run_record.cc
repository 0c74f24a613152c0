#include "forebay/train/report/run_record.h"

#include <algorithm>
#include <filesystem>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/files/run_lock.h"
#include "forebay/train/files/run_settings.h"
#include "forebay/train/options/option_table.h"

namespace forebay {
namespace {

std::string NormalFolder(const std::string& folder) {
  std::error_code ignored;  // then the path stays as it is
  std::filesystem::path path = std::filesystem::weakly_canonical(folder, ignored);
  if (ignored) path = std::filesystem::path(folder).lexically_normal();
  return path.string();
}

// Everything but the metrics has to be whole or is a note: what the steps were is worth more.
void ReadSettings(RunRecord& run) {
  absl::StatusOr<RunSettings> settings = ReadRunSettings(run.folder);
  if (!settings.ok()) {
    run.notes.push_back(fmt::format("settings are not known: {}", MessageOf(settings.status())));
    return;
  }
  if (!settings->note.empty()) run.notes.push_back(settings->note);
  for (const OptionSpec& option : OptionTable()) {
    const auto section = settings->config.find(option.section);
    if (section == settings->config.end() || !section->contains(option.name)) continue;
    run.settings.emplace_back(option.name, ValueText((*section)[option.name]["value"]));
  }
}

void ReadPlan(RunRecord& run) {
  const std::string path = RunPaths(run.folder).plan;
  if (!FileExists(path)) {
    run.notes.push_back(fmt::format("there is no '{}' to compare with", path));
    return;
  }
  absl::StatusOr<Json> plan = ReadJsonFile(path, kMaxConfigFileBytes);
  if (plan.ok() && plan->is_object()) {
    run.plan = *std::move(plan);
  } else {
    run.notes.push_back(plan.ok() ? fmt::format("'{}' is damaged: it is no object", path)
                                  : MessageOf(plan.status()));
  }
}

void ReadWritten(RunRecord& run) {
  absl::StatusOr<std::optional<WrittenRecord>> written =
      ReadWrittenRecord(RunPaths(run.folder).written);
  if (written.ok()) {
    run.written = *written;
  } else {
    run.notes.push_back(MessageOf(written.status()));
  }
}

void ReadLength(const Json& run_json, RunRecord& run) {
  const auto fingerprint = run_json.find("fingerprint");
  if (fingerprint == run_json.end() || !fingerprint->is_object()) return;
  const auto steps = fingerprint->find("steps");
  if (steps != fingerprint->end()) run.num_steps = IntegerOf(*steps).value_or(0);
}

absl::StatusOr<RunRecord> ReadRun(const std::string& folder) {
  RunRecord run;
  run.folder = folder;
  std::string note;
  const absl::StatusOr<Json> run_json = ReadRunJson(folder, &note);
  if (!run_json.ok() && !IsRunFolder(folder)) return run_json.status();
  if (!run_json.ok()) note = MessageOf(run_json.status());
  if (!note.empty()) run.notes.push_back(note);
  if (run_json.ok()) ReadLength(*run_json, run);
  run.is_in_use = ExitCodeOf(CheckRunIsNotInUse(folder)) == ExitCode::kEnvironment;
  ReadSettings(run);
  ReadPlan(run);
  ReadWritten(run);
  FOREBAY_ASSIGN_OR_RETURN(ReadMetrics read, ReadMetricsFile(RunPaths(folder).metrics));
  run.metrics = std::move(read.table);
  std::ranges::move(read.notes, std::back_inserter(run.notes));
  return run;
}

// The folder's own name; of several such, each but the first with a number behind it.
std::string NameFor(const std::string& path, const std::vector<RunRecord>& others) {
  const std::string own = std::filesystem::path(path).filename().string();
  const std::string base = own.empty() ? "run" : own;
  std::string name = base;
  for (int number = 2; std::ranges::count(others, name, &RunRecord::name) > 0; ++number) {
    name = fmt::format("{}-{}", base, number);
  }
  return name;
}

}  // namespace

std::string RunRecord::Setting(std::string_view option) const {
  const auto found =
      std::ranges::find(settings, option, &std::pair<std::string, std::string>::first);
  return found == settings.end() ? "" : found->second;
}

double RunRecord::Planned(std::string_view key) const {
  const Json* value = &plan;
  for (;;) {
    const size_t dot = key.find('.');
    const auto found = value->find(std::string(key.substr(0, dot)));
    if (found == value->end()) return kMissing;
    value = &*found;
    if (dot == std::string_view::npos) return value->is_number() ? value->get<double>() : kMissing;
    key.remove_prefix(dot + 1);
  }
}

absl::StatusOr<std::vector<RunRecord>> ReadRuns(const std::vector<std::string>& folders) {
  std::vector<RunRecord> runs;
  std::vector<std::string> paths;
  for (const std::string& folder : folders) {
    const std::string path = NormalFolder(folder);
    if (std::ranges::count(paths, path) > 0) {
      return UsageError(fmt::format("the run '{}' is named twice; name each run once", folder));
    }
    FOREBAY_ASSIGN_OR_RETURN(RunRecord run, ReadRun(folder));
    run.name = NameFor(path, runs);
    paths.push_back(path);
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace forebay
