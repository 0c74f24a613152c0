#include "forebay/memory/io_pieces.h"

#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kGib = int64_t{1} << 30;

// Sizes of the pieces; checks that they are `memory` and nothing else. The memory is never touched.
std::vector<int64_t> Sizes(int64_t size_bytes, int64_t huge_bytes, int64_t unit_bytes) {
  std::byte* const start = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);
  std::byte* next = start;
  std::vector<int64_t> sizes;
  const std::span<std::byte> memory(start, static_cast<size_t>(size_bytes));
  for (const std::span<std::byte> piece : CutIoPieces(memory, huge_bytes, unit_bytes)) {
    EXPECT_EQ(piece.data(), next);
    next += piece.size();
    sizes.push_back(static_cast<int64_t>(piece.size()));
  }
  EXPECT_EQ(next, start + size_bytes);
  return sizes;
}

TEST(IoPieces, AreOneWhereOneIsEnough) {
  EXPECT_THAT(Sizes(kGib, kGib, kMib), ElementsAre(kGib));
}

TEST(IoPieces, AreAGibibyteAtMost) {
  EXPECT_THAT(Sizes(2 * kGib + 4096, 0, 4096), ElementsAre(kGib, kGib, 4096));
}

TEST(IoPieces, AreCutBetweenUnits) {
  EXPECT_THAT(Sizes(1200 * kMib, 1200 * kMib, 300 * kMib), ElementsAre(900 * kMib, 300 * kMib));
}

TEST(IoPieces, OfUnitsAboveAGibibyteAreCutAllTheSame) {
  EXPECT_THAT(Sizes(3 * kGib, 3 * kGib, 3 * kGib / 2), ElementsAre(kGib, kGib, kGib));
}

TEST(IoPieces, KeepHugePagesApartFromTheRest) {
  EXPECT_THAT(Sizes(5 * kMib, 4 * kMib, kMib), ElementsAre(4 * kMib, kMib));
  EXPECT_THAT(Sizes(9 * kMib, 8 * kMib, 3 * kMib), ElementsAre(6 * kMib, 3 * kMib))
      << "the unit that has both kinds goes with the rest";
}

TEST(IoPieces, OfNothingAreNone) {
  EXPECT_THAT(Sizes(0, 0, 4096), ElementsAre());
}

}  // namespace
}  // namespace forebay
