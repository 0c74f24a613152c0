#include "forebay/tools/swap_bench/job_flags.h"

#include <algorithm>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<Job> Parse(std::vector<std::string> arguments, JobUse use = JobUse::kRun) {
  CLI::App app;
  JobFlags flags(use);
  flags.Declare(app);
  std::ranges::reverse(arguments);
  app.parse(arguments);
  return flags.Read();
}

TEST(JobFlags, TheDefaultsAreTheJobsOwn) {
  const auto job = Parse({"/x"});
  ASSERT_TRUE(job.ok()) << job.status();
  const Job defaults;
  EXPECT_EQ(job->loads, defaults.loads);
  EXPECT_EQ(job->block_bytes, defaults.block_bytes);
  EXPECT_EQ(job->depth, defaults.depth);
  EXPECT_EQ(job->engine, defaults.engine);
  EXPECT_EQ(job->size_bytes, defaults.size_bytes);
  EXPECT_EQ(job->seconds, defaults.seconds);
  EXPECT_EQ(job->warmup_s, defaults.warmup_s);
  EXPECT_EQ(job->repeats, defaults.repeats);
  EXPECT_EQ(job->threads, defaults.threads);
  EXPECT_EQ(job->fixed, defaults.fixed);
  EXPECT_EQ(job->pages, defaults.pages);
  EXPECT_EQ(job->numa_node, defaults.numa_node);
  EXPECT_EQ(job->flush, defaults.flush);
  EXPECT_EQ(job->seed, defaults.seed);
  EXPECT_FALSE(job->steady.has_value());
}

TEST(JobFlags, ASweepTakesNoWeights) {
  EXPECT_THAT(MessageOf(Parse({"/x:7"}, JobUse::kSweep).status()),
              HasSubstr("'/x:7' has a weight, but sweep measures each folder alone"));
  EXPECT_TRUE(Parse({"/x", "/y"}, JobUse::kSweep).ok());
}

TEST(JobFlags, BytesInFlightAreADepth) {
  const auto job = Parse({"/x", "--inflight=64M", "--bs=2M"});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->depth, 32);
}

TEST(JobFlags, EverythingThatIsWrongIsSaidAtOnce) {
  const std::string message = MessageOf(Parse({"/x", "--time=x", "--fixed=maybe"}).status());
  EXPECT_THAT(message, HasSubstr("--time: 'x'"));
  EXPECT_THAT(message, HasSubstr("--fixed: 'maybe'; allowed: on or off"));
}

TEST(JobFlags, ASweepHasNoFlagForWhatItLooksFor) {
  EXPECT_TRUE(Parse({"/x", "--size=1G"}, JobUse::kSweep).ok());
  EXPECT_THROW(Parse({"/x", "--bs=1M"}, JobUse::kSweep).IgnoreError(), CLI::ParseError);
}

TEST(ParseTarget, SplitsOffTheWeight) {
  EXPECT_EQ(ParseTarget("/a").directory, "/a");
  EXPECT_EQ(ParseTarget("/a").weight, 0);
  EXPECT_EQ(ParseTarget("/a:2.5").directory, "/a");
  EXPECT_EQ(ParseTarget("/a:2.5").weight, 2.5);
  EXPECT_EQ(ParseTarget("/a:b").directory, "/a:b");
  EXPECT_LT(ParseTarget("/a:0").weight, 0);
}

TEST(ParseTarget, AWeightThatIsNoneIsSaidInTheWordsOfWhoWroteIt) {
  for (const char* text : {"/a:0", "/a:-3", "/a:nan"}) {
    const std::string message = MessageOf(Parse({text}).status());
    EXPECT_THAT(message, HasSubstr(fmt::format("the weight in '{}' is no number above 0", text)));
  }
}

TEST(ParseTarget, AFolderMayHaveAColonInItsName) {
  const TemporaryFolder folder;
  const std::string odd = folder.Path("disk:2");
  ASSERT_TRUE(MakeDirectories(odd).ok());
  EXPECT_EQ(ParseTarget(odd).directory, odd);
  EXPECT_EQ(ParseTarget(odd + ":3").directory, odd);
}

TEST(ParseLoads, KnowsReadsWritesAndMixtures) {
  const auto loads = ParseLoads("read,mixed=70,write,mixed,read");
  ASSERT_TRUE(loads.ok());
  EXPECT_THAT(*loads, ElementsAre(LoadKind{LoadOp::kRead, 100}, LoadKind{LoadOp::kMixed, 70},
                                  LoadKind{LoadOp::kWrite, 0}, LoadKind{LoadOp::kMixed, 50}));
  for (const char* text : {"", "reads", "mixed=0", "mixed=100", "mixed=x", "read,"}) {
    EXPECT_FALSE(ParseLoads(text).ok()) << text;
  }
}

TEST(ParseSteady, TakesAShareAndATime) {
  const auto steady = ParseSteady("bw:2%/5s");
  ASSERT_TRUE(steady.ok());
  EXPECT_DOUBLE_EQ(steady->max_trend, 0.02);
  EXPECT_EQ(steady->window_s, 5);
  for (const char* text : {"", "bw:2%", "2%/5s", "bw:x/5s", "bw:2%/x"}) {
    EXPECT_THAT(MessageOf(ParseSteady(text).status()), HasSubstr("bw:SHARE/TIME")) << text;
  }
  EXPECT_THAT(MessageOf(ParseSteady("bw:0%/5s").status()), HasSubstr("a SHARE above 0"));
  EXPECT_THAT(MessageOf(ParseSteady("bw:5%/100ms").status()), HasSubstr("a TIME of 0.5s or more"));
}

TEST(ParseShare, IsAPercentageOrAFraction) {
  EXPECT_DOUBLE_EQ(*ParseShare("5%"), 0.05);
  EXPECT_DOUBLE_EQ(*ParseShare("0.05"), 0.05);
  EXPECT_DOUBLE_EQ(*ParseShare("0%"), 0);
  for (const char* text : {"", "%", "101%", "-1%", "5", "nan"}) {
    EXPECT_FALSE(ParseShare(text).ok()) << text;
  }
}

// In a table of Markdown, a bar separates cells.
std::string Cell(std::string_view text) {
  std::string cell;
  for (const char c : text) cell += c == '|' ? std::string("\\|") : std::string(1, c);
  return cell;
}

// When this fails, paste the printed block between the two markers.
TEST(JobFlagTable, IsTheOneOfTheDocumentation) {
  const auto doc = ReadWholeFile(JoinPath(FOREBAY_SOURCE_DIR, "docs/cli.md"), 1 << 20);
  ASSERT_TRUE(doc.ok()) << doc.status();
  std::string expected = "| flag | value | default | what it does |\n|---|---|---|---|\n";
  for (const JobFlag& flag : JobFlagTable()) {
    expected += fmt::format("| `--{}` | {} | {} | {} |\n", flag.name, Cell(flag.value),
                            Cell(flag.by_default), Cell(flag.help));
  }
  const std::string begin_mark = "<!-- swap-bench flags: begin -->\n";
  const size_t begin = doc->find(begin_mark);
  const size_t end = doc->find("<!-- swap-bench flags: end -->");
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(doc->substr(begin + begin_mark.size(), end - begin - begin_mark.size()), expected);
}

}  // namespace
}  // namespace forebay
