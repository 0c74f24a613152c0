// A store in several folders: one store all the same, whose folders are known wherever they are.
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/base/errors.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/records/store_manifest.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/swap/store/store_lock.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/sample.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class StripedStoreTest : public testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TensorStore>> Create(const std::vector<std::string>& folders,
                                                      const StripeWeights& weights = {}) {
    return TensorStore::Create(
        {.directories = folders, .stripe_weights = weights, .tile_elems = kSmallTileElems},
        SmallInventory(), engine_.get());
  }
  std::unique_ptr<TensorStore> MustCreate(const std::vector<std::string>& folders,
                                          const StripeWeights& weights = {}) {
    auto store = Create(folders, weights);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  std::unique_ptr<TensorStore> MustOpen(const std::vector<std::string>& folders) {
    auto store = TensorStore::Open(folders, engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  absl::Status OpenError(const std::vector<std::string>& folders) {
    return TensorStore::Open(folders, engine_.get()).status();
  }
  void MakeSteps(const std::vector<std::string>& folders, int64_t num_steps,
                 const StripeWeights& weights = {}) {
    const auto store = MustCreate(folders, weights);
    for (int64_t step = 1; step <= num_steps; ++step) {
      ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
    }
  }
  static void Copy(const std::string& from, const std::string& to) {
    std::filesystem::copy(from, to, std::filesystem::copy_options::recursive);
  }

  TemporaryFolder folder_;
  const std::string a_ = folder_.Path("a");
  const std::string b_ = folder_.Path("b");
  const std::string c_ = folder_.Path("c");
  std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 2});
};

TEST_F(StripedStoreTest, HoldsEveryTileAndOpensInAnyOrder) {
  MakeSteps({a_, b_, c_}, 3, {3, 1, 2});
  for (const std::vector<std::string>& folders :
       {std::vector{a_, b_, c_}, std::vector{c_, a_, b_}, std::vector{b_, c_, a_}}) {
    const auto store = MustOpen(folders);
    EXPECT_THAT(store->directories(), ElementsAre(a_, b_, c_));
    EXPECT_THAT(store->tiles().stripe_weights(), ElementsAre(3, 1, 2));
    EXPECT_EQ(store->committed().step, 3);
    EXPECT_TRUE(HoldsStep(*store, 3));
  }
  const auto store = MustOpen({b_, a_, c_});
  ASSERT_EQ(WriteStep(*store, 4), absl::OkStatus());
  EXPECT_TRUE(HoldsStep(*store, 4));
}

TEST_F(StripedStoreTest, ReservesInEachFolderExactlyWhatItAnnounces) {
  const auto store = MustCreate({a_, b_}, {2, 1});
  ASSERT_EQ(store->EnsureScratchArea({8000, 20'000}), absl::OkStatus());
  EXPECT_THAT(store->scratch_bytes(), ElementsAre(8192, 20'480));
  const StripeBytes announced = TensorStore::DiskBytes(store->tiles(), kMostSlots, {8000, 20'000});
  for (const int stripe : {0, 1}) {
    int64_t bytes = 0;
    for (const char* name : {"weights.fbs", "state.fbs", "gradients.fbs", "seals.fbs", "commit.fbs",
                             "copy/seals.fbs", "copy/commit.fbs"}) {
      bytes += *FileSize(JoinPath(store->directories()[stripe], name));
    }
    EXPECT_EQ(bytes, announced[stripe]);
  }
}

TEST_F(StripedStoreTest, TheValuesOfATensorAreTheSameWhateverTheStripes) {
  std::vector<std::vector<float>> values;
  for (const std::vector<std::string>& folders :
       {std::vector{folder_.Path("one")}, std::vector{a_, b_}}) {
    const auto store = MustCreate(folders);
    ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
    std::vector<float>& all = values.emplace_back();
    for (const TensorSpec& tensor : store->inventory().tensors()) {
      for (const TensorPlane plane : {TensorPlane::kMaster, TensorPlane::kM, TensorPlane::kV}) {
        const size_t begin = all.size();
        all.resize(begin + tensor.num_elems);
        ASSERT_EQ(store->ReadTensor(tensor, plane, 0, std::span(all).subspan(begin)),
                  absl::OkStatus());
      }
    }
  }
  ASSERT_EQ(values[0].size(), values[1].size());
  EXPECT_EQ(std::memcmp(values[0].data(), values[1].data(), values[0].size() * 4), 0);
}

TEST_F(StripedStoreTest, TheGradientAreaHasAPartInEveryFolder) {
  MakeSteps({a_, b_}, 1);
  const auto store = MustOpen({a_, b_});
  ASSERT_EQ(store->EnsureScratchArea({4096, 8192}), absl::OkStatus());
  ASSERT_EQ(store->EnsureScratchArea({12'288, 4096}), absl::OkStatus());
  EXPECT_THAT(store->scratch_bytes(), ElementsAre(12'288, 8192));
  Scratch scratch(4096);
  IoOp op;
  for (const bool writes : {true, false}) {
    for (const int stripe : {0, 1}) {
      const auto bytes = scratch.first(4096);
      if (writes) {
        FillPattern(bytes, 1, stripe, true);
        store->StartWriteScratch(stripe, 4096, bytes, op);
        ASSERT_EQ(engine_->Wait(op), absl::OkStatus());
        continue;
      }
      store->StartReadScratch(stripe, 4096, bytes, op);
      ASSERT_EQ(engine_->Wait(op), absl::OkStatus());
      Scratch expected(4096);
      FillPattern(expected.first(4096), 1, stripe, true);
      EXPECT_EQ(std::memcmp(bytes.data(), expected.first(4096).data(), 4096), 0);
    }
  }
  EXPECT_TRUE(HoldsStep(*store, 1));
}

TEST_F(StripedStoreTest, MoreFoldersThanTilesLeaveSomeWithoutData) {
  Inventory inventory;
  inventory.BeginLayer("only");
  inventory.Add("only.w", {5000}, 0, true);
  const std::vector<std::string> folders = {a_, b_, c_};
  {
    auto store = TensorStore::Create({.directories = folders, .tile_elems = kSmallTileElems},
                                     inventory, engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ((*store)->tiles().num_tiles(), 2);
    ASSERT_EQ(WriteStep(**store, 1), absl::OkStatus());
  }
  EXPECT_FALSE(FileExists(JoinPath(c_, "weights.fbs")));
  const auto store = MustOpen({c_, b_, a_});
  EXPECT_TRUE(HoldsStep(*store, 1));
  ASSERT_EQ(WriteStep(*store, 2), absl::OkStatus());
}

TEST_F(StripedStoreTest, AMissingFolderIsNamed) {
  MakeSteps({a_, b_, c_}, 1);
  absl::Status status = OpenError({a_, c_});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("part 2 of 3 of the store is missing"),
                                       HasSubstr(a_), HasSubstr(c_), HasSubstr("--nvme")));
  std::filesystem::remove_all(b_);
  status = OpenError({a_, b_, c_});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), HasSubstr("'" + b_ + "' holds no store"));
}

TEST_F(StripedStoreTest, AForeignFolderIsNamed) {
  MakeSteps({a_, b_}, 1);
  const std::string other_a = folder_.Path("other-a");
  const std::string other_b = folder_.Path("other-b");
  MakeSteps({other_a, other_b}, 1);
  const absl::Status status = OpenError({a_, other_b});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("'" + a_ + "' and '" + other_b + "'"),
                                       HasSubstr("belong to different stores")));
}

// Files of one folder in the place of another's: sizes, manifests or records give it away.
TEST_F(StripedStoreTest, ASwappedManifestIsFound) {
  MakeSteps({a_, b_}, 2, {2, 1});
  std::filesystem::rename(JoinPath(a_, "manifest.json"), JoinPath(folder_.path(), "kept"));
  std::filesystem::rename(JoinPath(b_, "manifest.json"), JoinPath(a_, "manifest.json"));
  std::filesystem::rename(JoinPath(folder_.path(), "kept"), JoinPath(b_, "manifest.json"));
  const absl::Status status = OpenError({a_, b_});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("contradict one another"));
}

TEST_F(StripedStoreTest, ACopyOfAFolderBesideItIsNamed) {
  MakeSteps({a_, b_}, 1);
  Copy(a_, c_);
  const absl::Status status = OpenError({a_, b_, c_});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("part 1 of 2"), HasSubstr(a_), HasSubstr(c_)));
  EXPECT_TRUE(HoldsStep(*MustOpen({b_, c_}), 1)) << "either of the two will do";
}

TEST_F(StripedStoreTest, AFolderFromAnotherTimeIsNamed) {
  MakeSteps({a_, b_}, 1);
  Copy(b_, c_);
  ASSERT_EQ(WriteStep(*MustOpen({a_, b_}), 2), absl::OkStatus());
  const absl::Status status = OpenError({a_, c_});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr(c_ + "/commit.fbs' was last committed at step 1"),
                    HasSubstr(a_ + "/commit.fbs' was last committed at step 2")));
  EXPECT_TRUE(HoldsStep(*MustOpen({a_, b_}), 2)) << "nothing was changed";
}

TEST_F(StripedStoreTest, TheSameFolderTwiceIsRefused) {
  ASSERT_TRUE(MakeDirectories(a_).ok());
  std::filesystem::create_directory_symlink(a_, b_);
  for (const std::vector<std::string>& folders : {std::vector{a_, a_}, std::vector{a_, b_}}) {
    const absl::Status status = Create(folders).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("the same folder"), HasSubstr(folders[1])));
  }
  EXPECT_TRUE(std::filesystem::is_empty(a_));
}

TEST_F(StripedStoreTest, AFolderThatIsTakenLeavesTheOthersEmpty) {
  MakeSteps({b_}, 1);
  ASSERT_TRUE(MakeDirectories(a_).ok());
  const absl::Status status = Create({a_, b_}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), HasSubstr("'" + b_ + "' already holds a store"));
  EXPECT_TRUE(std::filesystem::is_empty(a_));
  EXPECT_TRUE(HoldsStep(*MustOpen({b_}), 1));
}

// Another run may not take one of its folders, whichever it is.
TEST_F(StripedStoreTest, EveryFolderIsLocked) {
  MakeSteps({a_, b_}, 1);
  const auto store = MustOpen({a_, b_});
  for (const std::string& folder : {a_, b_}) {
    const pid_t child = ::fork();
    if (child == 0) {
      const absl::Status status = TakeStoreLock(JoinPath(folder, "lock")).status();
      ::_exit(ExitCodeOf(status) == ExitCode::kEnvironment ? 0 : 1);
    }
    int result = 0;
    ASSERT_EQ(::waitpid(child, &result, 0), child);
    EXPECT_TRUE(WIFEXITED(result) && WEXITSTATUS(result) == 0) << folder;
    const absl::Status removed = TensorStore::Remove({folder}).status();
    EXPECT_EQ(ExitCodeOf(removed), ExitCode::kEnvironment);
  }
  EXPECT_TRUE(HoldsStep(*store, 1));
}

TEST_F(StripedStoreTest, IsRemovedFromAllFoldersOrFromNone) {
  MakeSteps({a_, b_}, 1);
  {
    const auto store = MustOpen({a_, b_});
    EXPECT_FALSE(TensorStore::Remove({a_, b_}).ok());
  }
  ASSERT_TRUE(WriteFileAtomically(JoinPath(b_, "thesis.txt"), "x").ok());
  EXPECT_EQ(ExitCodeOf(TensorStore::Remove({a_, c_}).status()), ExitCode::kBadInput);
  const TileMap tiles(SmallInventory(), Layout::kBf16, kSmallTileElems, {1, 1});
  const auto freed_bytes = TensorStore::Remove({a_, b_});
  ASSERT_TRUE(freed_bytes.ok()) << freed_bytes.status();
  EXPECT_EQ(*freed_bytes, Total(TensorStore::DiskBytes(tiles, kMostSlots, {})));
  EXPECT_FALSE(FileExists(a_));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(b_), {}), 1) << "the thesis";
}

TEST_F(StripedStoreTest, AFailureAtAnyCallIsACleanErrorAndTheStoreIsWholeInAllFolders) {
  MakeSteps({a_, b_}, 1, {1, 2});
  int64_t committed = 1;
  const Sample sample(1, 8);
  for (int64_t fail_call = sample.first();; fail_call += sample.step()) {
    SCOPED_TRACE(fail_call);
    absl::Status status;
    int64_t num_calls = 0;
    {
      FaultyDisk disk({.fail_call = fail_call});
      const auto faulty = CreateThreadsEngine({.num_threads = 2}, &disk);
      auto store = TensorStore::Open({b_, a_}, faulty.get());
      status = store.status();
      if (status.ok()) status = WriteStep(**store, committed + 1);
      num_calls = disk.num_calls();
    }
    if (!status.ok()) {
      ASSERT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
    }
    const auto store = MustOpen({a_, b_});
    const int64_t step = store->committed().step;
    ASSERT_TRUE(step == committed || step == committed + 1);
    ASSERT_TRUE(HoldsStep(*store, step));
    committed = step;
    if (status.ok() && num_calls <= fail_call) return;  // every call had its turn
  }
}

TEST_F(StripedStoreTest, FoldersOnOneFileSystemNeedItsSpaceTogether) {
  const std::string small = folder_.Path("small");
  ASSERT_TRUE(MakeDirectories(small).ok());
  const TileMap tiles(SmallInventory(), Layout::kBf16, kSmallTileElems, {1, 1});
  const int64_t store_bytes = Total(TensorStore::DiskBytes(tiles, kMostSlots, {}));
  // Room for either part, and not for both.
  const std::string options = "size=" + std::to_string(store_bytes * 3 / 4 / 4096 * 4096);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, options.c_str()) != 0) {
    GTEST_SKIP() << "mounting a small file system needs root";
  }
  const std::vector<std::string> folders = {JoinPath(small, "x"), JoinPath(small, "y")};
  const absl::Status status = Create(folders).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr(std::to_string(store_bytes) + " bytes"), HasSubstr(folders[0]),
                    HasSubstr(folders[1]), HasSubstr("on one file system"), HasSubstr("Free ")));
  // With the other part elsewhere it fits.
  EXPECT_TRUE(Create({folders[0], a_}).ok());
  EXPECT_EQ(::umount2(small.c_str(), MNT_DETACH), 0);
}

// A crash of a file system, or a mistake of the user, may damage all commit records.
TEST_F(StripedStoreTest, RepairMakesLostCommitRecordsAnewFromTheChecksums) {
  for (const auto& folders : {std::vector{a_}, std::vector{a_, b_}}) {
    for (const bool is_there : {false, true}) {
      for (const uintmax_t left_bytes : {0, 2048, 4096, 8192}) {
        for (const bool is_zero : {false, true}) {
          SCOPED_TRACE(fmt::format("{} {} {}", is_there, left_bytes, is_zero));
          MakeSteps(folders, 3);
          for (const std::string& folder : folders) {
            for (const char* name : kCommitNames) {
              const std::string path = JoinPath(folder, name);
              std::filesystem::resize_file(path, is_zero ? 0 : 16);
              std::filesystem::resize_file(path, left_bytes);
              if (!is_there) std::filesystem::remove(path);
            }
          }
          EXPECT_EQ(ExitCodeOf(OpenError(folders)), ExitCode::kCorrupt);
          EXPECT_EQ(ExitCodeOf(Create(folders).status()), ExitCode::kUsage);
          MemoryBudget budget(0);
          const auto report = TensorStore::Repair(folders, engine_.get(), "", &budget, {});
          ASSERT_TRUE(report.ok()) << report.status();
          EXPECT_EQ(report->step, 3);
          EXPECT_TRUE(HoldsStep(*MustOpen(folders), 3));
          ASSERT_TRUE(TensorStore::Remove(folders).ok());
        }
      }
    }
  }
}

TEST_F(StripedStoreTest, FoldersThatLostTheirManifestsAreNotTakenByACreation) {
  MakeSteps({a_, b_}, 1);
  for (const char* name : kManifestNames) std::filesystem::remove(JoinPath(a_, name));
  EXPECT_EQ(ExitCodeOf(OpenError({a_, b_})), ExitCode::kCorrupt);
  for (const auto& folders : {std::vector{a_, b_}, std::vector{a_}}) {
    EXPECT_EQ(ExitCodeOf(Create(folders).status()), ExitCode::kUsage);
  }
  EXPECT_TRUE(FileExists(JoinPath(a_, "weights.fbs")));
  EXPECT_TRUE(FileExists(JoinPath(b_, "weights.fbs")));
  ASSERT_TRUE(TensorStore::Remove({a_, b_}).ok());
  MakeSteps({a_, b_}, 2);
  EXPECT_TRUE(HoldsStep(*MustOpen({a_, b_}), 2));
}

TEST_F(StripedStoreTest, ACreationThatFailsLeavesNoFolderThatItMade) {
  MakeSteps({c_}, 1);
  ASSERT_TRUE(MakeDirectories(a_).ok());
  const std::string deep = folder_.Path("new/x/y");
  const std::string beside = folder_.Path("new/x/z");
  EXPECT_EQ(ExitCodeOf(Create({a_, deep, beside, c_}).status()), ExitCode::kUsage);
  EXPECT_FALSE(FileExists(folder_.Path("new")));
  EXPECT_TRUE(std::filesystem::is_empty(a_)) << "was there before";
  EXPECT_EQ(ExitCodeOf(Create({deep, beside, deep}).status()), ExitCode::kUsage);
  EXPECT_FALSE(FileExists(folder_.Path("new")));
  // More than there is anywhere.
  const auto huge = TensorStore::Create({.directories = {deep, beside},
                                         .tile_elems = kSmallTileElems,
                                         .scratch_bytes = {int64_t{1} << 55, 0}},
                                        SmallInventory(), engine_.get());
  EXPECT_EQ(ExitCodeOf(huge.status()), ExitCode::kDoesNotFit);
  EXPECT_FALSE(FileExists(folder_.Path("new")));
}

TEST_F(StripedStoreTest, AStoreThatIsNotTheWantedOneIsNamedAndNotTouched) {
  const std::string mine_a = folder_.Path("mine-a");
  const std::string mine_b = folder_.Path("mine-b");
  MakeSteps({mine_a, mine_b}, 1);
  const std::string mine = ToHex(MustOpen({mine_a, mine_b})->uuid());
  const auto theirs = MustCreate({a_, b_});
  for (const std::string& folder : {a_, b_}) {
    ASSERT_TRUE(WriteFileAtomically(JoinPath(folder, "lock"), "4242\n").ok());
  }
  absl::Status status = TensorStore::Open({b_, a_}, engine_.get(), mine).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("'" + b_ + "', '" + a_ + "' hold another store"),
                                       HasSubstr(mine), HasSubstr(ToHex(theirs->uuid()))));
  status = OpenError({mine_a, b_});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("belong to different stores"));
  for (const std::string& folder : {a_, b_}) {
    EXPECT_EQ(*ReadWholeFile(JoinPath(folder, "lock"), 100), "4242\n");
  }
  EXPECT_TRUE(TensorStore::Open({mine_a, mine_b}, engine_.get(), mine).ok());
}

// The error comes before the lock is waited for.
TEST_F(StripedStoreTest, AFolderOfARunningStoreOfOthersIsNamedAsForeign) {
  MakeSteps({a_, b_}, 1);
  const std::string other = folder_.Path("other");
  const auto running = MustCreate({other, c_});
  const absl::Status status = OpenError({a_, c_});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("belong to different stores"));
}

TEST_F(StripedStoreTest, AFolderThatCannotBeLookedAtIsAStorageError) {
  MakeSteps({a_, b_}, 1);
  const std::string uuid = ToHex(MustOpen({a_, b_})->uuid());
  std::filesystem::create_symlink(c_, c_);
  const std::vector<absl::Status> refused = {
      OpenError({a_, c_}), TensorStore::Remove({a_, c_}).status(),
      RemoveParts(std::vector{a_, c_}, uuid).status(), ReadStripeIdentity(c_).status()};
  for (const absl::Status& status : refused) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("'" + c_), HasSubstr("ELOOP")));
  }
  EXPECT_TRUE(HoldsStep(*MustOpen({a_, b_}), 1)) << "nothing was removed";
}

TEST_F(StripedStoreTest, WhatIsLeftOfAStoreIsRemovedWhereverThereIsAnyOfIt) {
  MakeSteps({a_, b_, c_}, 1);
  const std::string uuid = ToHex(MustOpen({a_, b_, c_})->uuid());
  const std::string lost = folder_.Path("lost");
  std::filesystem::rename(b_, lost);
  ASSERT_TRUE(WriteFileAtomically(JoinPath(a_, "thesis.txt"), "x").ok());
  auto removed = RemoveParts(std::vector{a_, b_}, uuid);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(removed->not_there, ElementsAre(b_));
  EXPECT_GT(removed->freed_bytes, 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(a_), {}), 1) << "the thesis";
  // Its disk is mounted again; and of the third a removal was killed in the middle.
  std::filesystem::rename(lost, b_);
  for (const char* name : {"manifest.json", "copy/manifest.json", "weights.fbs"}) {
    std::filesystem::remove(JoinPath(c_, name));
  }
  removed = RemoveParts(std::vector{a_, b_, c_}, uuid);
  ASSERT_TRUE(removed.ok()) << removed.status();
  EXPECT_THAT(removed->not_there, ElementsAre(a_));
  EXPECT_GT(removed->freed_bytes, 0);
  EXPECT_FALSE(FileExists(b_) || FileExists(c_));
  EXPECT_EQ(*ReadWholeFile(JoinPath(a_, "thesis.txt"), 10), "x");
}

TEST_F(StripedStoreTest, WhatIsLeftOfOtherStoresIsNotRemoved) {
  MakeSteps({a_, b_}, 1);
  const std::string uuid(32, '0');
  // Its commit records tell as well.
  for (const char* name : kManifestNames) std::filesystem::remove(JoinPath(b_, name));
  ASSERT_TRUE(MakeDirectories(c_).ok());
  ASSERT_TRUE(WriteFileAtomically(JoinPath(c_, "weights.fbs"), "precious").ok());
  for (const std::string& wanted : {uuid, std::string()}) {
    const auto removed = RemoveParts(std::vector{a_, b_, c_}, wanted);
    ASSERT_TRUE(removed.ok()) << removed.status();
    EXPECT_THAT(removed->of_others, ElementsAre(a_, b_, c_));
    EXPECT_EQ(removed->freed_bytes, 0);
  }
  EXPECT_TRUE(FileExists(JoinPath(a_, "manifest.json")));
  EXPECT_TRUE(FileExists(JoinPath(b_, "weights.fbs")));
  EXPECT_EQ(*ReadWholeFile(JoinPath(c_, "weights.fbs"), 10), "precious");
  EXPECT_FALSE(FileExists(JoinPath(c_, "lock")));
}

TEST_F(StripedStoreTest, WhatIsLeftOfAStoreInUseIsNotRemoved) {
  MakeSteps({a_, b_}, 1);
  const auto store = MustOpen({a_, b_});
  const auto removed = RemoveParts(std::vector{a_, b_}, ToHex(store->uuid()));
  EXPECT_EQ(ExitCodeOf(removed.status()), ExitCode::kEnvironment);
  EXPECT_TRUE(HoldsStep(*store, 1));
}

}  // namespace
}  // namespace forebay
