#include "forebay/train/report/run_statistics.h"

#include <algorithm>
#include <numeric>

#include "forebay/tests/train/report/recorded_run.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::IsNan;

RunRecord RecordOf(std::initializer_list<const char*> lines) {
  RunRecord run;
  for (const char* line : lines) {
    const Json json = *ParseJson(line, "line");
    run.metrics.Add(json["step"].get<int64_t>(), json);
  }
  return run;
}

double Sum(const StepParts& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

TEST(RunStatistics, OfARecordedRun) {
  const RecordedRun run;
  const RunStatistics statistics = StatisticsOf(ReadRuns({run.folder()})->front());
  EXPECT_EQ(statistics.num_steps, 4);
  EXPECT_EQ(statistics.last_step, 4);
  EXPECT_EQ(statistics.first_loss.value, 5.5);
  EXPECT_EQ(statistics.last_loss.value, 4.5);
  EXPECT_EQ(statistics.first_eval_loss.step, 0);
  EXPECT_EQ(statistics.best_eval_loss.value, 5.125);
  EXPECT_EQ(statistics.best_eval_loss.step, 2);
  EXPECT_EQ(statistics.last_eval_loss.value, 5.25);
  EXPECT_EQ(statistics.median_step_s.step, 2);
  EXPECT_EQ(statistics.median_step_s.value, 0.25);
  EXPECT_NEAR(Sum(statistics.median_parts), 0.25, 1e-12);
  EXPECT_EQ(statistics.median_parts[kComputePart], 0.125);
  EXPECT_NEAR(statistics.tokens_per_s, 512 / 1.95, 1e-9);
  EXPECT_EQ(statistics.read_bytes, 1e6);
  EXPECT_EQ(statistics.write_bytes, 0);
  EXPECT_EQ(statistics.host_peak_bytes, 125829120);
  EXPECT_EQ(statistics.written_bytes, 3.75e6);
  EXPECT_DOUBLE_EQ(statistics.share_of_rated(), 3.75e6 / 600e12);
  EXPECT_EQ(statistics.num_skipped, 1);
  EXPECT_EQ(statistics.num_recomputed, -1);
}

TEST(RunStatistics, WhatIsWrittenInAllIsWhatTheRunSaysOfIt) {
  RunRecord run = RecordOf({R"({"step":1,"write_bytes":10})", R"({"step":2,"write_bytes":200})"});
  EXPECT_EQ(StatisticsOf(run).written_bytes, 210);
  EXPECT_FALSE(StatisticsOf(run).written_is_exact);
  // With the making of the swap area, and what the last stop saved.
  run.written = {.bytes = 5000, .step = 2, .ended = true};
  EXPECT_EQ(StatisticsOf(run).written_bytes, 5000);
  EXPECT_TRUE(StatisticsOf(run).written_is_exact);
  // A session that goes on.
  run.written = {.bytes = 3000, .step = 1, .ended = false};
  EXPECT_EQ(StatisticsOf(run).written_bytes, 3200);
  EXPECT_FALSE(StatisticsOf(run).written_is_exact);
}

TEST(RunStatistics, OfARunWithoutStepsAreMissing) {
  const RunStatistics statistics = StatisticsOf(RunRecord());
  EXPECT_EQ(statistics.num_steps, 0);
  EXPECT_EQ(statistics.median_step_s.step, -1);
  EXPECT_THAT(statistics.tokens_per_s, IsNan());
  EXPECT_THAT(statistics.share_of_rated(), IsNan());
}

TEST(RunStatistics, TakesTheRatedWritesFromTheSettingsWhereThereIsNoPlan) {
  RunRecord run;
  run.settings = {{"tbw", "300.5"}};
  EXPECT_EQ(StatisticsOf(run).rated_tbw, 300.5);
}

TEST(StepBreakdown, OfAnOlderLineHasWaitsWithoutACause) {
  const RunRecord run = RecordOf({R"({"step":1,"step_s":2.0,"compute_s":1.5,"io_wait_s":0.5})"});
  const StepParts parts = StepBreakdown(run.metrics).At(0);
  EXPECT_EQ(parts[kComputePart], 1.5);
  EXPECT_EQ(parts[kUnnamedPart], 0.5);
  EXPECT_EQ(parts[kRestPart], 0);
}

TEST(StepBreakdown, SaysWhatALineDoesNotExplain) {
  const RunRecord run = RecordOf({R"({"step":1,"step_s":2.0,"compute_s":1.5})"});
  const StepParts parts = StepBreakdown(run.metrics).At(0);
  EXPECT_EQ(parts[kRestPart], 0.5);
  EXPECT_EQ(Sum(parts), 2.0);
}

TEST(StepBreakdown, HasANameForEachPartAndEachIsAnother) {
  std::vector<std::string> names;
  for (size_t part = 0; part < kNumStepParts; ++part) names.push_back(NameOfStepPart(part));
  EXPECT_EQ(names[1], "wait for weights");
  EXPECT_EQ(names[10], "wait for other ranks");
  EXPECT_EQ(names[11], "wait for threads");
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

// A cause goes to the part that has its name.
TEST(StepBreakdown, ReadsEachCauseFromItsField) {
  for (size_t part = 1; part <= kNumActivities; ++part) {
    const auto activity = static_cast<Activity>(part % kNumActivities);
    RunRecord run;
    Json line = {{"step_s", 1.0}, {"compute_s", 0.0}, {"io_wait_s", 1.0}};
    line["waits"][std::string(NameOf(activity))] = 1.0;
    run.metrics.Add(1, line);
    EXPECT_EQ(StepBreakdown(run.metrics).At(0)[part], 1.0) << NameOf(activity);
  }
}

}  // namespace
}  // namespace forebay
