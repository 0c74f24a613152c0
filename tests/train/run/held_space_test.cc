#include "forebay/train/run/held_space.h"

#include <filesystem>

#include "forebay/base/errors.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

TEST(HeldSpace, IsGivenBackAndTakenAgain) {
  const TemporaryFolder folder;
  auto space = HeldSpace::Take(folder.path(), 4 * kMebibyte);
  ASSERT_TRUE(space.ok()) << space.status();
  if (space->bytes() == 0) GTEST_SKIP() << "the file system promises no space";
  EXPECT_EQ(space->bytes(), 4 * kMebibyte);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "a kill would leave it there";
  space->ShrinkTo(kMebibyte);
  EXPECT_EQ(space->bytes(), kMebibyte);
  space->ShrinkTo(2 * kMebibyte);
  EXPECT_EQ(space->bytes(), kMebibyte);
  space->GrowTo(3 * kMebibyte);
  EXPECT_EQ(space->bytes(), 3 * kMebibyte);
  const int64_t free_bytes = *FreeSpace(folder.path());
  space->GrowTo(free_bytes + (int64_t{1} << 40));
  EXPECT_EQ(space->bytes(), 3 * kMebibyte) << "it has what there was";
}

TEST(HeldSpace, WhereThereIsTooLittleIsAnErrorThatSaysWhere) {
  const TemporaryFolder folder;
  const auto space = HeldSpace::Take(folder.path(), *FreeSpace(folder.path()) + (int64_t{1} << 40));
  if (space.ok()) GTEST_SKIP() << "the file system promises no space";
  EXPECT_EQ(ExitCodeOf(space.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(space.status()), testing::HasSubstr(folder.path()));
}

TEST(HeldSpace, OfNothingNeedsNoFolder) {
  auto space = HeldSpace::Take("/no/such/folder", 0);
  ASSERT_TRUE(space.ok()) << space.status();
  space->GrowTo(kMebibyte);
  EXPECT_EQ(space->bytes(), 0);
}

}  // namespace
}  // namespace forebay
