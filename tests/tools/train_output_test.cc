#include "forebay/tools/train_output.h"

#include <cstdlib>
#include <limits>

#include "forebay/base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;
using testing::Not;

// A file in memory that remembers what was printed to it.
class Captured {
 public:
  Captured() : file_(::open_memstream(&text_, &size_)) { FOREBAY_CHECK(file_ != nullptr); }
  ~Captured() {
    std::fclose(file_);
    std::free(text_);
  }
  std::FILE* file() const { return file_; }
  std::string text() const {
    std::fflush(file_);
    return std::string(text_, size_);
  }

 private:
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* file_ = nullptr;
};

Json StepMetrics() {
  return {{"step", 12},          {"num_steps", 500},      {"loss", 2.10341},
          {"grad_norm", 0.8312}, {"lr", 9.8e-6},          {"tokens", 1024},
          {"step_s", 4.2},       {"tokens_per_s", 240.1}, {"io_wait_s", 0.294},
          {"read_bytes", 1.9e9}, {"write_bytes", 1.6e9},  {"rss_bytes", 8.0e8},
          {"eta_s", 579.0}};
}

TEST(TrainOutput, AWarningIsALineOfItsOwnWhateverIsOnTheLine) {
  for (const bool json : {false, true}) {
    const Captured results, progress;
    TrainOutput output({results.file(), progress.file(), json, /*live=*/true});
    output.OnProgress(3, 10, 0.5);
    output.OnWarning("vda has completed nothing for 15 s");
    EXPECT_THAT(progress.text(),
                testing::EndsWith("\nforebay: warning: vda has completed nothing for 15 s\n"));
    EXPECT_EQ(results.text(), "") << "which programs read";
  }
}

Json Summary() {
  return {{"steps", 60},
          {"loss", 2.7},
          {"eval_loss_before", 2.99},
          {"eval_loss", 2.71},
          {"tokens_per_s", 264.0},
          {"seconds", 232.0},
          {"params", 134515008},
          {"read_bytes_per_step", 1880000000},
          {"write_bytes_per_step", 1610000000},
          {"read_bytes_per_param", 13.98},
          {"write_bytes_per_param", 11.97},
          {"rss_bytes", 987654321},
          {"ram_budget_bytes", 1073741824},
          {"stores", {"runs/book/swap"}},
          {"store_bytes", 3230000000},
          {"host_weight_bytes", 0},
          {"host_state_bytes", 0},
          {"run", "runs/book"},
          {"model", "runs/book/model"}};
}

TEST(FormatStep, IsOneLineWithEverything) {
  EXPECT_EQ(FormatStep(StepMetrics(), 1073741824),
            "step 12/500 | loss 2.1034 | gnorm 0.831 | lr 9.8e-06 | 4.2 s | 240 tok/s | nvme r1.9 "
            "w1.6 GB | "
            "io wait 7% | ram 0.7/1.0 GiB | eta 9m39s");
}

TEST(FormatStep, SaysWhatTheLossScaleIsAndWhetherItWasTooMuch) {
  Json metrics = StepMetrics();
  metrics["loss_scale"] = 4294967296.0;
  metrics["skipped"] = false;
  EXPECT_THAT(FormatStep(metrics, 1), HasSubstr(" | gnorm 0.831 | scale 4294967296 | lr "));
  metrics["skipped"] = true;
  metrics["grad_norm"] = nullptr;
  EXPECT_THAT(FormatStep(metrics, 1), HasSubstr(" | gnorm overflow | scale 4294967296 | lr "));
}

TEST(FormatStep, SaysThatALossIsNotFinite) {
  Json metrics = StepMetrics();
  // As JSON writes it, and as it is.
  for (const Json& loss : {Json(nullptr), Json(-std::numeric_limits<double>::quiet_NaN()),
                           Json(std::numeric_limits<double>::infinity())}) {
    metrics["loss"] = metrics["eval_loss"] = loss;
    const std::string line = FormatStep(metrics, 1);
    EXPECT_THAT(line, HasSubstr(" | loss not finite | gnorm "));
    EXPECT_THAT(line, HasSubstr(" | held-out not finite"));
  }
}

TEST(FormatStep, AddsTheHeldOutLossWhereItWasMeasured) {
  Json metrics = StepMetrics();
  metrics["eval_loss"] = 2.8123;
  EXPECT_THAT(FormatStep(metrics, 1), HasSubstr(" | held-out 2.8123"));
}

TEST(FormatStep, ToleratesWhatIsMissing) {
  Json metrics = StepMetrics();
  metrics.erase("eta_s");
  EXPECT_THAT(FormatStep(metrics, 1), testing::EndsWith(" | eta 0.0 s"));
}

TEST(FormatSummary, CountsSkippedSteps) {
  Json summary = Summary();
  EXPECT_THAT(FormatSummary(summary), testing::Not(HasSubstr("skipped")));
  summary["skipped_steps"] = 3;
  EXPECT_THAT(FormatSummary(summary), HasSubstr("\nskipped    3 of the run's "));
}

TEST(FormatSummary, SaysWhereEverythingIsAndWhatToDoNext) {
  const std::string text = FormatSummary(Summary());
  EXPECT_THAT(text, HasSubstr("60 steps in 3m52s, 264 tokens/s"));
  EXPECT_THAT(text, HasSubstr("held-out 2.9900 before, 2.7100 after"));
  EXPECT_THAT(
      text, HasSubstr("1.88 GB read + 1.61 GB written per step (14.0 + 12.0 bytes per parameter"));
  EXPECT_THAT(text, HasSubstr("942 MiB at the peak, of a budget of 1.00 GiB"));
  EXPECT_THAT(text, HasSubstr("3.23 GB in runs/book/swap, none of it in RAM"));
  EXPECT_THAT(text, HasSubstr("forebay clean runs/book\n"));
  EXPECT_THAT(text, HasSubstr("forebay generate --model=runs/book/model"));
  EXPECT_THAT(text, HasSubstr("forebay eval --model=runs/book/model"));
}

TEST(FormatSummary, SaysWhichMemoryHadState) {
  Json summary = Summary();
  summary["gpu_state_bytes"] = 1'500'000'000;
  EXPECT_THAT(FormatSummary(summary),
              HasSubstr("runs/book/swap, and 1.50 GB of it on the GPU while training\n"));
  summary["host_state_bytes"] = summary["host_weight_bytes"] = 250'000'000;
  EXPECT_THAT(FormatSummary(summary),
              HasSubstr(", and 500 MB of it in RAM and 1.50 GB of it on the GPU while training\n"));
}

TEST(FormatSummary, QuotesPathsForTheShell) {
  Json summary = Summary();
  summary["run"] = "my run's";
  EXPECT_THAT(FormatSummary(summary), HasSubstr("forebay clean 'my run'\\''s'\n"));
}

TEST(FormatSummary, WithoutExportNamesNoModel) {
  Json summary = Summary();
  summary["model"] = "";
  EXPECT_THAT(FormatSummary(summary), Not(HasSubstr("generate")));
  EXPECT_THAT(FormatSummary(summary), HasSubstr("forebay inspect runs/book"));
}

TEST(TrainOutput, WithoutATerminalEveryLineIsPlain) {
  Captured results, progress;
  TrainOutput output({.results = results.file(), .progress = progress.file()});
  output.OnPlan("table\n", {{"ram_budget_bytes", 1073741824}});
  output.OnPhase("importing", 0.1);
  output.OnPhase("importing", 0.9);
  output.OnProgress(1, 500, 0.5);
  output.OnStep(StepMetrics());
  output.OnNote("a note");
  EXPECT_EQ(results.text(), "table\n" + FormatStep(StepMetrics(), 1073741824) + "\n");
  EXPECT_EQ(progress.text(), "importing\na note\n");
}

TEST(TrainOutput, OnATerminalTheLiveLineGivesWayToTheStep) {
  Captured results, progress;
  TrainOutput output({.results = results.file(), .progress = progress.file(), .live = true});
  output.OnProgress(12, 500, 0.5);
  EXPECT_THAT(progress.text(), HasSubstr("step 12/500 [============            ]  50%"));
  output.OnStep(StepMetrics());
  EXPECT_THAT(progress.text(), testing::EndsWith("\r\x1b[K"));
}

TEST(TrainOutput, JsonIsOneObjectPerLine) {
  Captured results, progress;
  TrainOutput output({.results = results.file(), .progress = progress.file(), .json = true});
  output.OnPlan("table\n", {{"ram_budget_bytes", 1}});
  output.OnNote("a note");
  output.OnStep(StepMetrics());
  output.OnDone(Summary());
  std::vector<Json> events;
  std::string rest = results.text();
  for (size_t end = rest.find('\n'); end != std::string::npos; end = rest.find('\n')) {
    events.push_back(Json::parse(rest.substr(0, end)));
    rest = rest.substr(end + 1);
  }
  EXPECT_EQ(rest, "");
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["event"], "plan");
  EXPECT_EQ(events[0]["plan"]["ram_budget_bytes"], 1);
  EXPECT_EQ(events[1]["text"], "a note");
  EXPECT_EQ(events[2]["event"], "step");
  EXPECT_EQ(events[2]["step"], 12);
  EXPECT_EQ(events[3]["model"], "runs/book/model");
  EXPECT_EQ(progress.text(), "");
}

}  // namespace
}  // namespace forebay
