#include "forebay/offload/missed_updates.h"

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAreArray;
using testing::IsEmpty;

TEST(MissedUpdates, ComeBackAsTheyWere) {
  const std::vector<int64_t> missed = {0, 0, 5, 5, 5, 0, int64_t{1} << 40};
  CommitInfo commit;
  AddMissedUpdates(missed, commit.trainer);
  EXPECT_EQ(commit.trainer["missed_updates"], Json::parse("[0,2,5,3,0,1,1099511627776,1]"));
  commit.trainer = Json::parse(commit.trainer.dump());
  const auto read = MissedUpdatesOf(commit, missed.size());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(*read, ElementsAreArray(missed));
}

TEST(MissedUpdates, AreNotSpokenOfWhereThereAreNone) {
  CommitInfo commit;
  AddMissedUpdates(std::vector<int64_t>(3), commit.trainer);
  EXPECT_TRUE(commit.trainer.is_null());
  const auto read = MissedUpdatesOf(commit, 3);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(*read, IsEmpty());
}

TEST(MissedUpdates, OfAnotherModelAreRefused) {
  for (const char* runs : {"[]", "[1]", "[1,2]", "[1,4]", "[1,-1]", "[-1,3]", "7", "[1,2,1,2]",
                           "[18446744073709551615,3]", "[1.5,3]"}) {
    const CommitInfo commit = {.step = 4, .trainer = {{"missed_updates", Json::parse(runs)}}};
    EXPECT_EQ(ExitCodeOf(MissedUpdatesOf(commit, 3).status()), ExitCode::kCorrupt) << runs;
  }
}

}  // namespace
}  // namespace forebay
