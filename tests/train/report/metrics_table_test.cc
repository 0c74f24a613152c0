#include "forebay/train/report/metrics_table.h"

#include <cmath>
#include <string>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/report/recorded_run.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsNan;

ReadMetrics Read(const std::string& text) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("metrics.jsonl");
  FOREBAY_CHECK(WriteFileAtomically(path, text).ok());
  auto read = ReadMetricsFile(path);
  FOREBAY_CHECK(read.ok());
  return *std::move(read);
}

TEST(MetricsTable, HasAColumnForEachNumberAndNanWhereALineLacksIt) {
  const ReadMetrics read = Read(kRecordedMetrics);
  EXPECT_THAT(read.notes, IsEmpty());
  EXPECT_THAT(read.table.steps(), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(read.table.Values("eval_loss"), ElementsAre(5.75, IsNan(), 5.125, IsNan(), 5.25));
  EXPECT_THAT(read.table.Values("loss"), ElementsAre(IsNan(), 5.5, 5.0, IsNan(), 4.5));
  EXPECT_THAT(read.table.Values("waits.commit"), ElementsAre(IsNan(), 0, 0.05, 0, 0));
  EXPECT_THAT(read.table.Values("skipped"), ElementsAre(IsNan(), IsNan(), IsNan(), 1, IsNan()));
  EXPECT_EQ(read.table.Values("no_such").size(), 5u);
}

TEST(MetricsTable, OfALineThatIsBeingWrittenHasTheLinesBeforeAndANote) {
  const ReadMetrics read = Read("{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"lo");
  EXPECT_THAT(read.table.steps(), ElementsAre(1));
  ASSERT_EQ(read.notes.size(), 1u);
  EXPECT_THAT(read.notes[0], HasSubstr("is cut off"));
}

TEST(MetricsTable, TakesALastLineWithoutItsNewline) {
  const ReadMetrics read = Read("{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"loss\":1.0}");
  EXPECT_THAT(read.table.steps(), ElementsAre(1, 2));
  EXPECT_THAT(read.notes, IsEmpty());
}

TEST(MetricsTable, LeavesOutDamagedLinesAndSaysWhich) {
  const ReadMetrics read = Read(
      "{\"step\":1}\nrubbish\n\n[1]\n{\"step\":-1}\n{\"step\":1e30}\n"
      "{\"step\":4611686018427387904}\n{\"step\":2,\"loss\":1e999}\n{\"step\":3}\n");
  EXPECT_THAT(read.table.steps(), ElementsAre(1, 3));
  ASSERT_EQ(read.notes.size(), 1u);
  EXPECT_THAT(read.notes[0], HasSubstr("left out: 6 (the first is line 2)"));
}

TEST(MetricsTable, TakesTheLastOfSeveralLinesOfAStepAndSortsThem) {
  const ReadMetrics read = Read(
      "{\"step\":1,\"a\":1}\n{\"step\":5,\"a\":5}\n{\"step\":3,\"b\":3}\n{\"step\":1,\"b\":7}\n");
  EXPECT_THAT(read.table.steps(), ElementsAre(1, 3, 5));
  EXPECT_THAT(read.table.Values("a"), ElementsAre(IsNan(), IsNan(), 5));
  EXPECT_THAT(read.table.Values("b"), ElementsAre(7, 3, IsNan()));
  ASSERT_EQ(read.notes.size(), 1u);
  EXPECT_THAT(read.notes[0], HasSubstr("more than one line for 1 of its steps"));
}

TEST(MetricsTable, OfAnEmptyFileOrNoneIsEmptyWithANote) {
  EXPECT_THAT(Read("").notes, ElementsAre(HasSubstr("has no line of a step yet")));
  const TemporaryFolder folder;
  const auto read = ReadMetricsFile(folder.Path("metrics.jsonl"));
  ASSERT_TRUE(read.ok());
  EXPECT_THAT(read->notes, ElementsAre(HasSubstr("no step has ended yet, or it is lost")));
}

TEST(MetricsTable, ThatCannotBeReadIsAStorageError) {
  const TemporaryFolder folder;
  EXPECT_EQ(ExitCodeOf(ReadMetricsFile(folder.path()).status()), ExitCode::kStorage);
}

TEST(MetricsTable, ReadsLinesAcrossThePiecesInWhichTheFileIsRead) {
  std::string text;
  for (int step = 1; step <= 5000; ++step) {
    text += "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(step) + ".5}\n";
  }
  const ReadMetrics read = Read(text);
  ASSERT_EQ(read.table.steps().size(), 5000u);
  const std::vector<double> losses = read.table.Values("loss");
  for (size_t i = 0; i < losses.size(); ++i) {
    ASSERT_EQ(losses[i], static_cast<double>(i) + 1.5);
  }
}

}  // namespace
}  // namespace forebay
