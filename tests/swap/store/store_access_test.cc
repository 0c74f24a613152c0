// A store that is read beside others, and beside the one that writes to it.
#include "forebay/swap/store/store_access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "forebay/swap/store/store_folders.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class StoreAccessTest : public StoreFixture {
 protected:
  std::unique_ptr<TensorStore> Create(std::vector<std::string> directories = {}) {
    if (directories.empty()) directories = {directory_};
    auto store = TensorStore::Create({.directories = directories, .tile_elems = kSmallTileElems},
                                     SmallInventory(), engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  absl::StatusOr<std::unique_ptr<TensorStore>> Open(StoreAccess access) {
    return TensorStore::Open({directory_}, engine_.get(), "", access);
  }
  std::unique_ptr<TensorStore> MustOpen(StoreAccess access) {
    auto store = Open(access);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  // The contents of every file and folder of the store, and when it was last changed.
  std::map<std::string, std::tuple<std::string, int64_t, int64_t>> Contents() const {
    std::map<std::string, std::tuple<std::string, int64_t, int64_t>> contents;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      const std::string path = entry.path().string();
      struct stat info = {};
      EXPECT_EQ(::stat(path.c_str(), &info), 0);
      const std::string text =
          entry.is_regular_file() ? *ReadWholeFile(path, int64_t{1} << 30) : std::string();
      contents[path] = {text, info.st_mtim.tv_sec, info.st_mtim.tv_nsec};
    }
    return contents;
  }
  void FlipByte(const std::string& path, int64_t offset_bytes) {
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0;
    ASSERT_EQ(::pread(fd.get(), &byte, 1, offset_bytes), 1);
    byte = static_cast<char>(byte ^ 1);
    ASSERT_EQ(::pwrite(fd.get(), &byte, 1, offset_bytes), 1);
  }

  MemoryBudget budget_{0};
};

TEST_F(StoreAccessTest, ReadersShareAStoreAndKeepWritersAway) {
  ASSERT_EQ(WriteStep(*Create(), 1), absl::OkStatus());
  const auto first = MustOpen(StoreAccess::kReadOnly);
  const auto second = MustOpen(StoreAccess::kReadOnly);
  EXPECT_TRUE(HoldsStep(*first, 1) && HoldsStep(*second, 1));
  const absl::Status refused = Open(StoreAccess::kReadWrite).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(refused), HasSubstr("in use by process " + std::to_string(::getpid())));
}

TEST_F(StoreAccessTest, AReaderIsKeptAwayByAWriterAndSaysWhoThatIs) {
  const auto writer = Create();
  ASSERT_EQ(WriteStep(*writer, 1), absl::OkStatus());
  EXPECT_TRUE(IsAnyLocked(std::vector{directory_}));
  const absl::Status refused = Open(StoreAccess::kReadOnly).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(refused), HasSubstr("in use by process " + std::to_string(::getpid())));
}

TEST_F(StoreAccessTest, AReaderChangesNothingNotEvenCopiesThatAreDamagedOrMissing) {
  {
    const auto store = Create();
    for (const int64_t step : {1, 2}) ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
  }
  FlipByte(File(kCommitNames[0]), 40);
  std::filesystem::remove(File(kSealsNames[1]));
  std::filesystem::remove(File(kManifestNames[1]));
  std::filesystem::remove(File(kLockName));
  const auto before = Contents();
  {
    const auto store = MustOpen(StoreAccess::kReadOnly);
    EXPECT_TRUE(HoldsStep(*store, 2));
    for (const char* name : {kCommitNames[0], kSealsNames[1], kManifestNames[1]}) {
      EXPECT_THAT(store->notes(), Contains(HasSubstr(File(name)))) << name;
    }
    EXPECT_THAT(store->notes(),
                Contains(HasSubstr("the next --resume, or --repair, writes it anew")));
  }
  EXPECT_EQ(Contents(), before);
  EXPECT_TRUE(HoldsStep(*StoreFixture::MustOpen(), 2));
  EXPECT_THAT(MustOpen(StoreAccess::kReadOnly)->notes(), IsEmpty());
}

// The writer commits twice behind every tile, and goes on writing: what the reader had begun is
// written over each time.
TEST_F(StoreAccessTest, AScrubBesideAWriterFollowsItsCommitsAndFindsNoDamage) {
  const auto writer = Create();
  int64_t step = 1;
  ASSERT_EQ(WriteStep(*writer, step), absl::OkStatus());
  const auto reader = MustOpen(StoreAccess::kBesideWriter);
  std::vector<TileDamage> damaged;
  std::vector<ScrubbedStep> steps;
  const auto progress = [&](int64_t) {
    for (int i = 0; i < 2; ++i) ASSERT_EQ(WriteStep(*writer, ++step), absl::OkStatus());
    ASSERT_EQ(WriteTiles(*writer, step + 1), absl::OkStatus());
    writer->DiscardWrites();
  };
  ASSERT_EQ(reader->ScrubBesideWriter(&budget_, progress, damaged, steps), absl::OkStatus());
  EXPECT_THAT(damaged, IsEmpty());
  EXPECT_EQ(static_cast<int>(steps.size()), reader->tiles().num_tiles());
  int64_t bytes = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].step, static_cast<int64_t>(1 + 2 * i));
    bytes += steps[i].bytes;
  }
  EXPECT_EQ(bytes, reader->tiles().weight_area_bytes() + reader->tiles().state_area_bytes());
}

TEST_F(StoreAccessTest, AScrubBesideAWriterFindsDamageOfWhatIsCommittedThen) {
  const auto writer = Create();
  for (const int64_t step : {1, 2}) ASSERT_EQ(WriteStep(*writer, step), absl::OkStatus());
  const auto reader = MustOpen(StoreAccess::kBesideWriter);
  // Step 2 lies in slot B. A step that changes no tile is committed meanwhile.
  const TileMap& tiles = reader->tiles();
  FlipByte(File(kStateName), tiles.state_area_bytes(0) + tiles.tiles()[3].state_offset_bytes + 9);
  std::vector<TileDamage> damaged;
  std::vector<ScrubbedStep> steps;
  int64_t step = 2;
  const auto progress = [&](int64_t) { ASSERT_EQ(SkipStep(*writer, ++step), absl::OkStatus()); };
  ASSERT_EQ(reader->ScrubBesideWriter(&budget_, progress, damaged, steps), absl::OkStatus());
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_EQ(damaged[0].tile, 3);
  EXPECT_EQ(damaged[0].file, File(kStateName));
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, 2);
}

TEST_F(StoreAccessTest, AStoreWithOneSlotCanBeOpenedBesideItsWriterInTheMiddleOfAStep) {
  auto writer = TensorStore::Create(
      {.directories = {directory_}, .tile_elems = kSmallTileElems, .num_slots = 1},
      SmallInventory(), engine_.get());
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_EQ(WriteStep(**writer, 1), absl::OkStatus());
  ASSERT_EQ((*writer)->BeginWriting(), absl::OkStatus());
  EXPECT_EQ(MustOpen(StoreAccess::kBesideWriter)->committed().step, 1);
  writer->reset();
  EXPECT_EQ(ExitCodeOf(Open(StoreAccess::kReadOnly).status()), ExitCode::kCorrupt);
}

}  // namespace
}  // namespace forebay
