#include "forebay/train/report/report_json.h"

#include <cmath>
#include <string>

namespace forebay {
namespace {

Json OrNull(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

// A count of bytes stays a whole number.
Json Whole(double value) {
  return std::isfinite(value) ? Json(std::llround(value)) : Json();
}

Json CountOrNull(int64_t count) {
  return count < 0 ? Json() : Json(count);
}

Json FigureOrNull(const StepFigure& figure) {
  if (figure.step < 0) return Json();
  return {{"step", figure.step}, {"value", figure.value}};
}

Json MedianStep(const RunStatistics& statistics) {
  if (statistics.median_step_s.step < 0) return Json();
  Json parts = Json::object();
  for (size_t part = 0; part < kNumStepParts; ++part) {
    if (statistics.median_parts[part] > 0) {
      parts[NameOfStepPart(part)] = statistics.median_parts[part];
    }
  }
  return {{"step", statistics.median_step_s.step},
          {"step_s", statistics.median_step_s.value},
          {"parts_s", parts}};
}

Json OfRun(const ReportedRun& run) {
  const RunRecord& record = run.record;
  const RunStatistics& statistics = run.statistics;
  Json json = {{"run", record.folder},
               {"name", record.name},
               {"in_use", record.is_in_use},
               {"last_step", statistics.last_step},
               {"num_steps", record.num_steps > 0 ? Json(record.num_steps) : Json()},
               {"num_lines", statistics.num_steps}};
  json["first_loss"] = FigureOrNull(statistics.first_loss);
  json["last_loss"] = FigureOrNull(statistics.last_loss);
  json["first_eval_loss"] = FigureOrNull(statistics.first_eval_loss);
  json["best_eval_loss"] = FigureOrNull(statistics.best_eval_loss);
  json["last_eval_loss"] = FigureOrNull(statistics.last_eval_loss);
  json["seconds"] = statistics.seconds;
  json["tokens_per_s"] = OrNull(statistics.tokens_per_s);
  json["planned_tokens_per_s"] = OrNull(record.Planned("forecast.tokens_per_s"));
  json["median_step"] = MedianStep(statistics);
  json["planned_step_s"] = OrNull(record.Planned("forecast.step_s"));
  json["read_bytes_per_step"] = Whole(statistics.read_bytes);
  json["planned_read_bytes_per_step"] = Whole(record.Planned("read_bytes_per_step"));
  json["write_bytes_per_step"] = Whole(statistics.write_bytes);
  json["planned_write_bytes_per_step"] = Whole(record.Planned("write_bytes_per_step"));
  json["host_peak_bytes"] = Whole(statistics.host_peak_bytes);
  json["planned_host_bytes"] = Whole(record.Planned("host_bytes"));
  json["rss_bytes"] = Whole(statistics.rss_bytes);
  json["ram_budget_bytes"] = Whole(record.Planned("ram_budget_bytes"));
  json["written_bytes"] = Whole(statistics.written_bytes);
  json["written_bytes_exact"] = statistics.written_is_exact;
  json["rated_tbw"] = OrNull(statistics.rated_tbw);
  json["share_of_rated_tbw"] = OrNull(statistics.share_of_rated());
  json["skipped_steps"] = CountOrNull(statistics.num_skipped);
  json["recomputed_steps"] = CountOrNull(statistics.num_recomputed);
  json["settings"] = Json::object();
  for (const auto& [name, value] : record.settings) json["settings"][name] = value;
  json["notes"] = record.notes;
  return json;
}

}  // namespace

Json ReportJson(std::span<const ReportedRun> runs) {
  Json json = {{"runs", Json::array()}, {"differing_settings", Json::array()}};
  for (const ReportedRun& run : runs) json["runs"].push_back(OfRun(run));
  for (const ReportRow& row : DifferenceRows(runs)) {
    json["differing_settings"].push_back({{"flag", row.name}, {"values", row.values}});
  }
  return json;
}

}  // namespace forebay
