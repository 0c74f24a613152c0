#include "forebay/measure/report/report_json.h"

#include <vector>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

const std::vector<double> kPercentiles = {50, 95, 99.99};

BenchReport Report() {
  CellResult run;
  run.key = {"/nvme", {LoadOp::kMixed, 70}, 1 << 20, 32 << 20, "io_uring"};
  run.gbps = {2, 1.5, 2.5};
  run.bytes = 12345;
  run.latency.Record(2'000'000);
  run.punted = 0.25;
  run.series = {{0.1, 100}, {0.2, 200}};
  run.verdict = {"device-bound"};
  BenchReport report;
  report.devices.push_back({.path = "/nvme", .fs = "ext4"});
  report.runs = {run};
  report.warnings = {"a note"};
  return report;
}

// The keys of docs/formats.md, "swap-bench results", in order.
TEST(ReportToJson, HasTheDocumentedKeys) {
  const Json json = ReportToJson(Report(), "1.2.3", kPercentiles);
  const auto keys = [](const Json& object) {
    std::vector<std::string> names;
    for (const auto& item : object.items()) names.push_back(item.key());
    return names;
  };
  EXPECT_THAT(keys(json), testing::ElementsAre("schema", "tool", "host", "devices", "config",
                                               "runs", "written_bytes", "warnings"));
  EXPECT_THAT(keys(json["host"]),
              testing::ElementsAre("name", "kernel", "cpu", "cores", "memory_bytes", "thp",
                                   "memlock_bytes", "io_uring_disabled"));
  EXPECT_THAT(keys(json["devices"][0]),
              testing::ElementsAre("path", "fs", "mount_options", "device", "total_bytes",
                                   "free_bytes", "queue", "pcie", "numa_node", "direct", "heat"));
  EXPECT_THAT(
      keys(json["runs"][0]),
      testing::ElementsAre("device", "op", "read_percent", "bs", "inflight", "burst_bytes",
                           "engine", "threads", "fixed", "pages", "pattern", "reasons", "bytes",
                           "seconds", "gbps", "read_gbps", "write_gbps", "flushed_gbps", "lat_us",
                           "submit_us", "cpu_ms_per_gb", "cpu_cores", "punted", "splits",
                           "flush_ms", "process_ratio", "disk_ratio", "steady_repeats", "series",
                           "first10_gbps", "last10_gbps", "verify", "fio", "errors", "verdict"));
  EXPECT_THAT(keys(json["runs"][0]["lat_us"]),
              testing::ElementsAre("p50", "p99", "p999", "p95", "p9999", "max", "hist"));
}

TEST(ReportToJson, KeepsNumbersWholeAndSaysNullForWhatIsUnknown) {
  const Json json = ReportToJson(Report(), "1.2.3", kPercentiles);
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["tool"]["version"], "1.2.3");
  const Json& run = json["runs"][0];
  EXPECT_EQ(run["bytes"], 12345);
  EXPECT_EQ(run["op"], "mixed");
  EXPECT_EQ(run["read_percent"], 70);
  EXPECT_EQ(run["punted"], 0.25);
  EXPECT_TRUE(run["splits"].is_null());
  EXPECT_TRUE(run["verify"].is_null());
  EXPECT_EQ(run["series"], Json::parse("[[0.1, 100], [0.2, 200]]"));
  EXPECT_EQ(run["lat_us"]["max"], 2000.0);
  EXPECT_EQ(run["lat_us"]["hist"][0][1], 1);
}

TEST(ReportToJson, WhatASearchChoosesForEachPassIsNotPartOfItsConfiguration) {
  const Json run = ReportToJson(Report(), "1", kPercentiles)["config"];
  EXPECT_EQ(run["seconds"], 3.0);
  EXPECT_EQ(run["depth"], 32);
  EXPECT_TRUE(run["budget_s"].is_null());
  BenchReport report = Report();
  report.budget_s = 50;
  report.job.repeats = 1;
  const Json search = ReportToJson(report, "1", kPercentiles)["config"];
  for (const char* key : {"seconds", "warmup_s", "depth"}) EXPECT_TRUE(search[key].is_null());
  EXPECT_EQ(search["repeats"], 1);
  EXPECT_EQ(search["budget_s"], 50.0);
  report = Report();
  report.runs.clear();  // as of step
  EXPECT_TRUE(ReportToJson(report, "1", kPercentiles)["config"]["repeats"].is_null());
}

TEST(ReportToJson, TellsHowWarmTheDriveIsWhereItIsKnown) {
  BenchReport report = Report();
  EXPECT_TRUE(ReportToJson(report, "1", kPercentiles)["devices"][0]["heat"].is_null());
  report.devices[0].heat = DriveHeat{41, 80};
  report.devices[0].heat_afterwards = DriveHeat{62.5, 80};
  EXPECT_EQ(ReportToJson(report, "1", kPercentiles)["devices"][0]["heat"],
            (Json{{"celsius", 41.0}, {"afterwards_celsius", 62.5}, {"limit_celsius", 80.0}}));
}

TEST(ReportToJson, CountsWhatWasWrittenInAll) {
  BenchReport report = Report();
  report.filled_bytes = 1000;
  report.runs[0].written_bytes = 200;
  report.runs.push_back(report.runs[0]);
  EXPECT_EQ(ReportToJson(report, "1", kPercentiles)["written_bytes"], 1400);
  report.runs.clear();
  EXPECT_TRUE(ReportToJson(report, "1", kPercentiles)["written_bytes"].is_null());
}

TEST(ReportToJson, TurnsTellRunsOfTuneApart) {
  BenchReport report = Report();
  EXPECT_TRUE(ReportToJson(report, "1", kPercentiles)["runs"][0]["burst_bytes"].is_null());
  report.runs[0].key.burst_bytes = 8 << 20;
  const Json json = ReportToJson(report, "1", kPercentiles);
  EXPECT_EQ(json["runs"][0]["burst_bytes"], 8 << 20);
  EXPECT_EQ(CellsFromJson(json, "a.json")->front().key, report.runs[0].key);
}

TEST(ReportToJson, DirectIoThatWorksHasNoReasonAgainstIt) {
  BenchReport report = Report();
  EXPECT_TRUE(ReportToJson(report, "1", kPercentiles)["devices"][0]["direct"]["why_not"].is_null());
  report.devices[0].direct.why_not = "tmpfs";
  EXPECT_EQ(ReportToJson(report, "1", kPercentiles)["devices"][0]["direct"]["why_not"], "tmpfs");
}

TEST(ReportToJson, WrongBlocksAreErrors) {
  BenchReport report = Report();
  report.runs[0].verified = PatternTally{.num_blocks = 9, .num_stale = 2, .first_problem = "bad"};
  const Json run = ReportToJson(report, "1", kPercentiles)["runs"][0];
  EXPECT_EQ(run["verify"]["bad"], 2);
  EXPECT_EQ(run["errors"], Json::parse("[\"bad\"]"));
}

TEST(ReportToJson, HasWhatFioMeasuredBesideOurs) {
  BenchReport report = Report();
  EXPECT_TRUE(ReportToJson(report, "1", kPercentiles)["runs"][0]["fio"].is_null());
  report.runs[0].fio = FioFigures{{1.6, 1.5, 1.7}, "4 KiB pages"};
  EXPECT_EQ(ReportToJson(report, "1", kPercentiles)["runs"][0]["fio"],
            Json::parse(R"({"gbps": {"median": 1.6, "min": 1.5, "max": 1.7},
                            "pages": "4 KiB pages", "ratio": 1.25})"));
  report.runs[0].fio = FioFigures{{0, 0, 0}, "4 KiB pages"};
  EXPECT_TRUE(ReportToJson(report, "1", kPercentiles)["runs"][0]["fio"]["ratio"].is_null())
      << "there is no ratio to nothing";
}

TEST(PercentileKey, LeavesThePointOut) {
  EXPECT_EQ(PercentileKey(50), "p50");
  EXPECT_EQ(PercentileKey(99.9), "p999");
  EXPECT_EQ(PercentileKey(100), "p100");
}

TEST(PercentileKey, NoTwoAreOne) {
  EXPECT_EQ(PercentileKey(9.99), "p9.99");
  EXPECT_EQ(PercentileKey(9.5), "p9.5");
  EXPECT_EQ(PercentileKey(5), "p5");
}

TEST(CellsFromJson, ReadsWhatReportToJsonWrote) {
  const auto cells = CellsFromJson(ReportToJson(Report(), "1", kPercentiles), "a.json");
  ASSERT_TRUE(cells.ok()) << cells.status();
  ASSERT_EQ(cells->size(), 1u);
  EXPECT_EQ(cells->front().key, Report().runs[0].key);
  EXPECT_DOUBLE_EQ(cells->front().gbps.median, 2);
  EXPECT_DOUBLE_EQ(cells->front().gbps.min, 1.5);
  EXPECT_DOUBLE_EQ(cells->front().gbps.max, 2.5);
}

TEST(CellsFromJson, RefusesWhatIsNoResultsFile) {
  const auto message = [](const Json& json) {
    const auto cells = CellsFromJson(json, "a.json");
    EXPECT_EQ(ExitCodeOf(cells.status()), ExitCode::kBadInput);
    return MessageOf(cells.status());
  };
  EXPECT_THAT(message(Json::array()), HasSubstr("a.json: this has no \"schema\""));
  EXPECT_THAT(message({{"schema", 2}}), HasSubstr("its schema is 2"));
  EXPECT_THAT(message({{"schema", 1}}), HasSubstr("no \"runs\""));
  EXPECT_THAT(message({{"format", 1}, {"made_by", "x"}, {"devices", Json::array()}}),
              HasSubstr("settings of tune (an io.json), which compare does not read"));
  EXPECT_THAT(message({{"schema", 1}, {"runs", Json::array()}, {"step", Json::object()}}),
              HasSubstr("results of step, which compare does not read"));
  EXPECT_THAT(message({{"schema", 1}, {"not_registered", nullptr}}), HasSubstr("of probe"));
  for (const char* key : {"device", "op", "read_percent", "bs", "inflight", "engine", "gbps"}) {
    Json json = ReportToJson(Report(), "1", kPercentiles);
    json["runs"][0].erase(key);
    EXPECT_THAT(message(json), HasSubstr("run 0 lacks a key")) << key;
    json["runs"][0][key] = Json::array();
    EXPECT_THAT(message(json), HasSubstr("run 0 lacks a key")) << key;
  }
  Json other = ReportToJson(Report(), "1", kPercentiles);
  other["runs"][0]["op"] = "dance";
  EXPECT_THAT(message(other), HasSubstr("run 0"));
}

}  // namespace
}  // namespace forebay
