#include "forebay/swap/records/commit_record.h"

#include <cstring>

#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

using Bytes = std::array<std::byte, kCommitRecordBytes>;
constexpr StoreUuid kUuid = {1, 2, 3, 4};

CommitRecord Record(uint64_t sequence, uint64_t previous_hash) {
  CommitRecord record;
  record.uuid = kUuid;
  record.sequence = sequence;
  record.step = static_cast<int64_t>(sequence) * 10;
  record.slot = sequence % 2;
  record.previous_hash = previous_hash;
  record.trainer = R"({"tokens_seen":12})";
  return record;
}

Bytes Encode(const CommitRecord& record) {
  Bytes bytes = {};
  EncodeCommitRecord(record, bytes);
  return bytes;
}

DecodedCopy Decode(const Bytes& bytes) {
  const auto copy = DecodeCommitRecord(bytes, "commit.fbs");
  EXPECT_TRUE(copy.ok()) << copy.status();
  return *copy;
}

DecodedCopy Good(uint64_t sequence, uint64_t previous_hash) {
  return Decode(Encode(Record(sequence, previous_hash)));
}
DecodedCopy Bad() {
  return {CopyState::kBad, {}, 0};
}
DecodedCopy Empty() {
  return {};
}

// The sequence that is chosen; 0: none. Negative: CorruptError.
int64_t Chosen(const DecodedCopy& first, const DecodedCopy& second) {
  const auto chosen = ChooseCommit(first, second, kUuid, "commit.fbs");
  if (!chosen.ok()) {
    EXPECT_EQ(ExitCodeOf(chosen.status()), ExitCode::kCorrupt);
    return -1;
  }
  return chosen->has_value() ? static_cast<int64_t>((*chosen)->record.sequence) : 0;
}

TEST(CommitRecord, DecodesToWhatWasEncoded) {
  const CommitRecord record = Record(7, 99);
  const DecodedCopy copy = Decode(Encode(record));
  ASSERT_EQ(copy.state, CopyState::kGood);
  EXPECT_EQ(copy.record.uuid, record.uuid);
  EXPECT_EQ(copy.record.sequence, 7u);
  EXPECT_EQ(copy.record.step, 70);
  EXPECT_EQ(copy.record.slot, 1u);
  EXPECT_EQ(copy.record.previous_hash, 99u);
  EXPECT_EQ(copy.record.trainer, record.trainer);
}

TEST(CommitRecord, HoldsTheLongestTrainerStateItPromises) {
  CommitRecord record = Record(1, 0);
  record.trainer.assign(kCommitTrainerBytesMax, 'x');
  EXPECT_EQ(Decode(Encode(record)).record.trainer, record.trainer);
}

TEST(CommitRecord, ZerosAreARecordThatWasNeverWritten) {
  EXPECT_EQ(Decode(Bytes{}).state, CopyState::kEmpty);
}

TEST(CommitRecord, EveryTornPrefixIsBadOrTheOlderRecord) {
  const Bytes older = Encode(Record(1, 0));
  const Bytes newer = Encode(Record(2, 5));
  for (const Bytes& background : {Bytes{}, older}) {
    for (int64_t torn = 512; torn < kCommitRecordBytes; torn += 512) {
      Bytes bytes = background;
      std::memcpy(bytes.data(), newer.data(), torn);
      EXPECT_EQ(Decode(bytes).state, CopyState::kBad) << torn;
    }
  }
}

TEST(CommitRecord, EveryFlippedBitIsFound) {
  const Bytes good = Encode(Record(1, 0));
  for (size_t bit = 0; bit < 8 * good.size(); bit += 7) {
    Bytes bytes = good;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_EQ(Decode(bytes).state, CopyState::kBad) << bit;
  }
}

TEST(CommitRecord, AnUnknownVersionIsAnErrorThatNamesIt) {
  Bytes bytes = Encode(Record(1, 0));
  const uint32_t version = 7;
  std::memcpy(bytes.data() + 8, &version, sizeof(version));
  const uint64_t hash = Xxh3_64(std::span(bytes).first(kCommitRecordBytes - 8));
  std::memcpy(bytes.data() + kCommitRecordBytes - 8, &hash, sizeof(hash));
  const auto copy = DecodeCommitRecord(bytes, "commit.fbs");
  EXPECT_EQ(ExitCodeOf(copy.status()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(copy.status()), HasSubstr("version 7"));
}

TEST(ChooseCommit, TakesTheNewerOfTwoGoodCopies) {
  const DecodedCopy first = Good(1, 0);
  const DecodedCopy second = Good(2, first.hash);
  EXPECT_EQ(Chosen(first, second), 2);
  EXPECT_EQ(Chosen(second, first), 2);
  EXPECT_EQ(Chosen(second, second), 2);
}

TEST(ChooseCommit, TakesTheGoodCopyOfTwo) {
  EXPECT_EQ(Chosen(Good(3, 0), Bad()), 3);
  EXPECT_EQ(Chosen(Bad(), Good(3, 0)), 3);
  EXPECT_EQ(Chosen(Good(1, 0), Empty()), 1);
}

TEST(ChooseCommit, AFirstRecordThatWasTornNeverHappened) {
  EXPECT_EQ(Chosen(Bad(), Empty()), 0);
  EXPECT_EQ(Chosen(Empty(), Empty()), 0);
}

TEST(ChooseCommit, TwoDamagedCopiesAreCorruption) {
  EXPECT_EQ(Chosen(Bad(), Bad()), -1);
}

TEST(ChooseCommit, ARecordOfAnotherStoreIsCorruption) {
  CommitRecord foreign = Record(9, 0);
  foreign.uuid[0] = 77;
  EXPECT_EQ(Chosen(Good(1, 0), Decode(Encode(foreign))), -1);
}

TEST(ChooseCommit, SuccessiveRecordsThatDoNotChainAreCorruption) {
  EXPECT_EQ(Chosen(Good(1, 0), Good(2, 12345)), -1);
  EXPECT_EQ(Chosen(Good(2, 1), Good(2, 2)), -1);
}

// Folders of a store, with what they have as (first copy, second copy).
int64_t ChosenOf(const std::vector<std::pair<DecodedCopy, DecodedCopy>>& copies,
                 std::string* message = nullptr) {
  std::vector<FolderCopies> folders;
  for (const auto& [first, second] : copies) {
    folders.push_back({std::string(1, static_cast<char>('a' + folders.size())), first, second});
  }
  const auto chosen = ChooseCommit(folders, kUuid);
  if (!chosen.ok()) {
    EXPECT_EQ(ExitCodeOf(chosen.status()), ExitCode::kCorrupt);
    if (message != nullptr) *message = MessageOf(chosen.status());
    return -1;
  }
  return chosen->has_value() ? static_cast<int64_t>((*chosen)->record.sequence) : 0;
}

class ChooseAmongFolders : public testing::Test {
 protected:
  const DecodedCopy one_ = Good(1, 0);
  const DecodedCopy two_ = Good(2, one_.hash);
  const DecodedCopy three_ = Good(3, two_.hash);
};

TEST_F(ChooseAmongFolders, WhatACrashInACommitLeavesIsOneStep) {
  // Before anything, and with the first copies on their way.
  EXPECT_EQ(ChosenOf({{two_, two_}, {two_, two_}}), 2);
  EXPECT_EQ(ChosenOf({{Bad(), two_}, {Bad(), two_}}), 2);
  EXPECT_EQ(ChosenOf({{three_, two_}, {two_, two_}}), 3);
  EXPECT_EQ(ChosenOf({{two_, two_}, {three_, two_}, {Bad(), two_}}), 3);
  // With all of them there, and the second ones on their way.
  EXPECT_EQ(ChosenOf({{three_, two_}, {three_, two_}}), 3);
  EXPECT_EQ(ChosenOf({{three_, Bad()}, {three_, two_}}), 3);
  EXPECT_EQ(ChosenOf({{three_, three_}, {three_, Bad()}}), 3);
  // A crash between the first copies, or between the second ones, and then a copy that is lost:
  // cannot be read, or was made anew as zeros.
  for (const DecodedCopy& lost : {Bad(), Empty()}) {
    EXPECT_EQ(ChosenOf({{three_, two_}, {two_, lost}}), 3);
    EXPECT_EQ(ChosenOf({{three_, three_}, {lost, two_}}), 3);
    EXPECT_EQ(ChosenOf({{lost, two_}, {three_, two_}}), 3);
    EXPECT_EQ(ChosenOf({{three_, three_}, {lost, one_}}), -1) << "from another time";
  }
  EXPECT_EQ(ChosenOf({{one_, one_}, {Bad(), Empty()}}), 1);
}

TEST_F(ChooseAmongFolders, TheFolderOfTheRecordIsSaid) {
  const auto chosen =
      ChooseCommit(std::vector<FolderCopies>{{"a", two_, two_}, {"b", three_, two_}}, kUuid);
  ASSERT_TRUE(chosen.ok() && chosen->has_value());
  EXPECT_EQ((*chosen)->source, "b");
  EXPECT_EQ((*chosen)->hash, three_.hash);
}

TEST_F(ChooseAmongFolders, TheFirstCommitMayCrashToo) {
  EXPECT_EQ(ChosenOf({{Empty(), Empty()}, {Empty(), Empty()}}), 0);
  EXPECT_EQ(ChosenOf({{Bad(), Empty()}, {Empty(), Empty()}}), 0);
  EXPECT_EQ(ChosenOf({{one_, Empty()}, {Empty(), Empty()}}), 1);
  EXPECT_EQ(ChosenOf({{one_, Empty()}, {Bad(), Empty()}}), 1);
  EXPECT_EQ(ChosenOf({{one_, Bad()}, {one_, Empty()}}), 1);
}

TEST_F(ChooseAmongFolders, AFolderFromAnotherTimeIsNamed) {
  std::string message;
  // A second copy is new, so every folder had the record.
  EXPECT_EQ(ChosenOf({{three_, three_}, {two_, two_}}, &message), -1);
  EXPECT_THAT(message, HasSubstr("'b' was last committed at step 20 (record 2)"));
  EXPECT_THAT(message, HasSubstr("'a' was last committed at step 30 (record 3)"));
  EXPECT_EQ(ChosenOf({{one_, one_}, {three_, two_}}, &message), -1);
  EXPECT_THAT(message, HasSubstr("'a' was last committed at step 10"));
  EXPECT_EQ(ChosenOf({{two_, one_}, {three_, two_}}), -1);
  EXPECT_EQ(ChosenOf({{Empty(), Empty()}, {two_, two_}}, &message), -1);
  EXPECT_THAT(message, HasSubstr("'a' was never committed"));
  EXPECT_EQ(ChosenOf({{one_, one_}, {Empty(), Empty()}}), -1);
}

TEST_F(ChooseAmongFolders, TwoHistoriesAreNotMixed) {
  const DecodedCopy other_two = Good(2, 77);
  const DecodedCopy other_three = Good(3, other_two.hash);
  EXPECT_EQ(ChosenOf({{three_, three_}, {other_three, other_three}}), -1);
  EXPECT_EQ(ChosenOf({{three_, two_}, {other_three, two_}}), -1);
  EXPECT_EQ(ChosenOf({{three_, two_}, {other_two, other_two}}), -1);
}

TEST_F(ChooseAmongFolders, DamageBeyondACrashIsNamed) {
  std::string message;
  EXPECT_EQ(ChosenOf({{two_, two_}, {Bad(), Bad()}}, &message), -1);
  EXPECT_THAT(message, HasSubstr("both commit records of 'b' are damaged"));
}

}  // namespace
}  // namespace forebay
