// A report as a whole: text, page, CSV and JSON of a recorded run.
#include <string_view>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/tests/train/report/count_text.h"
#include "forebay/tests/train/report/recorded_run.h"
#include "forebay/train/report/make_report.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kGoldenText[] = R"(
  model                        /models/<b>&"tiny"
  tokens a step                2 x 64 x 1 (batch x seq x accum)
  optimizer                    0.001
  device, durability           step
  steps                        4 of 6
  first loss                   5.5000 at step 1
  last loss                    4.5000 at step 4
  first held-out loss          5.7500 at step 0
  best held-out loss           5.1250 at step 2
  last held-out loss           5.2500 at step 4
  tokens/s                     263
  median step                  250 ms (plan 200 ms: 125.0 % of it), step 2
  read a step                  1.00 MB (plan 1.00 MB: 100.0 % of it)
  written a step               0 B (plan 1.00 MB: 0.0 % of it)
  memory charged               120 MiB (plan 128 MiB: 93.8 % of it)
  memory of the process        26.0 MiB
  memory budget                1.00 GiB
  written in all               at least 3.75 MB = 6.2e-07 % of a drive of 600 TBW
  skipped steps                1
  of the median step
    compute                    125 ms (50.0 %)
    wait for weights           50.0 ms (20.0 %)
    wait for commit            50.0 ms (20.0 %)
    wait for threads           25.0 ms (10.0 %)
)";

std::string Contents(const std::string& path) {
  const auto contents = ReadWholeFile(path, 1 << 26);
  FOREBAY_CHECK(contents.ok());
  return *contents;
}

MadeReport Make(std::vector<std::string> runs, ReportForm form, std::string out = "") {
  auto made = MakeReport({std::move(runs), form, std::move(out)});
  FOREBAY_CHECK(made.ok());
  return *std::move(made);
}

TEST(Report, HasTheFiguresOfARunAsText) {
  const RecordedRun run;
  const MadeReport made = Make({run.folder()}, ReportForm::kText);
  EXPECT_EQ(made.text, run.folder() + kGoldenText);
  EXPECT_TRUE(made.files.empty());
}

TEST(Report, SettingsThatDifferAreThoseOfTheRunAsPeopleWriteThem) {
  RecordedRun one, two("two");
  one.Set("offload", "ram", 314572800);
  two.Set("offload", "ram", 2147483648);
  one.Set("offload", "gpu_mem", "auto");
  two.Set("offload", "gpu_mem", 1048577);
  one.Set("io", "resume", false);
  two.Set("io", "resume", true);
  one.Set("io", "trace", "");
  two.Set("io", "trace", "trace.json");
  const MadeReport made = Make({one.folder(), two.folder()}, ReportForm::kText);
  EXPECT_THAT(made.text, EndsWith("\nsettings that differ\n"
                                  "  --ram                        book                 300MiB\n"
                                  "                               two                  2GiB\n"
                                  "  --gpu_mem                    book                 auto\n"
                                  "                               two                  1048577\n"));
}

TEST(Report, OfSeveralRunsHasTheSettingsInWhichTheyDiffer) {
  const RecordedRun one;
  RecordedRun two("two");
  two.Set("optim", "lr", 0.003);
  const MadeReport made = Make({one.folder(), two.folder()}, ReportForm::kText);
  EXPECT_THAT(made.text, EndsWith("\nsettings that differ\n"
                                  "  --lr                         book                 0.001\n"
                                  "                               two                  0.003\n"));
  EXPECT_EQ(made.json["differing_settings"],
            Json::parse(R"([{"flag":"--lr","values":["0.001","0.003"]}])"));
}

TEST(Report, IsAPageWithAllChartsInTheRunFolder) {
  const RecordedRun run;
  const MadeReport made = Make({run.folder()}, ReportForm::kHtml);
  EXPECT_THAT(made.files, ElementsAre(JoinPath(run.folder(), "report.html")));
  const std::string page = Contents(made.files[0]);
  EXPECT_THAT(page, AllOf(StartsWith("<!DOCTYPE html>"), EndsWith("</html>\n")));
  EXPECT_EQ(CountText(page, "<figure"), 5);
  // Loss 3 and held-out loss 3; speed, bytes read and written 4 each; a bar for each step.
  EXPECT_EQ(CountText(page, "<circle"), 6 + 3 * 4);
  EXPECT_EQ(CountText(page, "class=\"bar\""), 4);
  EXPECT_EQ(CountText(page, "<path class=\"level"), 2 * 3);  // and in their legends
  EXPECT_THAT(page, HasSubstr("/models/&lt;b&gt;&amp;&quot;tiny&quot;"));
  EXPECT_THAT(page,
              AllOf(Not(HasSubstr("<b>")), Not(HasSubstr("<script")), Not(HasSubstr("http://")),
                    Not(HasSubstr("https://")), Not(HasSubstr("nan")), Not(HasSubstr("src="))));
}

TEST(Report, OfARunBeforeItsFirstStepSaysSo) {
  const RecordedRun run;
  RecordedRun::Write(run.paths().metrics, "");
  const MadeReport made = Make({run.folder()}, ReportForm::kHtml);
  EXPECT_THAT(made.text, HasSubstr("has no line of a step yet"));
  EXPECT_THAT(made.text, HasSubstr("steps                        0 of 6"));
  const std::string page = Contents(made.files[0]);
  EXPECT_EQ(CountText(page, "nothing was recorded"), 5);
  EXPECT_TRUE(made.json["runs"][0]["median_step"].is_null());
  EXPECT_TRUE(made.json["runs"][0]["last_loss"].is_null());
}

TEST(Report, OfALongRunIsAPageOfSomeHundredKilobytes) {
  const RecordedRun run;
  std::string lines;
  for (int step = 1; step <= 50'000; ++step) {
    lines += fmt::format(
        R"({{"step":{0},"loss":{1},"step_s":{1},"tokens_per_s":{1},"compute_s":{1},"io_wait_s":0}})"
        "\n",
        step, step % 10 + 1.5);
  }
  RecordedRun::Write(run.paths().metrics, lines);
  const MadeReport made = Make({run.folder()}, ReportForm::kHtml);
  EXPECT_LT(Contents(made.files[0]).size(), 400'000u);
}

TEST(Report, AsCsvHasARowForEachStepOfEachRun) {
  const RecordedRun one;
  const RecordedRun two("a,b");
  const std::string csv = Make({one.folder(), two.folder()}, ReportForm::kCsv).text;
  EXPECT_EQ(CountText(csv, "\n"), 1 + 2 * 5);
  EXPECT_THAT(csv, StartsWith("run,step,eval_loss,loss,grad_norm,lr,tokens,step_s,tokens_per_s,"
                              "compute_s,io_wait_s,waits.other,waits.weights,"));
  EXPECT_THAT(csv, HasSubstr(fmt::format("\n{},0,5.75,,", one.folder())));
  EXPECT_THAT(csv, HasSubstr(fmt::format("\n\"{}\",2,5.125,5,3,0.0008,128,0.25,", two.folder())));
  const TemporaryFolder folder;
  const std::string path = folder.Path("steps.csv");
  EXPECT_THAT(Make({one.folder(), two.folder()}, ReportForm::kCsv, path).files, ElementsAre(path));
  EXPECT_EQ(Contents(path), csv);
}

TEST(Report, ForTensorboardHasAFolderForEachRun) {
  const RecordedRun one;
  const RecordedRun two;
  const TemporaryFolder out;
  const MadeReport made =
      Make({one.folder(), two.folder()}, ReportForm::kTensorboard, out.Path("tb"));
  EXPECT_THAT(made.files, ElementsAre(out.Path("tb/book/events.out.tfevents.forebay"),
                                      out.Path("tb/book-2/events.out.tfevents.forebay")));
  EXPECT_THAT(Contents(made.files[0]), HasSubstr("brain.Event:2"));
}

TEST(Report, ThatCannotBeWrittenIsAStorageErrorWithAWayOut) {
  const RecordedRun run;
  const auto made = MakeReport({{run.folder()}, ReportForm::kHtml, "/proc/no/report.html"});
  EXPECT_EQ(ExitCodeOf(made.status()), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(made.status()), HasSubstr("--out=PATH"));
}

TEST(Report, AsJsonHasFiguresAndPlan) {
  const RecordedRun run;
  const Json json = Make({run.folder()}, ReportForm::kText).json["runs"][0];
  EXPECT_EQ(json["last_loss"], Json::parse(R"({"step":4,"value":4.5})"));
  EXPECT_EQ(json["num_steps"], 6);
  EXPECT_EQ(json["median_step"]["parts_s"]["wait for commit"], 0.05);
  EXPECT_EQ(json["planned_step_s"], 0.2);
  EXPECT_EQ(json["read_bytes_per_step"], 1'000'000);
  EXPECT_EQ(json["planned_host_bytes"], 134'217'728);
  EXPECT_EQ(json["skipped_steps"], 1);
  EXPECT_TRUE(json["recomputed_steps"].is_null());
  EXPECT_EQ(json["settings"]["lr"], "0.001");
}

}  // namespace
}  // namespace forebay
