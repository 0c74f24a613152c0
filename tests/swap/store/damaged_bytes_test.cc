// A flipped byte in each region of the store's files (docs/formats.md, "The store"): another copy
// spares it, or it is found and named; and nothing is lost that could be kept.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/tests/swap/store/crash_fixture.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int64_t kDamagedSteps = 3;  // the last of them in slot A

// Bytes of a file that mean one thing.
struct Region {
  std::string what;
  int64_t offset_bytes = 0;
  int64_t size_bytes = 0;
};

std::vector<Region> RecordRegions() {
  return {{"magic", 0, 8},          {"version", 8, 4},         {"slot", 12, 4},
          {"uuid", 16, 16},         {"sequence", 32, 8},       {"step", 40, 8},
          {"previous hash", 48, 8}, {"trainer length", 56, 4}, {"overwriting", 60, 4},
          {"root", 64, 16},         {"manifest hash", 80, 8},  {"trainer", 88, 3072},
          {"zeros", 3160, 928},     {"hash", 4088, 8}};
}

// Of a stripe's table: record, seals, zeros, trailer.
std::vector<Region> TableRegions(const TileMap& tiles, int stripe) {
  std::vector<Region> regions;
  for (Region region : RecordRegions()) {
    region.what = "record's " + region.what;
    regions.push_back(region);
  }
  int64_t at = kCommitRecordBytes;
  const auto add = [&](std::string what, int64_t size_bytes) {
    regions.push_back({std::move(what), at, size_bytes});
    at += size_bytes;
  };
  for (const Tile& tile : tiles.tiles()) {
    if (tile.stripe != stripe) continue;
    for (const char* what : {"seal's magic", "seal's tile", "seal's layer", "seal's slot"}) {
      add(what, 4);
    }
    for (const char* what : {"seal's first element", "seal's elements", "seal's weights offset",
                             "seal's state offset", "seal's sequence", "seal's hash"}) {
      add(what, 8);
    }
    for (int plane = 0; plane < tiles.PlanesOf(tile).size(); ++plane) {
      add(fmt::format("checksums of plane {}", plane), 8 * NumSealParts(tile));
    }
  }
  const int64_t trailer = TileSeals::TableBytes(tiles, stripe) - 64;
  add("zeros", trailer - at);
  add("trailer's magic", 8);
  for (const char* what : {"trailer's version", "trailer's stripe", "trailer's slot", "zero"}) {
    add(what, 4);
  }
  add("trailer's uuid", 16);
  add("trailer's sequence", 8);
  add("trailer's hash", 16);
  return regions;
}

class DamagedBytesTest : public CrashFixture {
 protected:
  void SetUp() override {
    Record(kDamagedSteps);
    whole_ = ImageOf(start_, events_, {events_.size(), {}});
    crashed().Put(whole_);
    RecordedStore store(crashed());
    ASSERT_TRUE(store.ok()) << store.status();
    tiles_ = std::make_unique<TileMap>(store->tiles());
  }

  // The first and the last byte of a region, and some between; as they are, with one bit flipped.
  template <typename Check>
  void ForEachFlip(const Region& region, const Check& check) {
    const CounterRng rng(CrashSeed(), static_cast<uint64_t>(region.offset_bytes));
    std::vector<int64_t> places = {0, region.size_bytes - 1};
    for (uint64_t i = 0; i < 2; ++i) {
      places.push_back(
          static_cast<int64_t>(rng.Below(i, static_cast<uint64_t>(region.size_bytes))));
    }
    std::ranges::sort(places);
    places.erase(std::unique(places.begin(), places.end()), places.end());
    for (const int64_t place : places) {
      const auto bit = static_cast<char>(1 << rng.Below(static_cast<uint64_t>(2 + place), 8));
      SCOPED_TRACE(fmt::format("{}, byte {}, {}", region.what, place, RepeatCommand()));
      ++num_points_;
      check(region.offset_bytes + place, bit);
    }
  }
  static void Flip(Image& image, const std::string& name, int64_t at, char bit) {
    char& byte = image.at(name)[static_cast<size_t>(at)];
    byte = static_cast<char>(byte ^ bit);
  }

  // Another copy is there: nothing is lost, and both are whole again.
  void ExpectSpared(const Image& damaged) {
    const Seen& seen = See(damaged, /*repair=*/false);
    EXPECT_EQ(seen.problem, "");
    EXPECT_TRUE(seen.found.whole) << seen.found.error;
    EXPECT_EQ(seen.found.step, kDamagedSteps);
    EXPECT_TRUE(crashed().image() == whole_) << "what was damaged is left so";
  }
  // It is named; a repair goes to `step`, or (-1) says that no step is whole.
  void ExpectNamed(const Image& damaged, const std::string& name, int64_t step) {
    const Seen& seen = See(damaged, /*repair=*/true);
    EXPECT_EQ(seen.problem, "");
    EXPECT_FALSE(seen.found.whole);
    EXPECT_THAT(seen.found.error, HasSubstr(name));
    EXPECT_EQ(seen.repaired, step >= 0);
    EXPECT_EQ(seen.after.step, step);
  }
  // Damages `region` in either copy of a file of `folder`, then in both; `step` as above.
  void ExpectOneCopySparedAndBothNamed(const Region& region, int folder,
                                       const char* const (&names)[kNumCopies], int64_t step) {
    ForEachFlip(region, [&](int64_t at, char bit) {
      Image both = whole_;
      for (const char* const name : names) {
        const std::string file = fmt::format("{}/{}", folder, name);
        Image one = whole_;
        Flip(one, file, at, bit);
        ExpectSpared(one);
        Flip(both, file, at, bit);
      }
      ExpectNamed(both, fmt::format("{}/{}", folder, names[0]), step);
    });
  }
  int64_t StepBefore() const { return GetParam().num_slots == 1 ? -1 : kDamagedSteps - 1; }

  Image whole_;
  std::unique_ptr<TileMap> tiles_;
};

TEST_P(DamagedBytesTest, OfOneManifestAreSparedAndOfBothAreNamed) {
  for (int folder = 0; folder < GetParam().num_folders; ++folder) {
    const std::string names[] = {fmt::format("{}/{}", folder, kManifestNames[0]),
                                 fmt::format("{}/{}", folder, kManifestNames[1])};
    const auto size = static_cast<int64_t>(whole_.at(names[0]).size());
    for (int64_t at = 0; at < size; ++at) {
      Image both = whole_;
      for (const std::string& name : names) {
        Image one = whole_;
        Flip(one, name, at, 1);
        // Every byte of the one, some of the other.
        if (name == names[0] || at % 16 == 0) {
          const Seen& seen = See(one, /*repair=*/false);
          EXPECT_EQ(seen.problem, "") << at;
          EXPECT_TRUE(seen.found.whole) << at << ": " << seen.found.error;
        }
        Flip(both, name, at, 1);
      }
      const Seen& seen = See(both, /*repair=*/true);
      EXPECT_EQ(seen.problem, "") << at;
      EXPECT_FALSE(seen.found.opened) << at;
      EXPECT_THAT(seen.found.error, HasSubstr(names[0])) << at;
      EXPECT_FALSE(seen.repaired) << at;
      ++num_points_;
    }
  }
}

TEST_P(DamagedBytesTest, OfOneRecordAreSparedAndOfBothAreMadeAnewFromTheTables) {
  for (int folder = 0; folder < GetParam().num_folders; ++folder) {
    for (const Region& region : RecordRegions()) {
      ExpectOneCopySparedAndBothNamed(region, folder, kCommitNames, kDamagedSteps);
    }
  }
}

TEST_P(DamagedBytesTest, OfOneTableAreSparedAndOfBothAreNamed) {
  for (int folder = 0; folder < GetParam().num_folders; ++folder) {
    for (const Region& region : TableRegions(*tiles_, folder)) {
      ExpectOneCopySparedAndBothNamed(region, folder, kSealsNames, StepBefore());
    }
  }
}

// Also by who reads tensors, and by who looks at all.
TEST_P(DamagedBytesTest, OfATileAreNamedAndCostItsStepAlone) {
  for (const Tile& tile : tiles_->tiles()) {
    const TilePlanes& planes = tiles_->PlanesOf(tile);
    for (int plane = 0; plane < planes.size(); ++plane) {
      const std::string name =
          fmt::format("{}/{}.fbs", tile.stripe, plane == 0 ? "weights" : "state");
      const int64_t begin =
          plane == 0 ? tile.weight_offset_bytes
                     : tile.state_offset_bytes + planes.OffsetBytes(plane, tile.num_elems);
      const Region region = {fmt::format("{} plane {}", name, plane), begin,
                             planes.Bytes(plane, tile.num_elems)};
      ForEachFlip(region, [&](int64_t at, char bit) {
        Image damaged = whole_;
        Flip(damaged, name, at, bit);
        ExpectNamed(damaged, name, StepBefore());
        crashed().Put(damaged);
        RecordedStore store(crashed());
        ASSERT_TRUE(store.ok()) << store.status();
        EXPECT_THAT(MessageOf(ReadTensors(*store)), HasSubstr(name));
        MemoryBudget budget(0);
        std::vector<TileDamage> found;
        ASSERT_EQ(store->Scrub(&budget, {}, found), absl::OkStatus());
        ASSERT_EQ(found.size(), 1u);
        EXPECT_THAT(found[0].file, testing::EndsWith(name));
      });
    }
  }
}

class DamagedOtherSlotTest : public DamagedBytesTest {};

TEST_P(DamagedOtherSlotTest, IsNobodysBusiness) {
  for (const auto& file : whole_) {
    const std::string& name = file.first;
    if (!name.ends_with(".fbs") || IsCommitFile(name)) continue;
    const auto half = static_cast<int64_t>(file.second.size() / 2);
    ForEachFlip({"slot B of " + name, half, half}, [&](int64_t at, char bit) {
      Image damaged = whole_;
      Flip(damaged, name, at, bit);
      const Seen& seen = See(damaged, /*repair=*/false);
      EXPECT_TRUE(seen.found.whole) << seen.found.error;
      EXPECT_EQ(seen.found.step, kDamagedSteps);
    });
  }
}

constexpr RunShape kDamagedShapes[] = {{1},
                                       {2},
                                       {.num_slots = 1},
                                       {2, 1, 1},
                                       {.layout = Layout::kFp16},
                                       {.num_folders = 2, .layout = Layout::kInt8Moments}};

INSTANTIATE_TEST_SUITE_P(Folders, DamagedBytesTest, testing::ValuesIn(kDamagedShapes), NameOfShape);
INSTANTIATE_TEST_SUITE_P(Folders, DamagedOtherSlotTest, testing::Values(RunShape{1}, RunShape{2}),
                         NameOfShape);

}  // namespace
}  // namespace forebay
