#include "forebay/train/run/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <span>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/file_space.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/train/run/logged_observer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string LineOf(int64_t step) {
  return fmt::format("{{\"step\":{},\"loss\":2.5}}\n", step);
}

class AlignMetricsTest : public testing::Test {
 protected:
  void Write(const std::string& text) { ASSERT_TRUE(WriteFileAtomically(path_, text).ok()); }
  std::string Text() const { return ReadWholeFile(path_, 1 << 24).value_or("unreadable"); }
  // `committed`: the line that the commit carries.
  AlignedMetrics Align(int64_t step, const Json& committed = Json()) {
    absl::StatusOr<AlignedMetrics> aligned = AlignMetrics(path_, step, committed);
    EXPECT_TRUE(aligned.ok()) << aligned.status();
    return aligned.ok() ? *aligned : AlignedMetrics();
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_.Path("metrics.jsonl");
};

TEST_F(AlignMetricsTest, LinesOfLaterStepsAndATornOneAreDropped) {
  const std::string kept = LineOf(0) + LineOf(1) + LineOf(2);
  for (const std::string& more : {std::string(), LineOf(3) + LineOf(4), LineOf(3) + "{\"st"}) {
    Write(kept + more);
    const AlignedMetrics aligned = Align(2);
    EXPECT_EQ(aligned.line["step"], 2);
    EXPECT_THAT(aligned.note, IsEmpty());
    EXPECT_EQ(Text(), kept);
  }
}

TEST_F(AlignMetricsTest, WhatLinesAfterAStepHaveWrittenIsTheirSum) {
  EXPECT_EQ(WriteBytesInMetrics(path_, 0), 0);  // there is no file
  Write(
      "{\"step\":1,\"write_bytes\":1}\n{\"step\":2,\"write_bytes\":20}\n# mine\n"
      "{\"step\":3,\"loss\":1}\n{\"step\":4,\"write_bytes\":400}\n{\"step\":5,\"wri");
  EXPECT_EQ(WriteBytesInMetrics(path_, 0), 421);
  EXPECT_EQ(WriteBytesInMetrics(path_, 1), 420);
  EXPECT_EQ(WriteBytesInMetrics(path_, 3), 400);
  EXPECT_EQ(WriteBytesInMetrics(path_, 4), 0);
}

TEST_F(AlignMetricsTest, WhatIsNoLineOfAStepCutsOffNothingThatFollowsIt) {
  for (const char* odd :
       {"\n", " \t\r\n", "{\"step\":\n", "# mine\n", "{\"other\":1}\n", "\1\2\n"}) {
    const std::string kept = LineOf(1) + odd + LineOf(2);
    Write(kept + LineOf(3));
    const AlignedMetrics aligned = Align(2);
    EXPECT_EQ(aligned.line["step"], 2) << odd;
    EXPECT_THAT(aligned.note, IsEmpty());
    EXPECT_EQ(Text(), kept);
  }
}

TEST_F(AlignMetricsTest, DamagedLinesAtTheEndAreDroppedAndTold) {
  Write(LineOf(1) + LineOf(2) + "\n{\"step\":\n" + LineOf(3) + std::string(70000, 'x') + "\n");
  const AlignedMetrics aligned = Align(2);
  EXPECT_EQ(aligned.line["step"], 2);
  EXPECT_THAT(aligned.note, HasSubstr(path_ + "' ended with damaged lines"));
  EXPECT_THAT(aligned.note, HasSubstr("removed: 2"));
  EXPECT_EQ(Text(), LineOf(1) + LineOf(2));
}

TEST_F(AlignMetricsTest, AFileWithoutALineOfACommittedStepKeepsAllButLaterSteps) {
  Write("# mine\n" + LineOf(3) + LineOf(4));
  EXPECT_TRUE(Align(2).line.is_null());
  EXPECT_EQ(Text(), "# mine\n");
  Write(std::string(70000, 'x') + "\nno newline");
  EXPECT_TRUE(Align(2).line.is_null());
  EXPECT_EQ(Text(), std::string(70000, 'x') + "\n");
  Write("");
  EXPECT_TRUE(Align(0).line.is_null());
  EXPECT_EQ(Text(), "");
}

TEST_F(AlignMetricsTest, TheLineThatTheCommitCarriesStandsInForOneThatIsMissing) {
  const Json committed = {{"step", 2}, {"loss", 1.5}};
  EXPECT_EQ(Align(2, committed).line, committed) << "there is no file";
  EXPECT_EQ(Text(), committed.dump() + "\n");
  Write(LineOf(1) + "{\"step\":2,\"lo\n" + LineOf(3));
  EXPECT_EQ(Align(2, committed).line, committed);
  EXPECT_EQ(Text(), LineOf(1) + committed.dump() + "\n");
  EXPECT_TRUE(Align(7, committed).line.is_null()) << "it is of another step";
}

TEST_F(AlignMetricsTest, LinesAreFoundWhereverTheFileIsCutForReading) {
  std::string text;
  for (int64_t step = 1; step <= 3000; ++step) text += LineOf(step);
  for (const int64_t step : {1, 2, 1234, 2999, 3000}) {
    Write(text);
    EXPECT_EQ(Align(step).line["step"], step);
    EXPECT_EQ(Text(), text.substr(0, text.find(LineOf(step)) + LineOf(step).size()));
  }
}

// Five gigabytes of which all but the end is a hole.
TEST_F(AlignMetricsTest, ALongFileIsReadFromItsEnd) {
  constexpr int64_t kBytes = int64_t{5} << 30;
  const std::string end = "\n" + LineOf(1) + LineOf(2) + LineOf(3);
  {
    const auto fd = OpenFile(path_, O_RDWR | O_CREAT);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(end)), kBytes, path_).ok());
    if (SpaceOfFile(path_).value_or(kBytes) >= kBytes) GTEST_SKIP() << "files have no holes here";
  }
  EXPECT_EQ(Align(2).line["step"], 2);
  EXPECT_EQ(FileSize(path_).value_or(0),
            kBytes + static_cast<int64_t>(end.size() - LineOf(3).size()));
}

class Heard : public TrainObserver {
 public:
  void OnPlan(const std::string&, const Json&) override {}
  void OnPhase(const std::string&, double) override {}
  void OnProgress(int64_t, int64_t, double) override {}
  void OnStep(const Json&) override {}
  void OnNote(const std::string& line) override { notes.push_back(line); }
  void OnWarning(const std::string& line) override { warnings.push_back(line); }
  void OnDone(const Json&) override {}

  std::vector<std::string> notes;
  std::vector<std::string> warnings;
};

TEST(LoggedObserver, ALogThatCannotBeWrittenIsToldOnceAndTheNotesGoOn) {
  Heard heard;
  LoggedObserver observer(heard);
  // Takes its length, and no byte.
  ASSERT_EQ(observer.OpenLog("/dev/full"), absl::OkStatus());
  for (const char* line : {"one", "two", "three"}) observer.OnNote(line);
  observer.Log("four");
  EXPECT_THAT(heard.notes, ElementsAre("one", "two", "three"));
  EXPECT_THAT(heard.warnings, ElementsAre(HasSubstr("the log is given up")));
  EXPECT_THAT(heard.warnings, ElementsAre(HasSubstr("ENOSPC")));
}

}  // namespace
}  // namespace forebay
