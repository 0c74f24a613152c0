#include "forebay/train/plan/updates_behind.h"

#include <vector>

#include "gtest/gtest.h"

namespace forebay {
namespace {

// Four tiles, whose gradients come at 1, 2, 3 and 4 s.
std::vector<TileUpdate> FourTiles(double read_s, double write_s) {
  std::vector<TileUpdate> tiles;
  for (int i = 1; i <= 4; ++i) {
    tiles.push_back({.gradient_s = 1.0 * i, .read_s = read_s, .write_s = write_s});
  }
  return tiles;
}

TEST(EndOfUpdates, ThatOfTheLastTileIsWrittenBehindItsGradient) {
  EXPECT_DOUBLE_EQ(EndOfUpdates(FourTiles(0.1, 0.1), 0, 4, 4), 4.1);
  // All are read by 0.4 s, and a disk that is idle then waits for each gradient.
  EXPECT_DOUBLE_EQ(EndOfUpdates(FourTiles(0.1, 0.5), 0, 4, 4), 4.5);
}

TEST(EndOfUpdates, WhatHasNoRoomInStagingIsReadBetweenTheWrites) {
  // Two buffers: the third tile is read when the first is written, the fourth when the second is.
  EXPECT_DOUBLE_EQ(EndOfUpdates(FourTiles(0.1, 0.1), 0, 2, 4), 4.1);
  // The disk is bound then: reads up to 4, writes 4 to 5, read 5 to 7, ...
  EXPECT_DOUBLE_EQ(EndOfUpdates(FourTiles(2, 1), 0, 2, 4), 4 + 1 + 2 + 1 + 2 + 1 + 1);
  EXPECT_DOUBLE_EQ(EndOfUpdates(FourTiles(2, 1), 0, 4, 4), 8 + 4);
}

TEST(EndOfUpdates, AnEarlyBeginningIsWon) {
  EXPECT_DOUBLE_EQ(EndOfUpdates(FourTiles(2, 1), -8, 4, 4), 5);
  EXPECT_DOUBLE_EQ(EndOfUpdates(FourTiles(2, 1), -3, 4, 4), 8 - 3 + 4);
}

// With one buffer for gradients the second is handed over once the first was applied, at 2 s, and
// computation goes on from there: 3 s, with 2 s for each read.
TEST(EndOfUpdates, HandingOverWaitsForRoomAndSoDoesWhatIsComputedBehindIt) {
  EXPECT_DOUBLE_EQ(EndOfUpdates(FourTiles(2, 0), 0, 4, 1), 8);
  const std::vector<TileUpdate> late = {{1, 3, 0}, {1.5, 0, 0}, {10, 0, 0}};
  EXPECT_DOUBLE_EQ(EndOfUpdates(late, 0, 4, 4), 10);
  EXPECT_DOUBLE_EQ(EndOfUpdates(late, 0, 4, 1), 11.5);
}

TEST(EndOfUpdates, OfNothingIsTheBeginning) {
  EXPECT_EQ(EndOfUpdates({}, 0, 2, 2), 0);
}

}  // namespace
}  // namespace forebay
