#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/store/store_state.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/errors.h"
#include "forebay/base/file_space.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class TensorStoreTest : public StoreFixture {
 protected:
  absl::StatusOr<std::unique_ptr<TensorStore>> Create(Layout layout = Layout::kBf16,
                                                      int64_t scratch_bytes = 0) {
    return TensorStore::Create({.directories = {directory_},
                                .layout = layout,
                                .tile_elems = kSmallTileElems,
                                .scratch_bytes = {scratch_bytes}},
                               SmallInventory(), engine_.get());
  }
  std::unique_ptr<TensorStore> MustCreate(Layout layout = Layout::kBf16,
                                          int64_t scratch_bytes = 0) {
    auto store = Create(layout, scratch_bytes);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  // Creates the store and commits steps 1 to `num_steps`.
  void MakeSteps(int num_steps) {
    const auto store = MustCreate();
    for (int step = 1; step <= num_steps; ++step)
      ASSERT_EQ(WriteStep(*store, step), absl::OkStatus());
  }

  // Overwrites bytes of a file behind the store's back.
  void Poke(const std::string& name, int64_t offset_bytes, std::string_view bytes) {
    const auto fd = OpenFile(File(name), O_WRONLY);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(bytes)), offset_bytes, name).ok());
  }
};

TEST_F(TensorStoreTest, HasNoCommitWhenItIsNew) {
  const auto store = MustCreate();
  EXPECT_FALSE(store->has_commit());
  EXPECT_EQ(store->inventory().num_params(), SmallInventory().num_params());
  EXPECT_EQ(store->directory(), directory_);
}

TEST_F(TensorStoreTest, ReservesExactlyWhatItAnnounces) {
  const auto store = MustCreate(Layout::kBf16, 10'000);
  int64_t total_bytes = 0;
  for (const char* name : {"weights.fbs", "state.fbs", "gradients.fbs", "seals.fbs", "commit.fbs",
                           "copy/seals.fbs", "copy/commit.fbs"}) {
    total_bytes += *FileSize(File(name));
  }
  EXPECT_EQ(total_bytes, Total(TensorStore::DiskBytes(store->tiles(), kMostSlots, {10'000})));
}

TEST_F(TensorStoreTest, ItsFilesBelongToTheUserAlone) {
  const auto store = MustCreate(Layout::kBf16, 4096);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
    struct stat info = {};
    ASSERT_EQ(::stat(entry.path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, entry.is_directory() ? 0700u : 0600u) << entry.path();
  }
}

TEST_F(TensorStoreTest, OpensAtTheLastCommit) {
  MakeSteps(3);
  const auto store = MustOpen();
  ASSERT_TRUE(store->has_commit());
  EXPECT_EQ(store->committed().step, 3);
  EXPECT_EQ(store->committed().trainer.at("tokens_seen"), 3000);
  EXPECT_TRUE(HoldsStep(*store, 3));
  EXPECT_EQ(store->inventory().tensors()[1].name, "layers.0.norm");
}

TEST_F(TensorStoreTest, GoesOnAfterItWasOpened) {
  MakeSteps(2);
  ASSERT_EQ(WriteStep(*MustOpen(), 3), absl::OkStatus());
  ASSERT_EQ(WriteStep(*MustOpen(), 4), absl::OkStatus());
  EXPECT_TRUE(HoldsStep(*MustOpen(), 4));
}

TEST_F(TensorStoreTest, AStepThatWasNotCommittedNeverHappened) {
  MakeSteps(2);
  {
    const auto store = MustOpen();
    Scratch scratch(store->tiles().max_state_bytes());
    IoOp op;
    const auto bytes = scratch.first(store->tiles().WeightBytes(store->tiles().tiles()[0]));
    FillPattern(bytes, 3, 0, false);
    store->StartWriteWeights(0, bytes, op);
    ASSERT_TRUE(engine_->Wait(op).ok());
    store->MarkWeightsWritten(0);
  }
  const auto store = MustOpen();
  EXPECT_EQ(store->committed().step, 2);
  EXPECT_TRUE(HoldsStep(*store, 2));
}

TEST_F(TensorStoreTest, ReadsSeeATilesNewestCompletedWrite) {
  MakeSteps(1);
  const auto store = MustOpen();
  const int64_t bytes = store->tiles().WeightBytes(store->tiles().tiles()[0]);
  Scratch written(bytes);
  Scratch read(bytes);
  Scratch expected(bytes);
  IoOp write_op;
  IoOp read_op;
  FillPattern(written.first(bytes), 2, 0, false);
  store->StartWriteWeights(0, written.first(bytes), write_op);
  ASSERT_TRUE(engine_->Wait(write_op).ok());
  for (const int step : {1, 2}) {
    store->StartReadWeights(0, read.first(bytes), IoClass::kPrefetch, read_op);
    ASSERT_TRUE(engine_->Wait(read_op).ok());
    FillPattern(expected.first(bytes), step, 0, false);
    EXPECT_EQ(std::memcmp(read.first(bytes).data(), expected.first(bytes).data(), bytes), 0)
        << step;
    if (step == 1) store->MarkWeightsWritten(0);
  }
}

// Layers are read ahead while the step before is committed.
TEST_F(TensorStoreTest, ReadsDuringACommitSeeTheNewestWrite) {
  const auto store = MustCreate();
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  for (int64_t step = 2; step < 30; ++step) {
    ASSERT_EQ(WriteTiles(*store, step), absl::OkStatus());
    std::atomic<bool> committed{false};
    bool always_newest = true;
    std::thread reader([&] {
      do {
        always_newest = HoldsStep(*store, step) && always_newest;
      } while (!committed.load());
    });
    const absl::Status status = store->Commit({step, Json::object()});
    committed.store(true);
    reader.join();
    ASSERT_EQ(status, absl::OkStatus());
    EXPECT_TRUE(always_newest) << step;
  }
}

TEST_F(TensorStoreTest, KeepsGradientsWhereTheCallerPutsThem) {
  const auto store = MustCreate(Layout::kBf16, 12'288);
  Scratch written(8192);
  Scratch read(8192);
  IoOp op;
  FillPattern(written.first(8192), 1, 1, true);
  store->StartWriteScratch(0, 4096, written.first(8192), op);
  ASSERT_TRUE(engine_->Wait(op).ok());
  store->StartReadScratch(0, 4096, read.first(8192), op);
  ASSERT_TRUE(engine_->Wait(op).ok());
  EXPECT_EQ(std::memcmp(read.first(8192).data(), written.first(8192).data(), 8192), 0);
}

// ---- Tensors

float ValueOf(int layer, int64_t elem, TensorPlane plane) {
  const CounterRng rng(static_cast<uint64_t>(layer), static_cast<uint64_t>(plane));
  return static_cast<float>(rng.Normal(static_cast<uint64_t>(elem)));
}

// Writes ValueOf into every element of every tile and commits.
void WriteValues(TensorStore& store) {
  const TileMap& tiles = store.tiles();
  Scratch weights(tiles.max_state_bytes());
  Scratch state(tiles.max_state_bytes());
  IoOp op;
  for (int i = 0; i < tiles.num_tiles(); ++i) {
    const Tile& tile = tiles.tiles()[i];
    const auto w = weights.first(tiles.WeightBytes(tile));
    const auto s = state.first(tiles.StateBytes(tile));
    const TilePlanes& planes = tiles.PlanesOf(tile);
    const auto floats = [&](TilePlane kind) {
      const int64_t offset = planes.OffsetBytes(planes.Find(kind), tile.num_elems);
      return reinterpret_cast<float*>(s.data() + offset);
    };
    for (int64_t e = 0; e < tile.num_elems; ++e) {
      const auto value = [&](TensorPlane plane) {
        return ValueOf(tile.layer, tile.first_elem + e, plane);
      };
      const float master = value(TensorPlane::kMaster);
      if (tiles.layout() == Layout::kBf16) {
        reinterpret_cast<Bf16*>(w.data())[e] = Split(master).w16;
        reinterpret_cast<int16_t*>(s.data())[e] = Split(master).r16;
      } else if (tiles.layout() == Layout::kFp16) {
        reinterpret_cast<Fp16*>(w.data())[e] = FloatToFp16(master);
        floats(TilePlane::kMaster)[e] = master;
      } else {
        reinterpret_cast<float*>(w.data())[e] = master;
      }
      floats(TilePlane::kM)[e] = value(TensorPlane::kM);
      floats(TilePlane::kV)[e] = value(TensorPlane::kV);
    }
    store.StartWriteWeights(i, w, op);
    ASSERT_TRUE(store.engine().Wait(op).ok());
    store.MarkWeightsWritten(i);
    store.StartWriteState(i, s, op);
    ASSERT_TRUE(store.engine().Wait(op).ok());
    store.MarkStateWritten(i);
  }
  ASSERT_EQ(store.Commit({1, Json::object()}), absl::OkStatus());
}

class TensorStoreLayoutTest : public TensorStoreTest, public testing::WithParamInterface<Layout> {};

TEST_P(TensorStoreLayoutTest, GivesBackEveryPlaneOfEveryTensorExactly) {
  const auto store = MustCreate(GetParam());
  WriteValues(*store);
  for (const TensorSpec& tensor : store->inventory().tensors()) {
    for (const TensorPlane plane : {TensorPlane::kMaster, TensorPlane::kM, TensorPlane::kV}) {
      std::vector<float> values(tensor.num_elems);
      ASSERT_EQ(store->ReadTensor(tensor, plane, 0, values), absl::OkStatus());
      for (int64_t e = 0; e < tensor.num_elems; ++e) {
        ASSERT_EQ(values[e], ValueOf(tensor.layer, tensor.offset_elems + e, plane))
            << tensor.name << " " << e;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TensorStoreLayoutTest,
                         testing::Values(Layout::kBf16, Layout::kFp16, Layout::kFp32),
                         [](const auto& c) { return std::string(NameOf(c.param)); });

TEST_F(TensorStoreTest, GivesBackTheStoredBf16Weights) {
  const auto store = MustCreate(Layout::kBf16);
  WriteValues(*store);
  for (const TensorSpec& tensor : store->inventory().tensors()) {
    std::vector<uint16_t> values(tensor.num_elems);
    ASSERT_EQ(store->ReadTensorW16(tensor, 0, values), absl::OkStatus());
    for (int64_t e = 0; e < tensor.num_elems; ++e) {
      ASSERT_EQ(values[e],
                Split(ValueOf(tensor.layer, tensor.offset_elems + e, TensorPlane::kMaster)).w16);
    }
  }
}

// ---- Errors

TEST_F(TensorStoreTest, IsNotCreatedOverAnother) {
  MakeSteps(1);
  const absl::Status status = Create().status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), HasSubstr(directory_));
  EXPECT_TRUE(HoldsStep(*MustOpen(), 1));
}

TEST_F(TensorStoreTest, IsNotCreatedOverFilesOfOthers) {
  ASSERT_TRUE(MakeDirectories(directory_).ok());
  ASSERT_TRUE(WriteFileAtomically(File("weights.fbs"), "precious").ok());
  EXPECT_EQ(ExitCodeOf(Create().status()), ExitCode::kUsage);
  EXPECT_EQ(*ReadWholeFile(File("weights.fbs"), 100), "precious");
}

// A creation that was killed after any of its files, before its first commit.
TEST_F(TensorStoreTest, ReplacesWhatAKilledCreationLeft) {
  for (const int num_manifests : {0, 1, 2}) {
    MustCreate().reset();
    ASSERT_TRUE(FileExists(File(kCreatingName)));
    for (int i = num_manifests; i < kNumCopies; ++i) {
      ASSERT_EQ(::unlink(File(kManifestNames[i]).c_str()), 0);
    }
    EXPECT_FALSE(MustCreate()->has_commit());
    ASSERT_TRUE(TensorStore::Remove({directory_}).ok());
  }
}

TEST_F(TensorStoreTest, IsNotCreatedOverOneThatLostItsManifests) {
  MakeSteps(1);
  for (const char* name : kManifestNames) ASSERT_EQ(::unlink(File(name).c_str()), 0);
  EXPECT_EQ(ExitCodeOf(Create().status()), ExitCode::kUsage);
  EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
  EXPECT_TRUE(FileExists(File("commit.fbs")) && FileExists(File("weights.fbs")));
}

// The first commit ends a creation, except if its owner does.
TEST_F(TensorStoreTest, LosesTheMarkOfItsCreationWithItsFirstCommit) {
  auto store = MustCreate();
  EXPECT_EQ(LookAtFolder(directory_)->state, StoreState::kHalfMade);
  ASSERT_EQ(WriteStep(*store, 1), absl::OkStatus());
  EXPECT_FALSE(FileExists(File(kCreatingName)));
  EXPECT_EQ(LookAtFolder(directory_)->state, StoreState::kThere);
}

TEST_F(TensorStoreTest, RemovalGivesBackItsSpaceAndItsFolder) {
  MakeSteps(2);
  const auto freed_bytes = TensorStore::Remove({directory_});
  ASSERT_TRUE(freed_bytes.ok()) << freed_bytes.status();
  EXPECT_EQ(*freed_bytes,
            Total(TensorStore::DiskBytes(TileMap(SmallInventory(), Layout::kBf16, kSmallTileElems),
                                         kMostSlots, {})));
  EXPECT_FALSE(FileExists(directory_));
}

TEST_F(TensorStoreTest, RemovalLeavesWhatNoStoreMade) {
  MakeSteps(1);
  ASSERT_TRUE(WriteFileAtomically(File("thesis.txt"), "precious").ok());
  ASSERT_TRUE(TensorStore::Remove({directory_}).ok());
  EXPECT_EQ(*ReadWholeFile(File("thesis.txt"), 100), "precious");
  EXPECT_FALSE(FileExists(File("manifest.json")));
}

// A folder in a file's place stands for any file that the system does not let go.
TEST_F(TensorStoreTest, RemovalThatFailsIsSaidAndCanBeDoneLater) {
  MakeSteps(1);
  ASSERT_EQ(::unlink(File("state.fbs").c_str()), 0);
  ASSERT_TRUE(MakeDirectories(File("state.fbs")).ok());
  const absl::Status status = TensorStore::Remove({directory_}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("state.fbs"));
  EXPECT_TRUE(FileExists(File("lock")));
  ASSERT_EQ(::rmdir(File("state.fbs").c_str()), 0);
  EXPECT_TRUE(TensorStore::Remove({directory_}).ok());
  EXPECT_FALSE(FileExists(directory_));
}

TEST_F(TensorStoreTest, RemovalOfAFolderWithoutAStoreIsRefused) {
  ASSERT_TRUE(MakeDirectories(directory_).ok());
  ASSERT_TRUE(WriteFileAtomically(File("weights.fbs"), "precious").ok());
  EXPECT_EQ(ExitCodeOf(TensorStore::Remove({directory_}).status()), ExitCode::kBadInput);
  EXPECT_EQ(*ReadWholeFile(File("weights.fbs"), 100), "precious");
}

TEST_F(TensorStoreTest, RemovalWhileInUseIsRefused) {
  const auto store = MustCreate();
  EXPECT_EQ(ExitCodeOf(TensorStore::Remove({directory_}).status()), ExitCode::kEnvironment);
  EXPECT_TRUE(FileExists(File("manifest.json")));
}

TEST_F(TensorStoreTest, AFolderWithoutAStoreIsBadInput) {
  const absl::Status status = OpenError();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), HasSubstr("holds no store"));
}

TEST_F(TensorStoreTest, ATruncatedOrMissingFileIsNamed) {
  MakeSteps(1);
  for (const char* name : {"weights.fbs", "state.fbs"}) {
    const int64_t size_bytes = *FileSize(File(name));
    ASSERT_EQ(::truncate(File(name).c_str(), size_bytes - 4096), 0);
    EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
    EXPECT_THAT(MessageOf(OpenError()), HasSubstr(File(name)));
    ASSERT_EQ(::truncate(File(name).c_str(), size_bytes), 0);
  }
  ASSERT_EQ(::unlink(File("state.fbs").c_str()), 0);
  EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(OpenError()), HasSubstr("missing"));
}

TEST_F(TensorStoreTest, TwoDamagedManifestsAreNamed) {
  MakeSteps(1);
  for (const char* name : kManifestNames) Poke(name, 100, "\x01");
  EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(OpenError()), HasSubstr(File("manifest.json")));
}

TEST_F(TensorStoreTest, OneDamagedCommitRecordIsRepairedFromTheOther) {
  MakeSteps(2);
  for (const char* name : kCommitNames) {
    Poke(name, 1000, "damage");
    EXPECT_TRUE(HoldsStep(*MustOpen(), 2));
  }
  EXPECT_TRUE(HoldsStep(*MustOpen(), 2)) << "the first damage was repaired before the second";
}

TEST_F(TensorStoreTest, TwoDamagedCommitRecordsAreCorruption) {
  MakeSteps(2);
  for (const char* name : kCommitNames) Poke(name, 1000, "damage");
  EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(OpenError()), HasSubstr(File("commit.fbs")));
}

TEST_F(TensorStoreTest, ACommitRecordOfAnotherStoreIsCorruption) {
  MakeSteps(1);
  const std::string foreign = *ReadWholeFile(File("commit.fbs"), 8192);
  ASSERT_TRUE(RemoveTree(directory_).ok());
  MakeSteps(1);
  Poke("commit.fbs", 0, foreign);
  EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(OpenError()), HasSubstr("another store"));
}

TEST_F(TensorStoreTest, DoesNotFollowSymbolicLinks) {
  MakeSteps(1);
  ASSERT_EQ(::rename(File("state.fbs").c_str(), folder_.Path("moved").c_str()), 0);
  ASSERT_EQ(::symlink(folder_.Path("moved").c_str(), File("state.fbs").c_str()), 0);
  EXPECT_THAT(MessageOf(OpenError()), HasSubstr("symbolic link"));
}

TEST_F(TensorStoreTest, AnotherProcessIsNamedByItsPid) {
  engine_.reset();  // the child starts its own; threads do not survive a fork
  int ready[2];
  int done[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(done), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(done[1]);
    {
      engine_ = CreateThreadsEngine({.num_threads = 1});
      const auto store = Create();
      const char byte = store.ok() ? 'y' : 'n';
      if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
      char end = 0;
      if (::read(done[0], &end, 1) < 0) ::_exit(1);
    }
    engine_.reset();
    ::_exit(0);
  }
  ::close(done[0]);
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  engine_ = CreateThreadsEngine({.num_threads = 1});
  const absl::Status status = OpenError();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(status), HasSubstr("process " + std::to_string(child)));
  ::close(done[1]);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(OpenError(), absl::OkStatus());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(TensorStoreTest, AFullDiskIsFoundBeforeAnythingIsMade) {
  ASSERT_TRUE(MakeDirectories(directory_).ok());
  if (::mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=200k") != 0) {
    GTEST_SKIP() << "mounting a small file system needs root";
  }
  const absl::Status status = Create().status();
  const bool left_nothing = std::filesystem::is_empty(directory_);
  ASSERT_EQ(::umount(directory_.c_str()), 0);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(status), HasSubstr("needs"));
  EXPECT_THAT(MessageOf(status), HasSubstr("free"));
  EXPECT_TRUE(left_nothing);
}

// 'cp --sparse=always', 'rsync -S' and 'tar -S' leave out what is zero, any of them what was never
// written.
TEST_F(TensorStoreTest, WhatACopyLeftOutIsReservedAgain) {
  ASSERT_EQ(WriteStep(*MustCreate(), 1), absl::OkStatus());  // slot B was never written
  const int64_t weights_bytes = *FileSize(File("weights.fbs"));
  for (const char* name : {"weights.fbs", "state.fbs", "seals.fbs"}) {
    const std::string whole = *ReadWholeFile(File(name), 1 << 24);
    ASSERT_TRUE(::unlink(File(name).c_str()) == 0);
    const auto copy = OpenFile(File(name), O_WRONLY | O_CREAT);
    ASSERT_TRUE(copy.ok()) << copy.status();
    const auto half = std::as_bytes(std::span(whole)).first(whole.size() / 2);
    ASSERT_TRUE(PwriteAll(copy->get(), half, 0, name).ok());
    ASSERT_EQ(::ftruncate(copy->get(), static_cast<off_t>(whole.size())), 0);
  }
  if (*SpaceOfFile(File("weights.fbs")) >= weights_bytes)
    GTEST_SKIP() << "files have no holes here";
  const auto store = MustOpen();
  EXPECT_EQ(store->CheckSpace(), absl::OkStatus());
  EXPECT_LT(*SpaceOfFile(File("weights.fbs")), weights_bytes) << "checking changes nothing";
  ASSERT_EQ(store->ReserveSpace(), absl::OkStatus());
  for (const char* name : {"weights.fbs", "state.fbs", "seals.fbs", "commit.fbs"}) {
    EXPECT_GE(*SpaceOfFile(File(name)), *FileSize(File(name))) << name;
  }
  EXPECT_TRUE(HoldsStep(*store, 1));
  ASSERT_EQ(WriteStep(*store, 2), absl::OkStatus());
  EXPECT_TRUE(HoldsStep(*store, 2));
}

TEST_F(TensorStoreTest, TrainerStateThatIsTooLongIsRefusedAndHarmsNothing) {
  MakeSteps(1);
  const auto store = MustOpen();
  Scratch scratch(store->tiles().max_state_bytes());
  IoOp op;
  for (int i = 0; i < store->tiles().num_tiles(); ++i) {
    const Tile& tile = store->tiles().tiles()[i];
    store->StartWriteWeights(i, scratch.first(store->tiles().WeightBytes(tile)), op);
    ASSERT_TRUE(engine_->Wait(op).ok());
    store->MarkWeightsWritten(i);
    store->StartWriteState(i, scratch.first(store->tiles().StateBytes(tile)), op);
    ASSERT_TRUE(engine_->Wait(op).ok());
    store->MarkStateWritten(i);
  }
  const absl::Status status = store->Commit({2, Json(std::string(4000, 'x'))});
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), HasSubstr("3072"));
  EXPECT_EQ(store->committed().step, 1);
  EXPECT_EQ(store->Commit({2, Json::object()}), absl::OkStatus());
}

TEST_F(TensorStoreTest, AfterAFailedFlushItTakesNoCommit) {
  MakeSteps(1);
  FaultPlan plan;
  // Opening reads two records and the checksums twice, and writes and flushes both records; a step
  // writes twice per tile, and the checksums twice; then the first flush fails.
  plan.fail_call = 8 + 2 * 10 + 2;
  FaultyDisk disk(plan);
  const auto faulty = CreateThreadsEngine({.num_threads = 1}, &disk);
  auto store = TensorStore::Open({directory_}, faulty.get());
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Status first = WriteStep(**store, 2);
  EXPECT_EQ(ExitCodeOf(first), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(first), HasSubstr("weights.fbs"));
  const absl::Status second = (*store)->Commit({2, Json::object()});
  EXPECT_EQ(ExitCodeOf(second), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(second), HasSubstr("takes no commit any more"));
  EXPECT_EQ((*store)->committed().step, 1);
  store->reset();
  EXPECT_TRUE(HoldsStep(*MustOpen(), 1));
}

using TensorStoreDeathTest = TensorStoreTest;

TEST_F(TensorStoreDeathTest, WritingATileTwiceInOneStepIsABug) {
  const auto store = MustCreate();
  Scratch scratch(store->tiles().max_state_bytes());
  const auto bytes = scratch.first(store->tiles().WeightBytes(store->tiles().tiles()[0]));
  IoOp op;
  store->StartWriteWeights(0, bytes, op);
  ASSERT_TRUE(engine_->Wait(op).ok());
  store->MarkWeightsWritten(0);
  EXPECT_DEATH(store->StartWriteWeights(0, bytes, op), "internal error");
}

TEST_F(TensorStoreDeathTest, CommittingAStepThatIsNotWholeIsABug) {
  const auto store = MustCreate();
  EXPECT_DEATH((void)store->Commit({1, Json::object()}), "internal error");
}

}  // namespace
}  // namespace forebay
