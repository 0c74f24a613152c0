// The space that a store's first commit leaves alone, written before a step needs it.
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/base/errors.h"
#include "forebay/swap/session/tensor_session.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/aio/scratch_mount.h"
#include "forebay/tests/child_process.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Small, so that each range of a file takes several writes, and many of them end in a shorter one.
constexpr int64_t kScratchBytes = 3 * 4096;

// The files of `folder` that have blocks which are reserved and were never written; "?" where the
// file system does not tell.
std::vector<std::string> FilesWithUnwrittenBlocks(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_directory()) continue;
    const UniqueFd fd(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    constexpr uint32_t kMostExtents = 1024;
    std::vector<uint64_t> memory(
        (sizeof(struct fiemap) + kMostExtents * sizeof(struct fiemap_extent)) / sizeof(uint64_t));
    auto* const map = reinterpret_cast<struct fiemap*>(memory.data());
    map->fm_length = FIEMAP_MAX_OFFSET;
    map->fm_flags = FIEMAP_FLAG_SYNC;
    map->fm_extent_count = kMostExtents;
    if (::ioctl(fd.get(), FS_IOC_FIEMAP, map) != 0) return {"?"};
    const std::span extents(map->fm_extents, map->fm_mapped_extents);
    if (std::ranges::any_of(extents, [](const struct fiemap_extent& extent) {
          return (extent.fe_flags & FIEMAP_EXTENT_UNWRITTEN) != 0;
        })) {
      found.push_back(entry.path().filename());
    }
  }
  return found;
}

class SpareSpaceTest : public testing::Test {
 protected:
  StoreOptions Options() const {
    return {.directories = directories_,
            .tile_elems = kSmallTileElems,
            .scratch_bytes = {5 * 4096, 3 * 4096}};
  }
  std::unique_ptr<TensorStore> MustCreate(Engine* engine) {
    auto store = TensorStore::Create(Options(), SmallInventory(), engine);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  const TemporaryFolder folder_;
  const std::vector<std::string> directories_ = {folder_.Path("a"), folder_.Path("b")};
  const std::unique_ptr<Engine> engine_ = CreateThreadsEngine({});
  Scratch scratch_{kScratchBytes};
};

// The .fbs files of `folders` with bytes that no write of `events` went to.
std::vector<std::string> FilesWithGaps(const std::vector<std::string>& folders,
                                       const std::vector<DiskEvent>& events) {
  std::map<std::string, std::set<int64_t>> written;
  for (const DiskEvent& event : events) {
    for (int64_t at = 0; at < std::ssize(event.data); at += kIoAlignBytes) {
      written[event.path].insert(event.offset_bytes + at);
    }
  }
  std::vector<std::string> gaps;
  for (const std::string& folder : folders) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() != ".fbs") continue;
      const auto blocks = static_cast<int64_t>(entry.file_size()) / kIoAlignBytes;
      if (std::ssize(written[entry.path()]) != blocks) gaps.push_back(entry.path());
    }
  }
  return gaps;
}

TEST_F(SpareSpaceTest, IsAllThatTheFirstCommitLeaves) {
  struct Shape {
    int num_slots = 2;
    StripeWeights stripe_weights;
    StripeBytes scratch_bytes;
  };
  const Shape shapes[] = {{},
                          {.stripe_weights = {1000, 1}},  // the second folder gets no tiles
                          {.scratch_bytes = {5 * 4096, 0}},
                          {.scratch_bytes = {4096, 7 * 4096}},
                          {.num_slots = 1, .scratch_bytes = {0, 4096}}};
  for (const Shape& shape : shapes) {
    for (const bool is_written : {false, true}) {
      SCOPED_TRACE(fmt::format("shape {}, written: {}", &shape - shapes, is_written));
      FaultyDisk disk({.record = true});
      const auto engine = CreateThreadsEngine({}, &disk);
      const auto store = TensorStore::Create({.directories = directories_,
                                              .stripe_weights = shape.stripe_weights,
                                              .tile_elems = kSmallTileElems,
                                              .num_slots = shape.num_slots,
                                              .scratch_bytes = shape.scratch_bytes},
                                             SmallInventory(), engine.get());
      ASSERT_TRUE(store.ok()) << store.status();
      std::vector<double> told = {0};
      if (is_written) {
        ASSERT_EQ((*store)->WriteSpareSpace(scratch_.first(kScratchBytes), {},
                                            [&](double fraction) { told.push_back(fraction); }),
                  absl::OkStatus());
      }
      ASSERT_EQ(WriteStep(**store, 1), absl::OkStatus());
      EXPECT_EQ(FilesWithGaps(directories_, disk.events()).empty(), is_written);
      EXPECT_TRUE(std::ranges::is_sorted(told));
      EXPECT_EQ(told.back(), is_written ? 1 : 0);
      (*store)->RemoveCreated();
    }
  }
}

TEST_F(SpareSpaceTest, IsABlockBesideEachRecordWithOneSlotAndNoGradients) {
  FaultyDisk disk({.record = true});
  const auto engine = CreateThreadsEngine({}, &disk);
  const auto store = TensorStore::Create(
      {.directories = directories_, .tile_elems = kSmallTileElems, .num_slots = 1},
      SmallInventory(), engine.get());
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_EQ((*store)->WriteSpareSpace(scratch_.first(kScratchBytes), {}, {}), absl::OkStatus());
  for (const DiskEvent& event : disk.events()) {
    if (event.is_flush) continue;
    EXPECT_THAT(event.path, testing::EndsWith("/commit.fbs"));
    EXPECT_EQ(event.offset_bytes, kSpareBlockOffsetBytes);
  }
}

TEST_F(SpareSpaceTest, HasNoUnwrittenBlocksAfterwards) {
  const auto store = MustCreate(engine_.get());
  const std::vector<std::string> before = FilesWithUnwrittenBlocks(directories_[0]);
  if (before.empty() || before.front() == "?") {
    GTEST_SKIP() << "the file system tells of no blocks that are reserved and not written (FIEMAP)";
  }
  ASSERT_THAT(before,
              testing::IsSupersetOf({"weights.fbs", "state.fbs", "seals.fbs", "gradients.fbs"}));
  ASSERT_EQ(store->WriteSpareSpace(scratch_.first(kScratchBytes), {}, {}), absl::OkStatus());
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  EXPECT_THAT(FilesWithUnwrittenBlocks(directories_[0]), IsEmpty());
  EXPECT_THAT(FilesWithUnwrittenBlocks(directories_[1]), IsEmpty());
}

TEST_F(SpareSpaceTest, IsWrittenForASession) {
  FaultyDisk disk({.record = true});
  const auto engine = CreateThreadsEngine({}, &disk);
  auto session =
      TensorSession::Create({.memory_bytes = 1 << 20}, Options(), SmallInventory(), engine.get());
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_EQ((*session)->Commit(1, {}), absl::OkStatus());
  EXPECT_THAT(FilesWithGaps(directories_, disk.events()), IsEmpty());
}

TEST_F(SpareSpaceTest, LeavesNothingOfASessionBehindWhereItFails) {
  FaultyDisk disk({.fail_named = CallName{.kind = IoKind::kWrite, .file = "gradients.fbs"}});
  const auto engine = CreateThreadsEngine({}, &disk);
  const auto session =
      TensorSession::Create({.memory_bytes = 1 << 20}, Options(), SmallInventory(), engine.get());
  EXPECT_EQ(ExitCodeOf(session.status()), ExitCode::kStorage) << session.status();
  EXPECT_FALSE(FileExists(directories_[0]));
}

TEST_F(SpareSpaceTest, IsNoStep) {
  {
    const auto store = MustCreate(engine_.get());
    ASSERT_EQ(WriteTiles(*store, 1), absl::OkStatus());  // and it touches none of these
    ASSERT_EQ(store->WriteSpareSpace(scratch_.first(kScratchBytes), {}, {}), absl::OkStatus());
    ASSERT_EQ(store->Commit({1, {}}), absl::OkStatus());
  }
  const auto store = TensorStore::Open(directories_, engine_.get());
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->committed().step, 1);
  EXPECT_EQ(ReadTensors(**store), absl::OkStatus());
  EXPECT_EQ(WriteStep(**store, 2), absl::OkStatus());
}

TEST_F(SpareSpaceTest, StopsOnRequest) {
  const auto store = MustCreate(engine_.get());
  int asked = 0;
  const absl::Status status =
      store->WriteSpareSpace(scratch_.first(kScratchBytes), [&] { return ++asked > 3; }, {});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kInterrupted) << status;
  EXPECT_EQ(asked, 4);
}

TEST_F(SpareSpaceTest, NamesTheFileWhoseWriteFails) {
  int64_t calls_of_creation = 0;
  {
    FaultyDisk disk({});
    const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
    const auto store = MustCreate(engine.get());
    calls_of_creation = disk.num_calls();
    store->RemoveCreated();
  }
  FaultyDisk disk({.fail_call = calls_of_creation + 3, .error_number = ENOSPC});
  const auto faulty = CreateThreadsEngine({.num_threads = 1}, &disk);
  const auto store = MustCreate(faulty.get());
  const absl::Status status = store->WriteSpareSpace(scratch_.first(kScratchBytes), {}, {});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  EXPECT_THAT(MessageOf(status),
              testing::AllOf(HasSubstr("weights.fbs"), HasSubstr("No space left on device")));
}

// What a store says of its space on a disk without fallocate, and whether it has all of it.
std::string OnBlockMaps() {
  const TemporaryFolder folder;
  const ScratchMount mount = {.image = folder.Path("image"),
                              .directory = folder.Path("mount"),
                              .features = "^extent,^64bit"};
  if (!MakeDirectories(mount.directory).ok()) return "skip: no folder";
  return InChild([&]() -> std::string {
    const std::string why_not = MountScratch(mount);
    if (!why_not.empty()) return "skip: " + why_not;
    const std::string directory = JoinPath(mount.directory, "store");
    const auto engine = CreateThreadsEngine({});
    auto store = TensorStore::Create(
        {.directories = {directory}, .tile_elems = kSmallTileElems, .scratch_bytes = {5 * 4096}},
        SmallInventory(), engine.get());
    if (!store.ok()) return store.status().ToString();
    std::string told = (*store)->space_note();
    Scratch scratch(kScratchBytes);
    absl::Status status = (*store)->WriteSpareSpace(scratch.first(kScratchBytes), {}, {});
    status.Update(WriteStep(**store, 1));
    if (!status.ok()) return status.ToString();
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
      if (entry.is_directory()) continue;
      const UniqueFd fd(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
      if (::lseek(fd.get(), 0, SEEK_HOLE) != static_cast<off_t>(entry.file_size())) {
        told += "|a hole in " + entry.path().string();
      }
    }
    told += "|" + (*store)->space_note();
    store->reset();
    const auto opened = TensorStore::Open({directory}, engine.get());
    if (!opened.ok()) return opened.status().ToString();
    status = (*opened)->EnsureScratchArea({5 * 4096});
    told += "|" + (*opened)->space_note();  // all of it was there
    status.Update((*opened)->EnsureScratchArea({6 * 4096}));
    return status.ok() ? told + "|" + (*opened)->space_note() : status.ToString();
  });
}

TEST(SpareSpace, IsTheStoresOwnWithoutFallocate) {
  const std::string told = OnBlockMaps();
  if (told.starts_with("skip: ")) GTEST_SKIP() << told.substr(6);
  EXPECT_THAT(told, testing::MatchesRegex(
                        "[^|]*reserves no space[^|]*the run ends there[^|]*\\|"
                        "[^|]*reserves no space[^|]*written in full[^|]*\\|\\|"
                        "[^|]*gradients.fbs[^|]*reserves no space[^|]*the run ends there[^|]*"));
}

}  // namespace
}  // namespace forebay
