#include "forebay/tools/command_line.h"

#include <new>
#include <thread>

#include "forebay/tools/commands.h"
#include "forebay/train/options/option_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Outcome {
  int exit_code = 0;
  std::string out;
  std::string err;
};

Outcome RunCommand(const std::vector<std::string>& args) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.exit_code = RunCommandLine(ForebayProgram(), args);
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(NormalizeFlags, HyphensInNamesBecomeUnderscores) {
  EXPECT_THAT(NormalizeFlags({"--eval-data=a-b.txt", "--dry-run", "x-y", "-h"}),
              ElementsAre("--eval_data=a-b.txt", "--dry_run", "x-y", "-h"));
}

TEST(NormalizeFlags, WhatFollowsTwoHyphensIsLeftAlone) {
  EXPECT_THAT(NormalizeFlags({"--", "--a-b"}), ElementsAre("--", "--a-b"));
}

TEST(CommandLine, WithoutACommandTheOverviewGoesToStderr) {
  const Outcome outcome = RunCommand({});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("Usage: forebay COMMAND"));
}

TEST(CommandLine, HelpListsEveryCommandAndTheExitCodes) {
  const Outcome outcome = RunCommand({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const CommandEntry& entry : ForebayProgram().commands)
    EXPECT_THAT(outcome.out, HasSubstr("  " + entry.name + " "));
  EXPECT_THAT(outcome.out, HasSubstr("  data "));
  EXPECT_THAT(outcome.out, HasSubstr("75 stopped on request, resumable"));
}

TEST(CommandLine, EveryCommandHasAHelpPageWithExitCodesAndAnExample) {
  for (const CommandEntry& entry : ForebayProgram().commands) {
    if (entry.forward != nullptr) continue;  // another program's help
    const Outcome outcome = RunCommand({entry.name, "--help"});
    EXPECT_EQ(outcome.exit_code, 0) << entry.name;
    EXPECT_THAT(outcome.out, HasSubstr(entry.example)) << entry.name;
    EXPECT_THAT(outcome.out, HasSubstr("Exit codes:")) << entry.name;
    EXPECT_THAT(outcome.out, HasSubstr("--format")) << entry.name;
  }
}

TEST(CommandLine, HelpOfTrainIsOfTheFlagsAndHelpAllOfTheRestToo) {
  const Outcome outcome = RunCommand({"train", "--help"});
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("--optimizer_args"), HasSubstr("--help_all"),
                                 Not(HasSubstr("tile_elems"))));
  const Outcome all = RunCommand({"train", "--help_all"});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_THAT(all.out, AllOf(HasSubstr(outcome.out), HasSubstr("  tile_elems=N\n")));
  int num_flags = 0;
  for (const OptionSpec& spec : OptionTable()) num_flags += spec.form == OptionForm::kFlag ? 1 : 0;
  EXPECT_LE(num_flags + 2, 55);
}

TEST(CommandLine, HelpOfACommandIsItsHelpPage) {
  const Outcome outcome = RunCommand({"help", "inspect"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, RunCommand({"inspect", "--help"}).out);
  EXPECT_THAT(RunCommand({"help", "inspct"}).err, HasSubstr("did you mean 'inspect'?"));
}

// Nobody catches an exception there.
TEST(CommandLineDeathTest, MemoryThatRunsOutOnAnyThreadIsExitCode6) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run_out = [] {
    RunCommandLine(ForebayProgram(), {"version"});
    std::thread([] { ::operator delete(::operator new (size_t{1} << 62)); }).join();
  };
  EXPECT_EXIT(run_out(), testing::ExitedWithCode(6),
              "forebay: error: out of memory. .*'ulimit -v'.* use a smaller --ram");
}

TEST(CommandLine, AnEmptyValueIsAValueAndTakesNoOther) {
  Outcome outcome = RunCommand({"train", "--accum=", "--set", "data.seq=32", "--model=m"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--accum"));
  outcome = RunCommand({"inspect", "--hash=", "x"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("'--hash=' has no value; write '--hash'"));
}

TEST(CommandLine, AFlagIsNoValue) {
  const Outcome outcome = RunCommand({"eval", "--model", "--data=d"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("--model needs a value, but '--data=d' follows it. Write --model=VALUE"));
}

TEST(CommandLine, AnUnknownCommandNamesTheNearest) {
  const Outcome outcome = RunCommand({"trian"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err,
              HasSubstr("forebay: error: unknown command 'trian'; did you mean 'train'?"));
}

TEST(CommandLine, AnUnknownFlagNamesTheNearest) {
  const Outcome outcome = RunCommand({"inspect", "x", "--tensor"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("unknown flag '--tensor'; did you mean '--tensors'?"));
}

TEST(CommandLine, ARequiredFlagThatIsMistypedNamesTheNearest) {
  const Outcome outcome = RunCommand({"eval", "--mdoel=m", "--data=d"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("unknown flag '--mdoel=m'; did you mean '--model'?"));
}

TEST(CommandLine, NumbersThatAreNoneOrTooLargeAreRefused) {
  for (const char* flag :
       {"--temperature=nan", "--temperature=-1", "--temperature=inf", "--top_p=nan", "--top_p=0",
        "--seed=-1", "--seed=18446744073709551616"}) {
    const Outcome outcome = RunCommand({"generate", "--model=m", "--prompt=a", flag});
    EXPECT_EQ(outcome.exit_code, 2) << flag;
    EXPECT_THAT(outcome.err, HasSubstr("' is no ")) << flag;
  }
  EXPECT_EQ(RunCommand({"init", "--config=c", "--out=o", "--seed=-1"}).exit_code, 2);
}

TEST(CommandLine, UnknownFlagsOfTrainAreReportedWithItsOtherProblems) {
  const Outcome outcome =
      RunCommand({"train", "--bacth=4", "--lr=fast", "--model=m", "--data=d", "--out=o"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("2 problems with the options:"));
  EXPECT_THAT(outcome.err, HasSubstr("unknown flag '--bacth=4'; did you mean '--batch'?"));
  EXPECT_THAT(outcome.err, HasSubstr("--lr is 'fast'"));
}

TEST(CommandLine, AnArgumentTooManyIsRefused) {
  const Outcome outcome = RunCommand({"clean", "a", "b"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("unexpected argument 'b'"));
}

TEST(CommandLine, AMissingArgumentIsNamed) {
  const Outcome outcome = RunCommand({"clean"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("RUN is required"));
}

TEST(CommandLine, WithFormatJsonTheErrorIsADocumentOnStdoutToo) {
  const Outcome outcome = RunCommand({"clean", "/nonexistent", "--format", "json"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("forebay: error: "));
  EXPECT_THAT(outcome.out, HasSubstr("\"exit_code\":3"));
}

TEST(CommandLine, AnArgumentThatNoJsonFileCanHoldIsRefused) {
  for (const char* command : {"clean", "inspect"}) {
    const Outcome outcome = RunCommand({command, "/nonexistent/\xff", "--format=json"});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/\xef\xbf\xbd\" is not valid UTF-8"));
  }
}

TEST(CommandLine, AnUnknownFormatIsRefused) {
  const Outcome outcome = RunCommand({"version", "--format=xml"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--format is 'xml'; allowed: text or json"));
}

TEST(CommandLine, VersionIsACommandAndAFlag) {
  EXPECT_EQ(RunCommand({"version"}).out, RunCommand({"--version"}).out);
  EXPECT_EQ(RunCommand({"version"}).out, RunCommand({"-v"}).out);
  EXPECT_THAT(RunCommand({"version"}).out, HasSubstr("forebay "));
  EXPECT_THAT(RunCommand({"version"}).out, HasSubstr("CUDA"));
}

TEST(CommandLine, GenerateNeedsExactlyOneOfPromptAndChat) {
  EXPECT_THAT(RunCommand({"generate", "--model=m"}).err,
              HasSubstr("give either --prompt or --chat"));
  EXPECT_THAT(RunCommand({"generate", "--model=m", "--prompt=a", "--chat=b"}).err,
              HasSubstr("give either --prompt or --chat"));
}

TEST(CommandLine, SharedModelFlagsAreCheckedLikeTheTables) {
  const Outcome outcome =
      RunCommand({"eval", "--model=m", "--data=d", "--ram=lots", "--precision=fp8"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--ram is 'lots'"));
  EXPECT_THAT(outcome.err, HasSubstr("--precision is 'fp8'; allowed: bf16 or fp16 or fp32"));
}

TEST(CommandLine, AMissingModelIsBadInput) {
  const Outcome outcome = RunCommand({"plan", "/nonexistent/model"});
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/model"));
}

}  // namespace
}  // namespace forebay
