// Gradients that outlive a crash: what opens finds them exactly as long as their step is not
// committed, whatever of their intent reached the disk.
#include <fcntl.h>

#include <memory>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/swap/records/gradient_seals.h"
#include "forebay/swap/records/intent_record.h"
#include "forebay/tests/swap/store/kept_gradients.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

class IntentTest : public StoreFixture {
 protected:
  std::unique_ptr<TensorStore> StoreWithStep1() {
    auto store = TensorStore::Create({.directories = {directory_}, .tile_elems = kSmallTileElems},
                                     SmallInventory(), engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(WriteStep(**store, 1), absl::OkStatus());
    return *std::move(store);
  }
  // The step of the intent in the store that is opened anew.
  int64_t FindAnew() {
    const auto store = MustOpen();
    bool are_whole = false;
    const auto step = KeptGradients(store.get()).Find(are_whole);
    EXPECT_TRUE(step.ok()) << step.status();
    EXPECT_TRUE(*step < 0 || are_whole);
    return *step;
  }
};

TEST_F(IntentTest, IsNotThereBeforeItIsPublished) {
  StoreWithStep1();
  EXPECT_EQ(FindAnew(), -1);
}

TEST_F(IntentTest, IsFoundUntilItsStepIsCommitted) {
  {
    const auto store = StoreWithStep1();
    KeptGradients gradients(store.get());
    ASSERT_EQ(gradients.Publish(2), absl::OkStatus());
  }
  EXPECT_EQ(FindAnew(), 2);
  EXPECT_EQ(FindAnew(), 2) << "looking changes nothing";
  {
    // In the middle of its update, too.
    const auto store = MustOpen();
    ASSERT_EQ(WriteTiles(*store, 2), absl::OkStatus());
  }
  EXPECT_EQ(FindAnew(), 2);
  ASSERT_EQ(WriteStep(*MustOpen(), 2), absl::OkStatus());
  EXPECT_EQ(FindAnew(), -1);
}

TEST_F(IntentTest, OfAnotherAttemptAtTheSameStepIsNotFound) {
  {
    const auto store = StoreWithStep1();
    ASSERT_EQ(KeptGradients(store.get()).Publish(2), absl::OkStatus());
    ASSERT_EQ(WriteStep(*store, 2), absl::OkStatus());
  }
  // Back to step 1, and on from there.
  const auto fd = OpenFile(File("state.fbs"), O_RDWR);
  ASSERT_TRUE(fd.ok());
  const int64_t size_bytes = *FileSize(File("state.fbs"));
  ASSERT_TRUE(
      PwriteAll(fd->get(), std::as_bytes(std::span("damage")), size_bytes / 4 * 3, "").ok());
  MemoryBudget budget(0);
  const auto report = TensorStore::Repair({directory_}, engine_.get(), "", &budget, {});
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->step, 1);
  EXPECT_EQ(FindAnew(), -1) << "its update starts from a commit that is no more";
}

TEST_F(IntentTest, WithoutTheFileNothingIsMissing) {
  {
    const auto store = StoreWithStep1();
    ASSERT_EQ(KeptGradients(store.get()).Publish(2), absl::OkStatus());
  }
  ASSERT_TRUE(RemoveTree(File("intent.fbs")).ok());
  EXPECT_EQ(FindAnew(), -1);
}

TEST_F(IntentTest, IsRemovedWithTheStore) {
  {
    const auto store = StoreWithStep1();
    ASSERT_EQ(KeptGradients(store.get()).Publish(2), absl::OkStatus());
  }
  ASSERT_TRUE(TensorStore::Remove({directory_}).ok());
  EXPECT_FALSE(FileExists(directory_));
}

TEST_F(IntentTest, TooMuchOfTheTrainersIsAnErrorThatTouchesNothing) {
  const auto store = StoreWithStep1();
  KeptGradients gradients(store.get());
  ASSERT_EQ(gradients.Publish(2), absl::OkStatus());
  MemoryBudget budget(0);
  const auto seals = GradientSeals::Create(store->tiles(), &budget);
  const absl::Status status = store->PublishIntent(
      {3, kGradientElemBytes, Json{{"name", std::string(4000, 'x')}}}, seals->table());
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
  bool are_whole = false;
  EXPECT_EQ(*gradients.Find(are_whole), 2);
}

TEST(IntentRecord, GivesBackWhatWasEncoded) {
  IntentRecord record;
  record.uuid = {1, 2, 3};
  record.step = 7;
  record.commit_hash = 99;
  record.gradient_elem_bytes = 4;
  record.table_digest = {9, 8, 7};
  record.trainer = R"({"lr":0.1})";
  std::vector<std::byte> bytes(kIntentRecordBytes);
  EncodeIntentRecord(record, bytes);
  const auto decoded = DecodeIntentRecord(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->uuid, record.uuid);
  EXPECT_EQ(decoded->step, 7);
  EXPECT_EQ(decoded->commit_hash, 99u);
  EXPECT_EQ(decoded->gradient_elem_bytes, 4);
  EXPECT_EQ(decoded->table_digest, record.table_digest);
  EXPECT_EQ(decoded->trainer, record.trainer);
}

TEST(IntentRecord, WithAnyBitFlippedIsNone) {
  IntentRecord record;
  record.trainer = "{}";
  std::vector<std::byte> bytes(kIntentRecordBytes);
  EncodeIntentRecord(record, bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const std::byte mask{static_cast<uint8_t>(1U << bit % 8)};
    bytes[bit / 8] ^= mask;
    ASSERT_FALSE(DecodeIntentRecord(bytes).has_value()) << "bit " << bit;
    bytes[bit / 8] ^= mask;
  }
  EXPECT_FALSE(DecodeIntentRecord(std::vector<std::byte>(kIntentRecordBytes)).has_value());
}

}  // namespace
}  // namespace forebay
