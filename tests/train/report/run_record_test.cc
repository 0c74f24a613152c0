#include "forebay/train/report/run_record.h"

#include <filesystem>

#include "forebay/base/errors.h"
#include "forebay/tests/train/report/recorded_run.h"
#include "forebay/train/files/run_lock.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsNan;

TEST(RunRecord, HasSettingsPlanLengthAndSteps) {
  const RecordedRun run;
  const auto runs = ReadRuns({run.folder()});
  ASSERT_TRUE(runs.ok()) << runs.status();
  const RunRecord& record = runs->front();
  EXPECT_EQ(record.name, "book");
  EXPECT_EQ(record.num_steps, 6);
  EXPECT_FALSE(record.is_in_use);
  EXPECT_EQ(record.Setting("batch"), "2");
  EXPECT_EQ(record.Setting("threads"), "");
  EXPECT_EQ(record.Planned("rated_tbw"), 600);
  EXPECT_EQ(record.Planned("forecast.step_s"), 0.2);
  EXPECT_THAT(record.Planned("forecast"), IsNan());
  EXPECT_THAT(record.Planned("rated_tbw.step_s"), IsNan());
  EXPECT_THAT(record.Planned("no_such"), IsNan());
  EXPECT_EQ(record.metrics.steps().size(), 5u);
  EXPECT_THAT(record.notes, IsEmpty());
}

TEST(RunRecord, OfAFolderThatIsNoRunIsTheErrorOfRunFolders) {
  const TemporaryFolder folder;
  const absl::Status status = ReadRuns({folder.path()}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), HasSubstr("is not a run folder"));
}

TEST(RunRecord, NotesWhatIsMissingOrDamagedAndKeepsTheRest) {
  const RecordedRun run;
  std::filesystem::remove(run.paths().plan);
  RecordedRun::Write(run.paths().resolved_config, "{");
  RecordedRun::Write(run.paths().run_json, "{");
  RecordedRun::Write(run.paths().run_json_copy, "{");
  const auto runs = ReadRuns({run.folder()});
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_THAT(runs->front().notes,
              ElementsAre(HasSubstr("run.json"), HasSubstr("settings are not known"),
                          HasSubstr("plan.json' to compare with")));
  EXPECT_EQ(runs->front().metrics.steps().size(), 5u);
}

TEST(RunRecord, NotesAPlanThatIsDamaged) {
  const RecordedRun run;
  for (const char* text : {"[]", "{", ""}) {
    RecordedRun::Write(run.paths().plan, text);
    const auto runs = ReadRuns({run.folder()});
    ASSERT_TRUE(runs.ok()) << runs.status();
    EXPECT_THAT(runs->front().notes, ElementsAre(HasSubstr("plan.json")));
    EXPECT_THAT(runs->front().Planned("host_bytes"), IsNan());
  }
}

TEST(RunRecord, SaysThatAProcessWorksOnTheRun) {
  const RecordedRun run;
  const auto lock = TakeRunLock(run.folder());
  ASSERT_TRUE(lock.ok() && lock->valid());
  EXPECT_TRUE(ReadRuns({run.folder()})->front().is_in_use);
}

TEST(RunRecord, NamesRunsApartAndRefusesOneTwice) {
  const RecordedRun one;
  const RecordedRun two;
  const auto runs = ReadRuns({one.folder(), two.folder()});
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_EQ((*runs)[0].name, "book");
  EXPECT_EQ((*runs)[1].name, "book-2");
  const absl::Status twice = ReadRuns({one.folder(), one.folder() + "/"}).status();
  EXPECT_EQ(ExitCodeOf(twice), ExitCode::kUsage);
}

}  // namespace
}  // namespace forebay
