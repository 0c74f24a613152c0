#include "forebay/data/data_program.h"

#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "fmt/format.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "gmock/gmock.h"
#include "packed_bytes.h"

namespace forebay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A shell script stands in for the Python program, so that the plumbing is tested without Python.
class DataProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    unsetenv("FOREBAY_DATA");
  }
  void Install(const std::string& script) {
    const std::string path = folder_ + "/forebay-data";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    chmod(path.c_str(), 0700);
    setenv("FOREBAY_DATA", path.c_str(), 1);
  }
  void WriteFile(const std::string& name, const std::string& contents) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << contents;
  }

  std::string folder_;
};

TEST_F(DataProgramTest, DocumentIsReturnedAndArgumentsArriveUnchanged) {
  Install(R"(printf '["%s","%s","%s"]' "$1" "$2" "$3")");
  const auto document = RunDataProgram({"a b", "$HOME;*"});
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(*document, Json({"a b", "$HOME;*", "--format=json"}));
}

TEST_F(DataProgramTest, InputArrivesWhole) {
  Install("printf '%s' $(wc -c)");
  const auto document = RunDataProgram({}, std::string(3'000'000, 'x'));
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(*document, 3'000'000);
}

TEST_F(DataProgramTest, LongOutputIsReadWhole) {
  Install("printf '\"'; head -c 3000000 /dev/zero | tr '\\0' x; printf '\"'");
  const auto document = RunDataProgram({});
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(document->get<std::string>().size(), 3'000'000u);
}

TEST_F(DataProgramTest, ErrorKeepsMessageAndExitCode) {
  for (const int code : {2, 3, 4, 5, 6, 8, 9, 75}) {
    Install(R"(echo '{"error":{"message":"x.jsonl:3: bad","exit_code":3}}'; exit )" +
            std::to_string(code));
    const absl::Status status = RunDataProgram({}).status();
    EXPECT_EQ(MessageOf(status), "x.jsonl:3: bad");
    EXPECT_EQ(static_cast<int>(ExitCodeOf(status)), code);
  }
}

TEST_F(DataProgramTest, CrashWithoutMessageIsInternal) {
  Install("exit 1");
  const absl::Status status = RunDataProgram({}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kInternal);
  EXPECT_THAT(MessageOf(status), HasSubstr("exit code 1"));
}

TEST_F(DataProgramTest, DeathBySignalIsTold) {
  for (const char* signal : {"INT", "TERM", "HUP"}) {
    Install(std::string("kill -") + signal + " $$");
    EXPECT_EQ(ExitCodeOf(RunDataProgram({}).status()), ExitCode::kInterrupted) << signal;
  }
  Install("kill -KILL $$");
  EXPECT_EQ(ExitCodeOf(RunDataProgram({}).status()), ExitCode::kOutOfMemory);
}

TEST_F(DataProgramTest, ProgramThatReadsNoInputCausesNoSignal) {
  Install("exec 0<&-; sleep 0.1; echo '{\"error\":{\"message\":\"no\",\"exit_code\":3}}'; exit 3");
  EXPECT_EQ(MessageOf(RunDataProgram({}, std::string(10'000'000, 'x')).status()), "no");
}

TEST_F(DataProgramTest, IgnoredSignalsAreNotInherited) {
  const auto before = std::signal(SIGINT, SIG_IGN);
  Install("kill -INT $$; echo 1");
  EXPECT_EQ(ExitCodeOf(RunDataProgram({}).status()), ExitCode::kInterrupted);
  std::signal(SIGINT, before);
}

TEST_F(DataProgramTest, AHangupIsIgnoredTogether) {
  const auto before = std::signal(SIGHUP, SIG_IGN);  // as nohup does
  Install("kill -HUP $$; echo 1");
  EXPECT_TRUE(RunDataProgram({}).ok());
  std::signal(SIGHUP, before);
}

TEST_F(DataProgramTest, StopEndsTheProgramAtOnce) {
  // The second one does not heed SIGTERM; what the third one starts outlives it, with its output.
  // (Not with the output of this test, for which whoever runs it would wait.)
  for (const char* script :
       {"exec sleep 100", "trap '' TERM; exec sleep 100", "sleep 100 2>/dev/null & wait; :"}) {
    Install(script);
    const Stopwatch watch;
    const absl::Status status =
        RunDataProgram({}, "", [&] { return watch.Seconds() > 0.3; }).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
    EXPECT_LT(watch.Seconds(), 50) << script;
  }
}

TEST_F(DataProgramTest, StopThatIsNeverAskedChangesNothing) {
  Install("sleep 0.5; echo 7");
  const auto document = RunDataProgram({}, "", [] { return false; });
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(*document, 7);
}

TEST_F(DataProgramTest, ProgramDiesWithItsParent) {
  Install("echo $$ >" + folder_ + "/pid; mv " + folder_ + "/pid " + folder_ +
          "/started; exec sleep 100");
  // Orphans come to this process, which can tell their end from a zombie's life.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    RunDataProgram({}).IgnoreError();
    ::_exit(0);
  }
  while (!std::filesystem::exists(folder_ + "/started")) ::usleep(1000);
  pid_t child = 0;
  std::ifstream(folder_ + "/started") >> child;
  ::kill(parent, SIGKILL);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  int status = 0;
  pid_t ended = 0;
  const Stopwatch watch;
  while (ended == 0 && watch.Seconds() < 50) {
    ended = ::waitpid(child, &status, WNOHANG);
    ::usleep(1000);
  }
  if (ended == 0) ::kill(child, SIGKILL);
  EXPECT_EQ(ended, child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_F(DataProgramTest, CtrlCOnTheTerminalIsTheProgramsToAnswer) {
  Install("kill -INT $PPID; exit 75");
  const auto code = RunDataProgramOnTerminal({"pack"});
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(*code, 75);
}

TEST_F(DataProgramTest, ProgramThatCannotBeRunSaysWhy) {
  std::ofstream(folder_ + "/forebay-data") << "#!" + folder_ + "/no-shell\n";
  chmod((folder_ + "/forebay-data").c_str(), 0700);
  setenv("FOREBAY_DATA", (folder_ + "/forebay-data").c_str(), 1);
  const absl::Status status = RunDataProgram({}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(status), HasSubstr("ENOENT"));
}

TEST_F(DataProgramTest, OutputThatIsNoJsonIsInternal) {
  Install("echo hello");
  EXPECT_EQ(ExitCodeOf(RunDataProgram({}).status()), ExitCode::kInternal);
}

TEST_F(DataProgramTest, MissingProgramSaysWhereItWasLookedFor) {
  setenv("FOREBAY_DATA", (folder_ + "/nothing").c_str(), 1);
  const absl::Status status = RunDataProgram({}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(status), HasSubstr("FOREBAY_DATA names"));
}

TEST_F(DataProgramTest, ProgramIsFoundInPath) {
  Install("echo 7");
  unsetenv("FOREBAY_DATA");
  const std::string before = std::getenv("PATH");
  setenv("PATH", (":/nonexistent:" + folder_ + ":" + before).c_str(), 1);
  const auto document = RunDataProgram({});
  setenv("PATH", "/nonexistent", 1);
  const absl::Status missing = RunDataProgram({}).status();
  setenv("PATH", before.c_str(), 1);
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(*document, 7);
  EXPECT_EQ(ExitCodeOf(missing), ExitCode::kEnvironment);
}

TEST_F(DataProgramTest, ExitCodeOnTheTerminalIsReturned) {
  Install("exit 3");
  const auto code = RunDataProgramOnTerminal({"show"});
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(*code, 3);
}

TEST_F(DataProgramTest, PackRequestBecomesArguments) {
  Install(R"(printf '{"path":"/c/x.packed","cached":true,"args":"%s"}' "$*")");
  PackRequest request;
  request.data = "-d.txt";
  request.model = "m";
  request.seq = 128;
  request.truncate = true;
  request.cache = "c";
  const auto result = PackedPathFor(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->path, "/c/x.packed");
  EXPECT_TRUE(result->cached);
  EXPECT_EQ(result->report["args"],
            "pack --data=-d.txt --model=m --seq=128 --cache=c --truncate --format=json "
            "--errors=document");
}

TEST_F(DataProgramTest, EachNameOfDataBecomesAbsoluteAndKeepsItsWeight) {
  const auto below = [](const std::string& path) { return "/f/" + path; };
  EXPECT_EQ(WithAbsolutePaths("a.txt", below), "/f/a.txt");
  EXPECT_EQ(WithAbsolutePaths("a.jsonl:2,b,c.txt:0.5", below), "/f/a.jsonl:2,/f/b,/f/c.txt:0.5");
  WriteFile("with,comma.txt", "x");
  const std::string there = folder_ + "/with,comma.txt";
  EXPECT_EQ(WithAbsolutePaths(there, [](const std::string& path) { return path + "!"; }),
            there + "!");
}

TEST_F(DataProgramTest, PackedFileIsUsedAsItIsWithoutTheProgram) {
  WriteFile("x.packed", PackedBytes().Encode());
  WriteFile("config.json", R"({"vocab_size": 10, "max_position_embeddings": 3})");
  setenv("FOREBAY_DATA", "/nonexistent", 1);
  PackRequest request;
  request.data = folder_ + "/x.packed";
  request.model = folder_;
  request.seq = 4;
  const auto result = PackedPathFor(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->path, request.data);
  EXPECT_EQ(result->report["trained"], 3);
}

TEST_F(DataProgramTest, PackedFileThatDoesNotFitIsRefused) {
  WriteFile("x.packed", PackedBytes().Encode());
  PackRequest request;
  request.data = folder_ + "/x.packed";
  request.model = folder_;
  request.seq = 8;
  WriteFile("config.json", R"({"vocab_size": 10})");
  EXPECT_THAT(MessageOf(PackedPathFor(request).status()), HasSubstr("rows of 4 tokens"));
  request.seq = 4;
  WriteFile("config.json", R"({"vocab_size": 9})");
  EXPECT_THAT(MessageOf(PackedPathFor(request).status()), HasSubstr("vocabulary of 10"));
  WriteFile("config.json", R"({"vocab_size": 10, "n_positions": 2})");
  EXPECT_THAT(MessageOf(PackedPathFor(request).status()), HasSubstr("2 positions"));
}

TEST_F(DataProgramTest, PackedFileOfAnotherTokenizerIsRefused) {
  PackedBytes packed;
  WriteFile("config.json", R"({"vocab_size": 10})");
  WriteFile("tokenizer.json", "the tokenizer");
  PackRequest request;
  request.data = folder_ + "/x.packed";
  request.model = folder_;
  request.seq = 4;
  WriteFile("x.packed", packed.Encode());
  EXPECT_THAT(MessageOf(PackedPathFor(request).status()), HasSubstr("another tokenizer"));
  Xxh3_128 digest;
  digest.Update("the tokenizer");
  for (const std::string& made_by : {digest.Hex(), std::string()}) {
    packed.info = fmt::format(R"({{"tokenizer_digest":"{}","provenance":{{}}}})", made_by);
    WriteFile("x.packed", packed.Encode());
    EXPECT_TRUE(PackedPathFor(request).ok()) << PackedPathFor(request).status();
  }
}

TEST_F(DataProgramTest, PromptIsEncodedThroughOneJsonLine) {
  Install(R"(read -r line; [ "$line" = '{"prompt":"a\n\"b\""}' ] && [ "$3" = --chat ] || exit 1
             echo '{"tokens":[5,6],"eos":[2,7]}')");
  const auto encoded = EncodePrompt("m", "a\n\"b\"", true);
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  EXPECT_THAT(encoded->tokens, ElementsAre(5, 6));
  EXPECT_THAT(encoded->eos_token_ids, ElementsAre(2, 7));
}

TEST_F(DataProgramTest, PromptsOfAFileComeTogetherWithTheirLines) {
  Install(R"([ "$3" = --prompts=p.jsonl ] || exit 1
             echo '[{"tokens":[5,6],"eos":[2],"line":1},{"tokens":[7],"eos":[2],"line":4}]')");
  const auto encoded = EncodePromptFile("m", "p.jsonl");
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  ASSERT_EQ(encoded->size(), 2);
  EXPECT_THAT(encoded->front().tokens, ElementsAre(5, 6));
  EXPECT_EQ(encoded->back().line, 4);
}

TEST_F(DataProgramTest, PromptsThatAreNoneAreAnError) {
  for (const char* reply : {"[]", "{}", R"([{"tokens":[5]}])", R"([{"tokens":[-1],"eos":[]}])"}) {
    Install(fmt::format("echo '{}'", reply));
    EXPECT_THAT(MessageOf(EncodePromptFile("m", "p.txt").status()), HasSubstr("different versions"))
        << reply;
  }
}

TEST_F(DataProgramTest, DecoderAnswersEveryTokenAndTheEndOfEachText) {
  Install(R"(echo '""'
             while read -r text token; do
               [ "$token" = end ] && echo "\"end of $text\"" || echo "\"<$text $token>\""
             done)");
  auto decoder = TokenDecoder::Start("m");
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  ASSERT_TRUE((*decoder)->AwaitReady().ok());
  for (int32_t token = 0; token < 100; ++token) {
    const auto text = (*decoder)->Push(token, 0);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, "<0 " + std::to_string(token) + ">");
  }
  for (size_t text = 0; text < 2; ++text) {
    const auto rest = (*decoder)->Finish(text);
    ASSERT_TRUE(rest.ok());
    EXPECT_EQ(*rest, fmt::format("end of {}", text));
    EXPECT_EQ((*decoder)->Push(7, 1 - text).value_or(""), fmt::format("<{} 7>", 1 - text));
  }
}

TEST_F(DataProgramTest, DecoderTellsTheErrorOfItsProgram) {
  Install(R"(echo '{"error":{"message":"no tokenizer.json","exit_code":3}}'; exit 3)");
  auto decoder = TokenDecoder::Start("m");
  ASSERT_TRUE(decoder.ok());
  const absl::Status status = (*decoder)->AwaitReady();
  EXPECT_EQ(MessageOf(status), "no tokenizer.json");
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
}

TEST_F(DataProgramTest, DecoderIsReadyWhenItsProgramSaysSo) {
  Install("sleep 0.3; touch " + folder_ + "/loaded; echo '\"\"'; read -r token");
  auto decoder = TokenDecoder::Start("m");
  ASSERT_TRUE(decoder.ok());
  ASSERT_TRUE((*decoder)->AwaitReady().ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/loaded"));
}

TEST_F(DataProgramTest, DecoderThatDiesIsAnError) {
  Install("read -r token; exit 1");
  auto decoder = TokenDecoder::Start("m");
  ASSERT_TRUE(decoder.ok());
  EXPECT_FALSE((*decoder)->Push(1, 0).ok());
  EXPECT_FALSE((*decoder)->Push(2, 0).ok());
}

TEST_F(DataProgramTest, DecoderMayBeDroppedAtAnyMoment) {
  Install(R"(while read -r token; do echo "\"$token\""; done; echo '""')");
  auto decoder = TokenDecoder::Start("m");
  ASSERT_TRUE(decoder.ok());
  ASSERT_TRUE((*decoder)->Push(1, 0).ok());
  decoder->reset();  // must neither hang nor leave a process behind
}

}  // namespace
}  // namespace forebay
