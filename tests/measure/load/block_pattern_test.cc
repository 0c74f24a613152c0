#include "forebay/measure/load/block_pattern.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int64_t kRangeBlocks = 8;

class BlockPatternTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeFileId(place_.file).ok());
    place_.offset_bytes = 1 << 20;
    place_.generation = 3;
    buffer_.resize(kRangeBlocks * kPatternBlockBytes);
    pattern_.Fill(buffer_, place_);
  }
  PatternTally Check() const {
    PatternTally tally;
    CheckPattern(buffer_, place_, tally);
    return tally;
  }
  std::span<std::byte> Block(int64_t block) {
    return std::span(buffer_).subspan(static_cast<size_t>(block * kPatternBlockBytes),
                                      static_cast<size_t>(kPatternBlockBytes));
  }
  // Puts what belongs elsewhere into block `block`.
  void Replace(int64_t block, const PatternPlace& place) { pattern_.Fill(Block(block), place); }
  PatternPlace PlaceOf(int64_t block) const {
    PatternPlace place = place_;
    place.offset_bytes += block * kPatternBlockBytes;
    return place;
  }

  const BlockPattern pattern_{1, 0};
  PatternPlace place_;
  std::vector<std::byte> buffer_;
};

TEST_F(BlockPatternTest, WhatWasFilledIsGood) {
  const PatternTally tally = Check();
  EXPECT_EQ(tally.num_blocks, kRangeBlocks);
  EXPECT_EQ(tally.num_bad(), 0);
  EXPECT_EQ(tally.num_torn, 0);
  EXPECT_EQ(tally.first_problem, "");
}

TEST_F(BlockPatternTest, EveryFlippedBitIsFound) {
  for (size_t byte = 0; byte < static_cast<size_t>(kPatternBlockBytes); byte += 37) {
    Block(2)[byte] ^= std::byte{0x10};
    EXPECT_EQ(Check().num_damaged, 1) << byte;
    Block(2)[byte] ^= std::byte{0x10};
  }
  EXPECT_EQ(Check().num_bad(), 0);
}

TEST_F(BlockPatternTest, AnOlderGenerationIsStaleAndTheRangeTorn) {
  PatternPlace old = PlaceOf(5);
  old.generation = 2;
  Replace(5, old);
  const PatternTally tally = Check();
  EXPECT_EQ(tally.num_stale, 1);
  EXPECT_EQ(tally.num_torn, 1);
  EXPECT_THAT(tally.first_problem, HasSubstr("stale: generation 2 instead of 3"));
}

TEST_F(BlockPatternTest, ARangeThatIsStaleAsAWholeIsNotTorn) {
  PatternPlace old = place_;
  old.generation = 2;
  pattern_.Fill(buffer_, old);
  const PatternTally tally = Check();
  EXPECT_EQ(tally.num_stale, kRangeBlocks);
  EXPECT_EQ(tally.num_torn, 0);
}

TEST_F(BlockPatternTest, ABlockOfAnotherPlaceIsMisdirected) {
  Replace(1, PlaceOf(6));
  const PatternTally tally = Check();
  EXPECT_EQ(tally.num_misdirected, 1);
  EXPECT_THAT(tally.first_problem, HasSubstr("misdirected: it was written for offset 1073152"));
}

TEST_F(BlockPatternTest, ABlockOfAnotherFileIsForeign) {
  PatternPlace other = PlaceOf(0);
  other.file[7] ^= std::byte{1};
  Replace(0, other);
  EXPECT_EQ(Check().num_foreign, 1);
}

TEST_F(BlockPatternTest, AWriteThatStoppedWithinABlockIsDamage) {
  PatternPlace old = PlaceOf(4);
  old.generation = 2;
  std::vector<std::byte> before(static_cast<size_t>(kPatternBlockBytes));
  pattern_.Fill(before, old);
  std::copy(before.begin() + 512, before.end(), Block(4).begin() + 512);
  EXPECT_EQ(Check().num_damaged, 1);
}

TEST_F(BlockPatternTest, ZerosAreDamage) {
  std::ranges::fill(Block(3), std::byte{0});
  EXPECT_EQ(Check().num_damaged, 1);
}

TEST_F(BlockPatternTest, TalliesAddUpAndKeepTheFirstProblem) {
  PatternTally sum;
  Block(1)[100] ^= std::byte{1};
  sum.Add(Check());
  Replace(2, PlaceOf(3));
  sum.Add(Check());
  EXPECT_EQ(sum.num_blocks, 2 * kRangeBlocks);
  EXPECT_EQ(sum.num_damaged, 2);
  EXPECT_EQ(sum.num_misdirected, 1);
  EXPECT_EQ(sum.num_bad(), 3);
  EXPECT_THAT(sum.first_problem, HasSubstr("damaged"));
}

// What a drive could find to compress: words that appear again within its window.
int64_t NumRepeatedWords(std::span<const std::byte> bytes) {
  std::vector<uint64_t> words(bytes.size() / sizeof(uint64_t));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(uint64_t));
  std::set<uint64_t> seen;
  int64_t repeated = 0;
  for (const uint64_t word : words) repeated += seen.insert(word).second ? 0 : 1;
  return repeated;
}

TEST(BlockPattern, BlocksHaveNothingInCommonButTheirHeaders) {
  const BlockPattern pattern(1, 0);
  std::vector<std::byte> buffer(256 * static_cast<size_t>(kPatternBlockBytes));
  pattern.Fill(buffer, {{}, 0, 1});
  // Magic, file (2 words), generation: the same in each block.
  EXPECT_LE(NumRepeatedWords(buffer), 256 * 5);
}

TEST(BlockPattern, TheAskedShareIsZeros) {
  const BlockPattern pattern(1, 50);
  std::vector<std::byte> buffer(static_cast<size_t>(kPatternBlockBytes));
  pattern.Fill(buffer, {{}, 4096, 1});
  const auto zeros = std::ranges::count(buffer, std::byte{0});
  EXPECT_GT(zeros, 2000);
  EXPECT_LT(zeros, 2200);
  EXPECT_EQ(CheckPatternBlock(buffer, {{}, 4096, 1}), BlockVerdict::kGood);
}

}  // namespace
}  // namespace forebay
