#include "forebay/train/files/fingerprint.h"

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Fingerprint, OfARunFromBeforeAnOptionWasThereHasItsDefault) {
  const Json before = {{"lr", "2e-05"}};
  EXPECT_EQ(CompareFingerprints(before, {{"lr", "2e-05"}, {"schedule_args", ""}}),
            absl::OkStatus());
  const absl::Status other = CompareFingerprints(before, {{"schedule_args", "power=2"}});
  EXPECT_EQ(ExitCodeOf(other), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(other), AllOf(HasSubstr("--schedule_args"), HasSubstr("power=2")));
}

// Its commits have other updates in them.
TEST(Fingerprint, OfDelayedUpdatesOfAnEarlierVersionIsRefusedWithTheWayOut) {
  const Json before = {{"delay_update_from", "3"}};
  const absl::Status status =
      CompareFingerprints(before, {{"delay_update_from", "3"}, {"commit_every", "4"}});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), HasSubstr("earlier version"));
  EXPECT_THAT(MessageOf(status), HasSubstr("forebay export"));
}

TEST(Fingerprint, NamesWhatDiffers) {
  const absl::Status status =
      CompareFingerprints({{"lr", "1e-05"}, {"data", "a"}}, {{"lr", "2e-05"}, {"data", "b"}});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("--lr: the run has \"1e-05\""),
                                       HasSubstr("the tokens of --data are not those")));
}

}  // namespace
}  // namespace forebay
