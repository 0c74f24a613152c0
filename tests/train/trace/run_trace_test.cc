// The trace of a run, held against what metrics.jsonl says of the same steps.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/activity.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/tests/train/trace/trace_rows.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/options/traced_steps.h"
#include "forebay/train/run/trace_file.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::StartsWith;

std::map<int64_t, Json> MetricsOf(const std::string& out) {
  std::map<int64_t, Json> lines;
  std::ifstream file(RunPaths(out).metrics);
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line);
    lines[json["step"].get<int64_t>()] = json;
  }
  return lines;
}

// Two of a row follow one another, or one lies within the other.
void ExpectSpansNestOrFollow(const TraceRows& rows) {
  for (auto [row, spans] : rows.spans) {
    std::ranges::sort(spans, {},
                      [](const Span& span) { return std::pair(span.begin_ns, -span.end_ns); });
    std::vector<Span> open;
    for (const Span& span : spans) {
      while (!open.empty() && open.back().end_ns <= span.begin_ns) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(span.end_ns, open.back().end_ns)
            << rows.names.at(row) << ": " << span.name << " in " << open.back().name;
      }
      open.push_back(span);
    }
  }
}

// How much of [begin, end) the spans cover.
int64_t Covered(std::vector<Span> spans, int64_t begin, int64_t end) {
  std::ranges::sort(spans, {}, &Span::begin_ns);
  int64_t covered = 0;
  int64_t at = begin;
  for (const Span& span : spans) {
    const int64_t from = std::max(at, span.begin_ns);
    const int64_t to = std::min(end, span.end_ns);
    if (to <= from) continue;
    covered += to - from;
    at = to;
  }
  return covered;
}

// What no span covers would be missing in every step; where the system took the thread's core away
// between two spans is missing in one.
void ExpectTrainingThreadIsKnown(const TraceRows& rows) {
  const std::vector<Span> steps = rows.Named("steps");
  if (steps.size() < 2) return;
  double best = 0;
  for (const Span& step : steps) {
    const auto covered =
        static_cast<double>(Covered(rows.Named("training"), step.begin_ns, step.end_ns));
    best = std::max(best, covered / static_cast<double>(step.length_ns()));
  }
  EXPECT_GE(best, 0.95);
}

int64_t NumberOf(const Span& step) {
  return step.args["step"].get<int64_t>();
}

// `most_ahead_bytes`: what a step may read ahead at its end.
void ExpectBytesAreThoseOfTheMetrics(const TraceRows& rows, const std::map<int64_t, Json>& lines,
                                     int64_t most_ahead_bytes) {
  for (const auto& [row, key] :
       {std::pair("reads of ", "read_bytes"), {"writes of ", "write_bytes"}}) {
    std::map<int64_t, int64_t> bytes;
    for (const Span& span : rows.Named(row)) {
      if (span.args.contains("step")) {
        bytes[NumberOf(span)] += span.args["bytes"].get<int64_t>();
      }
      EXPECT_LE(span.args["wait_in_queue_us"].get<double>() * 1e3,
                static_cast<double>(span.length_ns()) + 1);
      EXPECT_FALSE(span.args["file"].get<std::string>().empty());
    }
    int64_t last = 0;
    for (const Span& step : rows.Named("steps")) last = std::max(last, NumberOf(step));
    for (const Span& step : rows.Named("steps")) {
      const int64_t number = NumberOf(step);
      SCOPED_TRACE(std::string(row) + "step " + std::to_string(number));
      const auto of_the_step = lines.at(number)[key].get<int64_t>();
      // The last step's reads ahead may end when the recording has ended.
      const bool may_miss = number == last && key == std::string_view("read_bytes");
      EXPECT_LE(bytes[number], of_the_step);
      EXPECT_GE(bytes[number], of_the_step - (may_miss ? most_ahead_bytes : 0));
    }
  }
}

void ExpectWaitsAreThoseOfTheMetrics(const TraceRows& rows, const std::map<int64_t, Json>& lines) {
  const std::vector<Span> training = rows.Named("training");
  for (size_t i = 0; i < kNumActivities; ++i) {
    const std::string cause(NameOf(static_cast<Activity>(i)));
    double traced_s = 0;
    double counted_s = 0;
    double all_s = 0;
    for (const Span& step : rows.Named("steps")) {
      all_s += static_cast<double>(step.length_ns()) * 1e-9;
      std::vector<Span> waits;
      std::ranges::copy_if(training, std::back_inserter(waits),
                           [&](const Span& span) { return span.name == "wait: " + cause; });
      traced_s += static_cast<double>(Covered(waits, step.begin_ns, step.end_ns)) * 1e-9;
      counted_s += lines.at(NumberOf(step))["waits"][cause].get<double>();
    }
    // Some time lies between the looks at two clocks, some hundred times, and the system may take
    // the thread's core away there.
    EXPECT_NEAR(traced_s, counted_s, 2e-3 + 0.05 * counted_s + 0.1 * all_s) << cause;
  }
}

class RunTraceTest : public testing::Test {
 protected:
  TrainOptions Traced(TrainOptions options) const {
    options.steps = 5;
    options.trace = folder_.Path("trace.json");
    options.ram_bytes += kTraceBytes;  // so that a run with the least that works is still that
    return options;
  }
  TraceRows Rows() const { return ReadTrace(folder_.Path("trace.json")); }
  void ExpectIsTrue(const TrainOptions& options) const {
    const TraceRows rows = Rows();
    const std::map<int64_t, Json> lines = MetricsOf(options.out);
    EXPECT_EQ(rows.num_dropped, 0);
    EXPECT_FALSE(rows.Named("steps").empty());
    ExpectSpansNestOrFollow(rows);
    ExpectTrainingThreadIsKnown(rows);
    constexpr int64_t kStagingTilesOfADisk = 4, kMostStateBytesPerElem = 12;
    const auto num_disks = static_cast<int64_t>(std::max<size_t>(1, options.nvme.size()));
    ExpectBytesAreThoseOfTheMetrics(
        rows, lines,
        kStagingTilesOfADisk * num_disks * options.tile_elems * kMostStateBytesPerElem);
    ExpectWaitsAreThoseOfTheMetrics(rows, lines);
  }

  const TemporaryFolder folder_{FolderInRam()};
  const ToyTask task_{folder_.path()};
};

TEST_F(RunTraceTest, SaysWhatTheStepsDidAndChangesNothing) {
  const TrainOptions options = Traced(task_.TightRun(folder_.Path("run")));
  ASSERT_EQ(TrainToy(options), absl::OkStatus());
  ExpectIsTrue(options);
  const TraceRows rows = Rows();
  std::set<std::string> steps, names, layers;
  for (const Span& step : rows.Named("steps")) steps.insert(step.name);
  EXPECT_EQ(steps, (std::set<std::string>{"step 2", "step 3", "step 4"}));
  for (const Span& span : rows.Named("training")) {
    names.insert(span.name.substr(0, span.name.find(' ')));
    if (span.args.contains("layer")) layers.insert(span.args["layer"]);
  }
  EXPECT_THAT(names, IsSupersetOf({"read", "forward", "backward", "recompute", "loss", "hand",
                                   "updates", "wait:", "pass", "end"}));
  EXPECT_EQ(layers.size(), 4u);  // the embedding, two blocks, the norm in front of the loss
  std::set<int> tiles;
  for (const Span& span : rows.Named("window")) {
    if (span.args.contains("tile")) tiles.insert(span.args["tile"].get<int>());
  }
  EXPECT_GT(tiles.size(), layers.size());
  EXPECT_FALSE(rows.Named("flushes of ").empty());
  EXPECT_THAT(ReadWholeFile(options.trace, int64_t{1} << 26).value(), Not(HasSubstr("GPU")));

  TrainOptions untraced = options;
  untraced.out = folder_.Path("untraced");
  untraced.trace.clear();
  ASSERT_EQ(TrainToy(untraced), absl::OkStatus());
  EXPECT_EQ(*ResultOf(options.out), *ResultOf(untraced.out));
}

TEST_F(RunTraceTest, HoldsForEveryWayToUpdate) {
  std::map<std::string, TrainOptions> ways;
  ways["striped"] = task_.StripedRun(folder_.Path("striped"));
  ways["roomy"] = task_.RoomyRun(folder_.Path("roomy"));
  ways["in RAM"] = task_.RoomyRun(folder_.Path("in_ram"));
  ways["in RAM"].weights_tier = ways["in RAM"].state_tier = TierChoice::kHost;
  ways["in RAM"].commit_every = 2;
  ways["delayed"] = task_.TightRun(folder_.Path("delayed"));
  task_.Delay(ways["delayed"]);
  ways["speculative"] = task_.TightRun(folder_.Path("speculative"));
  ways["speculative"].gradients = GradientChoice::kSpeculate;
  ways["speculative"].clip = 0;
  ways["speculative"].ram_bytes += int64_t{1} << 20;  // weights are staged too
  ways["computed twice"] = ways["speculative"];
  ways["computed twice"].out = folder_.Path("twice");
  ways["computed twice"].clip = 1e-3;
  ways["spilled activations"] = task_.TightRun(folder_.Path("spilled"));
  ways["spilled activations"].activations_tier = ActivationsTier::kNvme;
  for (const auto& [name, way] : ways) {
    SCOPED_TRACE(name);
    const TrainOptions options = Traced(way);
    ASSERT_EQ(TrainToy(options), absl::OkStatus());
    ExpectIsTrue(options);
  }
}

TEST_F(RunTraceTest, ExportsShowBesideTheSteps) {
  TrainOptions options = Traced(task_.RoomyRun(folder_.Path("run")));
  options.durability = Durability::kStep;
  options.commit_every = options.save_every = 1;
  options.steps = 8;
  options.trace_steps = {2, 7};
  ASSERT_EQ(TrainToy(options), absl::OkStatus());
  ExpectIsTrue(options);
  EXPECT_FALSE(Rows().Named("export").empty());
}

TEST_F(RunTraceTest, AStepThatIsSaidAloneIsTracedAlsoWhenItIsTheFirstOrALaterOneOfAResume) {
  TrainOptions options = Traced(task_.TightRun(folder_.Path("run")));
  options.trace_steps = {1, 1};
  options.stop_after = 2;
  ASSERT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
  EXPECT_EQ(Rows().Named("steps").size(), 1u);
  ExpectIsTrue(options);
  options.resume = true;
  options.stop_after = 0;
  options.trace_steps = {4, 5};
  ASSERT_EQ(TrainToy(options), absl::OkStatus());
  EXPECT_EQ(Rows().Named("steps").front().name, "step 4");
  EXPECT_EQ(Rows().Named("steps").size(), 2u);
  ExpectIsTrue(options);
}

TEST_F(RunTraceTest, ARunThatEndsBeforeWritesWhatItHas) {
  TrainOptions options = Traced(task_.TightRun(folder_.Path("run")));
  options.stop_after = 2;
  ASSERT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
  EXPECT_EQ(Rows().Named("steps").size(), 1u);
  ExpectIsTrue(options);
}

TEST_F(RunTraceTest, WhatCannotBeTracedIsRefusedBeforeTheRunIsMade) {
  const auto expect_refused = [&](const TrainOptions& options, const std::string& words) {
    const absl::Status status = TrainToy(options);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(words));
    EXPECT_FALSE(FileExists(options.out));
  };
  TrainOptions options = Traced(task_.TightRun(folder_.Path("run")));
  options.trace_steps = {4, 6};
  expect_refused(options, "--set=trace_steps=4-6: this process trains the steps 1 to 5");
  options.stop_after = 3;
  options.trace_steps = {2, 4};
  expect_refused(options, "the steps 1 to 3");
  options.trace_steps = {};
  options.trace = folder_.path();
  expect_refused(options, "is a folder");
  options.trace = folder_.Path("nowhere/trace.json");
  expect_refused(options, "there is no folder");
}

TEST(AppendTraceFile, PutsRowsBehindRowsAndLeavesAFileAloneWhereItCannot) {
  const TemporaryFolder folder;
  const std::string own = folder.Path("own"), other = folder.Path("other");
  std::vector<std::byte> memory(1 << 16);
  TraceRecorder recorder(memory);
  const std::vector<TracedStep> steps = {{.step = 7, .begin_ns = 1, .end_ns = 2}};
  ASSERT_TRUE(WriteTraceFile(own, recorder, steps, {}, {.rank = 0, .num_ranks = 2}).ok());
  ASSERT_TRUE(WriteTraceFile(other, recorder, steps, {}, {.rank = 1, .num_ranks = 2}).ok());
  const std::string before = ReadWholeFile(own, 1 << 20).value();
  const std::string whole = ReadWholeFile(other, 1 << 20).value();
  for (const std::string& damaged : {whole.substr(0, whole.size() / 2), std::string()}) {
    ASSERT_TRUE(WriteFileAtomically(folder.Path("damaged"), damaged).ok());
    const absl::Status status = AppendTraceFile(own, folder.Path("damaged"));
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
    EXPECT_EQ(ReadWholeFile(own, 1 << 20).value(), before);
  }
  EXPECT_FALSE(AppendTraceFile(own, folder.Path("none")).ok());
  ASSERT_TRUE(AppendTraceFile(own, other).ok());
  const TraceRows rows = ReadTrace(own);
  EXPECT_EQ(rows.Named("steps").size(), 2u);
  EXPECT_EQ(rows.names.size(), 2u);
}

}  // namespace
}  // namespace forebay
