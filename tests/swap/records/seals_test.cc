// Checksums of tiles: whatever changes behind the store's back is found before it is used, and
// named.
#include <fcntl.h>

#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/tests/sample.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class SealsTest : public testing::TestWithParam<Layout> {
 protected:
  void MakeSteps(int num_steps) {
    const auto store = TensorStore::Create(
        {.directories = {directory_}, .layout = GetParam(), .tile_elems = kTileElems}, Inventory(),
        engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    for (int step = 1; step <= num_steps; ++step) {
      ASSERT_EQ(WriteStep(**store, step), absl::OkStatus());
    }
  }
  absl::StatusOr<std::unique_ptr<TensorStore>> Open() {
    return TensorStore::Open({directory_}, engine_.get());
  }
  std::string File(const std::string& name) const { return JoinPath(directory_, name); }
  std::string Peek(const std::string& name, int64_t offset_bytes, int64_t size_bytes) {
    return ReadWholeFile(File(name), int64_t{1} << 30)
        ->substr(static_cast<size_t>(offset_bytes), static_cast<size_t>(size_bytes));
  }
  void Poke(const std::string& name, int64_t offset_bytes, std::string_view bytes) {
    const auto fd = OpenFile(File(name), O_WRONLY);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(bytes)), offset_bytes, name).ok());
  }
  void Flip(const std::string& name, int64_t offset_bytes) {
    std::string byte = Peek(name, offset_bytes, 1);
    byte[0] = static_cast<char>(byte[0] ^ 4);
    Poke(name, offset_bytes, byte);
  }
  // A tile of several parts, the last of them short.
  static constexpr int64_t kTileElems = 3 * kSealElems;
  static class Inventory Inventory() {
    class Inventory inventory;
    inventory.BeginLayer("embed");
    inventory.Add("embed.weight", {5, 100'000}, 0, true);
    inventory.BeginLayer("head");
    inventory.Add("head.norm", {1700}, 2, false);
    return inventory;
  }
  static std::vector<TileDamage> Scrubbed(TensorStore& store) {
    MemoryBudget budget(0);
    std::vector<TileDamage> damaged;
    EXPECT_EQ(store.Scrub(
                  &budget, [](int64_t) {}, damaged),
              absl::OkStatus());
    return damaged;
  }
  // As whoever works with a tile does.
  static absl::Status ReadAll(TensorStore& store) {
    absl::Status status;
    Scratch scratch(store.tiles().max_state_bytes());
    for (int i = 0; i < store.tiles().num_tiles(); ++i) {
      const Tile& tile = store.tiles().tiles()[i];
      IoOp op;
      const auto weights = scratch.first(store.tiles().WeightBytes(tile));
      store.StartReadWeights(i, weights, IoClass::kDemand, op);
      status.Update(store.engine().Wait(op));
      status.Update(store.VerifyWeights(i, weights));
      const auto state = scratch.first(store.tiles().StateBytes(tile));
      store.StartReadState(i, state, IoClass::kDemand, op);
      status.Update(store.engine().Wait(op));
      status.Update(store.VerifyState(i, state));
    }
    return status;
  }

  TemporaryFolder folder_;
  std::string directory_ = folder_.Path("swap");
  std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 2});
};

TEST_P(SealsTest, WhatWasWrittenIsVerified) {
  MakeSteps(3);
  const auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(ReadAll(**store), absl::OkStatus());
  EXPECT_EQ(ReadTensors(**store), absl::OkStatus());
  EXPECT_TRUE(Scrubbed(**store).empty());
}

// Of every plane of every tile the first and the last byte, one at a time.
TEST_P(SealsTest, AFlippedBitIsFoundAndNamedWhereverItIs) {
  MakeSteps(2);  // committed: slot B
  std::vector<std::pair<std::string, int64_t>> places;
  {
    const auto store = Open();
    const TileMap& tiles = (*store)->tiles();
    for (const Tile& tile : tiles.tiles()) {
      const TilePlanes& planes = tiles.PlanesOf(tile);
      for (int plane = 0; plane < planes.size(); ++plane) {
        const int64_t begin = plane == 0 ? tiles.weight_area_bytes() + tile.weight_offset_bytes
                                         : tiles.state_area_bytes() + tile.state_offset_bytes +
                                               planes.OffsetBytes(plane, tile.num_elems);
        const int64_t bytes = planes.Bytes(plane, tile.num_elems);
        for (const int64_t at : {begin, begin + bytes - 1}) {
          places.emplace_back(plane == 0 ? "weights.fbs" : "state.fbs", at);
        }
      }
    }
  }
  const Sample sample(1, 6);
  for (int64_t i = sample.first(); i < std::ssize(places); i += sample.step()) {
    const auto& [name, at] = places[static_cast<size_t>(i)];
    Flip(name, at);
    const auto store = Open();
    ASSERT_TRUE(store.ok()) << store.status();
    const absl::Status status = ReadAll(**store);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << name << " " << at;
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("'" + File(name) + "'"), HasSubstr("slot B"), HasSubstr("step 2")));
    EXPECT_EQ(ExitCodeOf(ReadTensors(**store)), ExitCode::kCorrupt);
    const std::vector<TileDamage> damaged = Scrubbed(**store);
    ASSERT_EQ(damaged.size(), 1u) << name << " " << at;
    EXPECT_EQ(damaged[0].file, File(name));
    EXPECT_LE(damaged[0].offset_bytes, at);
    EXPECT_GT(damaged[0].offset_bytes + damaged[0].size_bytes, at);
    Flip(name, at);
  }
}

TEST_P(SealsTest, TheSlotThatIsNotCommittedIsNobodysBusiness) {
  MakeSteps(2);
  Flip("weights.fbs", 100);
  Flip("state.fbs", 100);
  const auto store = Open();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ(ReadAll(**store), absl::OkStatus());
}

// A drive that says that it has written, and has not.
TEST_P(SealsTest, ALostWriteIsFoundThoughWhatIsThereWasOnceRight) {
  MakeSteps(1);
  const std::string old_weights = Peek("weights.fbs", 0, 4096);
  const std::string old_state = Peek("state.fbs", 0, 4096);
  {
    const auto store = Open();
    ASSERT_EQ(WriteStep(**store, 2), absl::OkStatus());
    ASSERT_EQ(WriteStep(**store, 3), absl::OkStatus());  // in slot A, as step 1 was
  }
  for (const bool of_state : {false, true}) {
    const std::string name = of_state ? "state.fbs" : "weights.fbs";
    const std::string now = Peek(name, 0, 4096);
    Poke(name, 0, of_state ? old_state : old_weights);
    EXPECT_EQ(ExitCodeOf(ReadAll(**Open())), ExitCode::kCorrupt) << name;
    Poke(name, 0, now);
  }
  EXPECT_EQ(ReadAll(**Open()), absl::OkStatus());
}

TEST_P(SealsTest, ATableHasTwoCopies) {
  MakeSteps(2);
  int64_t table_bytes = 0;
  {
    const auto store = Open();
    table_bytes = TileSeals::TableBytes((*store)->tiles(), 0);
    for (const char* name : kSealsNames) EXPECT_EQ(*FileSize(File(name)), 2 * table_bytes);
  }
  const int64_t of_slot_b = table_bytes;
  for (const int64_t in_table : {int64_t{100}, kCommitRecordBytes + 70, table_bytes - 1}) {
    for (const char* name : kSealsNames) {
      // It is made anew from the other.
      const std::string whole = *ReadWholeFile(File(name), 2 * table_bytes);
      Flip(name, of_slot_b + in_table);
      const auto store = Open();
      ASSERT_TRUE(store.ok()) << store.status();
      EXPECT_EQ(ReadAll(**store), absl::OkStatus());
      EXPECT_EQ(*ReadWholeFile(File(name), 2 * table_bytes), whole);
      EXPECT_THAT((*store)->notes(), testing::ElementsAre(HasSubstr(File(name))));
    }
    for (const char* name : kSealsNames) Flip(name, of_slot_b + in_table);
    const absl::Status status = Open().status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
    EXPECT_THAT(MessageOf(status), HasSubstr("'" + File("seals.fbs") + "'"));
    for (const char* name : kSealsNames) Flip(name, of_slot_b + in_table);
  }
}

TEST_P(SealsTest, ATableOfAnotherStepIsRefused) {
  MakeSteps(1);
  const int64_t slot_bytes = *FileSize(File("seals.fbs")) / 2;
  const std::string old = Peek("seals.fbs", 0, slot_bytes);
  {
    const auto store = Open();
    ASSERT_EQ(WriteStep(**store, 2), absl::OkStatus());
    ASSERT_EQ(WriteStep(**store, 3), absl::OkStatus());
  }
  for (const char* name : kSealsNames) Poke(name, 0, old);
  const absl::Status status = Open().status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("another step"));
}

// docs/formats.md, "seals.fbs", from the bytes alone.
TEST_P(SealsTest, TheBytesAreThoseOfTheFormat) {
  MakeSteps(1);
  const std::string table = Peek("seals.fbs", 0, *FileSize(File("seals.fbs")) / 2);
  const std::string commit = Peek("commit.fbs", 0, 4096);
  EXPECT_EQ(table.substr(0, 4096), commit);
  const auto number = [&](size_t at) {
    uint64_t value = 0;
    std::memcpy(&value, table.data() + at, 8);
    return value;
  };
  EXPECT_EQ(table.substr(4096, 4), "FBTS");
  EXPECT_EQ(number(4096 + 16), 0u);  // first element
  EXPECT_EQ(number(4096 + 24), static_cast<uint64_t>(kTileElems));
  EXPECT_EQ(number(4096 + 48), 1u);  // sequence
  // The first part of the weights, and the second part of the state's first plane.
  const TilePlanes planes(GetParam(), {}, /*small=*/false);
  const auto checksum = [&](const std::string& name, int64_t offset, int plane) {
    const std::string bytes = Peek(name, offset, planes.Bytes(plane, kSealElems));
    return Xxh3_64(std::as_bytes(std::span(bytes)));
  };
  EXPECT_EQ(number(4096 + 64), checksum("weights.fbs", 0, 0));
  EXPECT_EQ(number(4096 + 64 + 8 * 4), checksum("state.fbs", planes.Bytes(1, kSealElems), 1));
  // The trailer, and the root in the record.
  EXPECT_EQ(table.substr(table.size() - 64, 8), "FBSEALED");
  Xxh3_128 hash;
  hash.Update(std::string_view(table).substr(4096, table.size() - 4096 - 16));
  const auto digest = hash.Digest();
  EXPECT_EQ(std::memcmp(table.data() + table.size() - 16, digest.data(), 16), 0);
  Xxh3_128 root;
  root.Update(std::string_view(table).substr(table.size() - 16));
  EXPECT_EQ(std::memcmp(commit.data() + 64, root.Digest().data(), 16), 0);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SealsTest, testing::ValuesIn(kLayouts),
                         [](const auto& c) { return TestNameOf(c.param); });

}  // namespace
}  // namespace forebay
