// Whatever single block of a store cannot be read or reads as zeros, and whatever single file is
// gone, cut short, too long or another one's: what is there twice is made anew, a repair goes back
// a step only for tiles of the committed step, and what cannot be mended is named and left alone.
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/disk_calls.h"
#include "forebay/base/errors.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/tests/sample.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kBlockBytes = 4096;

// Cannot read one block of one file, until it is written over: drives put another in its place
// then.
class BadBlockDisk : public DiskCalls {
 public:
  BadBlockDisk(std::string path, int64_t block) : path_(std::move(path)), block_(block) {}

  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    const int64_t begin = block_ * kBlockBytes;
    const bool meets_it = path == path_ && offset_bytes < begin + kBlockBytes &&
                          offset_bytes + std::ssize(buffer) > begin;
    if (meets_it && kind == IoKind::kWrite) is_bad_ = false;
    if (meets_it && is_bad_ && fails_left_ != 0) {
      if (fails_left_ > 0) --fails_left_;
      return -EIO;
    }
    return system_.Transfer(kind, fd, path, buffer, offset_bytes);
  }
  int Flush(int fd, std::string_view path) override { return system_.Flush(fd, path); }
  void FailOnly(int64_t times) { fails_left_ = times; }

 private:
  const std::string path_;
  const int64_t block_;
  SystemDiskCalls system_;
  std::atomic<bool> is_bad_ = true;
  std::atomic<int64_t> fails_left_ = -1;  // -1: always
};

// Step 1 in slot A, step 2 in slot B and committed.
class LostBlocksTest : public StoreFixture {
 protected:
  static constexpr const char* kTwice[] = {"commit.fbs", "copy/commit.fbs", "seals.fbs",
                                           "copy/seals.fbs"};

  void SetUp() override {
    directory_ = in_ram_.Path("swap");  // hundreds of stores are flushed
    {
      auto store = TensorStore::Create({.directories = {directory_}, .tile_elems = kSmallTileElems},
                                       SmallInventory(), engine_.get());
      ASSERT_TRUE(store.ok()) << store.status();
      for (const int64_t step : {1, 2}) ASSERT_EQ(WriteStep(**store, step), absl::OkStatus());
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      if (!entry.is_regular_file()) continue;
      const std::string name = std::filesystem::relative(entry.path(), directory_);
      whole_[name] = *ReadWholeFile(entry.path(), 1 << 24);
    }
    ASSERT_EQ(whole_.size(), 9u);
  }

  void Put(const std::string& name, std::string_view contents) {
    std::filesystem::remove(File(name));
    const auto fd = OpenFile(File(name), O_WRONLY | O_CREAT);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(contents)), 0, name).ok());
  }
  void PutAll() {
    std::filesystem::remove_all(directory_);
    ASSERT_TRUE(MakeDirectories(File(kCopyFolderName)).ok());
    for (const auto& [name, contents] : whole_) Put(name, contents);
  }
  bool IsAsItWas(const std::string& name) const {
    const auto now = ReadWholeFile(File(name), 1 << 24);
    return now.ok() && *now == whole_.at(name);
  }
  static bool IsOfTiles(const std::string& name) {
    return name == kWeightsName || name == kStateName;
  }
  // Whether a block holds something of the committed step's tiles.
  bool IsCommittedTile(const std::string& name, int64_t block) const {
    return IsOfTiles(name) &&
           block * kBlockBytes >= static_cast<int64_t>(whole_.at(name).size()) / 2;
  }
  absl::StatusOr<RepairReport> Repair(Engine* engine) {
    MemoryBudget budget(0);
    return TensorStore::Repair({directory_}, engine, "", &budget, {});
  }

  // As `engine` finds it: nothing is lost, or a repair goes back from step 2, which is damaged.
  void ExpectNothingIsLost(Engine* engine) {
    auto store = TensorStore::Open({directory_}, engine);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE(HoldsStep(**store, 2));
    ASSERT_EQ(WriteStep(**store, 3), absl::OkStatus());
    EXPECT_TRUE(HoldsStep(**store, 3));
  }
  void ExpectARepairGoesBack(Engine* engine, const std::string& name) {
    {
      auto store = TensorStore::Open({directory_}, engine);
      ASSERT_TRUE(store.ok()) << store.status();
      MemoryBudget budget(0);
      std::vector<TileDamage> damaged;
      ASSERT_EQ((*store)->Scrub(&budget, {}, damaged), absl::OkStatus());
      ASSERT_FALSE(damaged.empty());
      EXPECT_EQ(damaged.front().file, File(name));
    }
    const auto report = Repair(engine);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->step_before, 2);
    EXPECT_EQ(report->step, 1);
    auto store = TensorStore::Open({directory_}, engine);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE(HoldsStep(**store, 1));
  }

  const TemporaryFolder in_ram_{std::filesystem::is_directory("/dev/shm")
                                    ? std::filesystem::path("/dev/shm")
                                    : std::filesystem::temp_directory_path()};
  std::map<std::string, std::string> whole_;
};

TEST_F(LostBlocksTest, ABlockThatCannotBeReadCostsNothingButWhatWasThereOnce) {
  int64_t num_blocks = 0;
  const Sample sample(1, 8);
  for (const auto& [name, contents] : whole_) {
    if (!name.ends_with(".fbs")) continue;
    for (int64_t block = 0; block < std::ssize(contents) / kBlockBytes; ++block) {
      if (!sample.Has(num_blocks++)) continue;
      SCOPED_TRACE(fmt::format("{}, block {}", name, block));
      ASSERT_NO_FATAL_FAILURE(PutAll());
      BadBlockDisk disk(File(name), block);
      const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
      if (IsCommittedTile(name, block)) {
        ASSERT_NO_FATAL_FAILURE(ExpectARepairGoesBack(engine.get(), name));
      } else {
        ASSERT_NO_FATAL_FAILURE(ExpectNothingIsLost(engine.get()));
      }
    }
  }
  EXPECT_GT(num_blocks, 150);
}

TEST_F(LostBlocksTest, ABlockOfZerosCostsNothingButWhatWasThereOnce) {
  int64_t num_blocks = 0;
  const Sample sample(1, 8);
  for (const auto& [name, contents] : whole_) {
    for (size_t at = 0; at < contents.size(); at += kBlockBytes) {
      if (!sample.Has(num_blocks++)) continue;
      std::string zeroed = contents;
      const size_t size = std::min<size_t>(kBlockBytes, contents.size() - at);
      zeroed.replace(at, size, size, '\0');
      if (zeroed == contents) continue;
      SCOPED_TRACE(fmt::format("{}, block {}", name, at / kBlockBytes));
      ASSERT_NO_FATAL_FAILURE(PutAll());
      Put(name, zeroed);
      if (IsCommittedTile(name, static_cast<int64_t>(at / kBlockBytes))) {
        ASSERT_NO_FATAL_FAILURE(ExpectARepairGoesBack(engine_.get(), name));
      } else {
        ASSERT_NO_FATAL_FAILURE(ExpectNothingIsLost(engine_.get()));
      }
    }
  }
}

TEST_F(LostBlocksTest, AReadThatFailsOnceCostsNoStep) {
  const auto last_block = static_cast<int64_t>(whole_.at(kStateName).size()) / kBlockBytes - 1;
  BadBlockDisk disk(File(kStateName), last_block);
  disk.FailOnly(1);
  const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
  const auto report = Repair(engine.get());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->step, 2);
  EXPECT_FALSE(report->changed);
}

TEST_F(LostBlocksTest, AFileThatIsThereTwiceIsMadeAnewFromItsCopy) {
  for (const std::string name : kTwice) {
    for (const char* how : {"gone", "empty", "short", "long"}) {
      for (const bool repair : {false, true}) {
        SCOPED_TRACE(name + ", " + how + (repair ? ", repair" : ""));
        ASSERT_NO_FATAL_FAILURE(PutAll());
        const std::string& contents = whole_.at(name);
        if (std::string_view(how) == "gone") std::filesystem::remove(File(name));
        if (std::string_view(how) == "empty") Put(name, "");
        if (std::string_view(how) == "short") Put(name, contents.substr(kBlockBytes));
        if (std::string_view(how) == "long") Put(name, contents + std::string(kBlockBytes, 'x'));
        if (repair) {
          const auto report = Repair(engine_.get());
          ASSERT_TRUE(report.ok()) << report.status();
          EXPECT_FALSE(report->changed);
          EXPECT_THAT(report->notes, Contains(HasSubstr(File(name))));
        } else {
          EXPECT_THAT(MustOpen()->notes(), Contains(HasSubstr(File(name))));
        }
        EXPECT_TRUE(IsAsItWas(name));
        EXPECT_THAT(MustOpen()->notes(), IsEmpty());
        EXPECT_TRUE(HoldsStep(*MustOpen(), 2));
      }
    }
  }
}

// A slot that is whole in either copy stays: neither looking nor a repair takes it away.
TEST_F(LostBlocksTest, OfTwoCopiesOfAWrongLengthTheWholeSlotIsRepaired) {
  for (const bool longer : {false, true}) {
    SCOPED_TRACE(longer);
    ASSERT_NO_FATAL_FAILURE(PutAll());
    const std::string& contents = whole_.at("seals.fbs");
    for (const std::string name : kSealsNames) {
      Put(name, longer ? contents + "more" : contents.substr(0, contents.size() / 2));
    }
    EXPECT_EQ(ExitCodeOf(OpenError()), ExitCode::kCorrupt);
    const auto report = Repair(engine_.get());
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->step, longer ? 2 : 1);
    EXPECT_TRUE(HoldsStep(*MustOpen(), report->step));
  }
}

TEST_F(LostBlocksTest, AFileThatIsMadeAnewHasBothSlotsAgain) {
  for (const std::string name : kSealsNames) {
    ASSERT_NO_FATAL_FAILURE(PutAll());
    std::filesystem::remove(File(name));
    MustOpen();
    EXPECT_TRUE(IsAsItWas(name)) << name;
  }
}

TEST_F(LostBlocksTest, OneForgedRecordBesideATrueOneIsRepaired) {
  for (const std::string name : kCommitNames) {
    for (const bool is_text : {false, true}) {
      SCOPED_TRACE(name);
      ASSERT_NO_FATAL_FAILURE(PutAll());
      std::string contents = whole_.at(name);
      const auto bytes = std::as_writable_bytes(std::span(contents)).first(kCommitRecordBytes);
      CommitRecord record = DecodeCommitRecord(bytes, "r")->record;
      if (is_text) record.trainer = "{";
      if (!is_text) record.manifest_hash ^= 1;
      EncodeCommitRecord(record, bytes);
      Put(name, contents);
      const auto report = Repair(engine_.get());
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->step, 2);
      EXPECT_TRUE(HoldsStep(*MustOpen(), 2));
      EXPECT_TRUE(IsAsItWas(name));
    }
  }
}

TEST_F(LostBlocksTest, AManifestIsMadeAnewFromItsCopy) {
  for (const std::string name : kManifestNames) {
    for (const char* how : {"gone", "empty", "short", "long", "foreign"}) {
      SCOPED_TRACE(name + ", " + how);
      ASSERT_NO_FATAL_FAILURE(PutAll());
      const std::string& contents = whole_.at(name);
      if (std::string_view(how) == "gone") std::filesystem::remove(File(name));
      if (std::string_view(how) == "empty") Put(name, "");
      if (std::string_view(how) == "short") Put(name, contents.substr(100));
      if (std::string_view(how) == "long") Put(name, contents + contents);
      if (std::string_view(how) == "foreign") {
        // Whole, with a checksum that fits, and of the same store: shapes that somebody turned.
        auto manifest = *DecodeManifest(contents, name);
        Inventory turned;
        for (const LayerSpec& layer : manifest.inventory.layers()) {
          turned.BeginLayer(layer.name);
          for (int i = 0; i < layer.num_tensors; ++i) {
            const TensorSpec& tensor = manifest.inventory.tensors()[layer.first_tensor + i];
            Shape shape(tensor.shape.rbegin(), tensor.shape.rend());
            turned.Add(tensor.name, std::move(shape), tensor.role, tensor.decay);
          }
        }
        manifest.inventory = turned;
        Put(name, EncodeManifest(manifest));
      }
      EXPECT_THAT(MustOpen()->notes(), Contains(HasSubstr(File(name))));
      for (const std::string each : kManifestNames) EXPECT_TRUE(IsAsItWas(each)) << each;
      EXPECT_TRUE(HoldsStep(*MustOpen(), 2));
    }
  }
}

TEST_F(LostBlocksTest, AFolderOfCopiesThatIsGoneIsMadeAnew) {
  std::filesystem::remove_all(File(kCopyFolderName));
  EXPECT_TRUE(HoldsStep(*MustOpen(), 2));
  for (const std::string name : {"copy/manifest.json", "copy/commit.fbs"}) {
    EXPECT_TRUE(IsAsItWas(name)) << name;
  }
  // And the other way round: all of the first ones.
  for (const char* name : {"manifest.json", "commit.fbs", "seals.fbs"}) {
    std::filesystem::remove(File(name));
  }
  EXPECT_TRUE(HoldsStep(*MustOpen(), 2));
  EXPECT_TRUE(IsAsItWas("manifest.json") && IsAsItWas("commit.fbs"));
}

TEST_F(LostBlocksTest, AFileOfTilesThatLostItsEndIsRepairedAsFarAsASlotIsWhole) {
  for (const char* name : {kWeightsName, kStateName}) {
    const std::string& contents = whole_.at(name);
    for (const int64_t change : {-kBlockBytes, -int64_t{1}, kBlockBytes}) {
      SCOPED_TRACE(fmt::format("{} {:+}", name, change));
      ASSERT_NO_FATAL_FAILURE(PutAll());
      std::filesystem::resize_file(File(name), contents.size() + change);
      const absl::Status status = OpenError();
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
      EXPECT_THAT(MessageOf(status), AllOf(HasSubstr(File(name)), HasSubstr("--repair")));
      const auto report = Repair(engine_.get());
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->step, change > 0 ? 2 : 1);
      EXPECT_THAT(report->notes, Contains(HasSubstr(File(name))));
      EXPECT_EQ(*FileSize(File(name)), std::ssize(contents));
      EXPECT_TRUE(HoldsStep(*MustOpen(), report->step));
    }
    for (const bool gone : {false, true}) {
      ASSERT_NO_FATAL_FAILURE(PutAll());
      if (gone) std::filesystem::remove(File(name));
      if (!gone) std::filesystem::resize_file(File(name), 0);
      const absl::Status status = Repair(engine_.get()).status();
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
      EXPECT_THAT(MessageOf(status), AnyOf(HasSubstr(File(name)), HasSubstr("no step is whole")));
    }
  }
}

// Neither looking nor a repair that fails makes it worse: exchanged back, all is as it was.
TEST_F(LostBlocksTest, FilesThatHaveEachOthersNamesLoseNothing) {
  std::vector<std::string> names;
  for (const auto& entry : whole_) names.push_back(entry.first);
  for (size_t i = 0; i < names.size(); ++i) {
    for (size_t j = i + 1; j < names.size(); ++j) {
      SCOPED_TRACE(names[i] + " and " + names[j]);
      ASSERT_NO_FATAL_FAILURE(PutAll());
      const auto exchange = [&] {
        std::filesystem::rename(File(names[i]), File("between"));
        std::filesystem::rename(File(names[j]), File(names[i]));
        std::filesystem::rename(File("between"), File(names[j]));
      };
      exchange();
      const absl::Status opened = OpenError();
      if (opened.ok()) {
        EXPECT_TRUE(HoldsStep(*MustOpen(), 2));
        continue;
      }
      EXPECT_EQ(ExitCodeOf(opened), ExitCode::kCorrupt) << opened;
      EXPECT_THAT(MessageOf(opened), HasSubstr(directory_));
      if (Repair(engine_.get()).ok()) {
        EXPECT_TRUE(HoldsStep(*MustOpen(), 2));
        continue;
      }
      exchange();
      EXPECT_TRUE(HoldsStep(*MustOpen(), 2));
    }
  }
}

TEST_F(LostBlocksTest, AFileThatGoesWhileTheStoreIsInUseEndsIt) {
  for (const std::string name : {"weights.fbs", "seals.fbs", "copy/commit.fbs", "state.fbs"}) {
    for (const bool replaced : {false, true}) {
      SCOPED_TRACE(name + (replaced ? " is replaced" : " is removed"));
      ASSERT_NO_FATAL_FAILURE(PutAll());
      {
        const auto store = MustOpen();
        ASSERT_EQ(store->CheckFiles(), absl::OkStatus());
        std::filesystem::rename(File(name), File("kept"));
        if (replaced) std::filesystem::copy_file(File("kept"), File(name));
        const absl::Status status = WriteStep(*store, 3);
        EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
        EXPECT_THAT(MessageOf(status),
                    AllOf(HasSubstr(File(name)), HasSubstr(replaced ? "replaced" : "removed")));
        EXPECT_EQ(ExitCodeOf(store->CheckFiles()), ExitCode::kStorage);
        EXPECT_EQ(store->committed().step, 2);
      }
      std::filesystem::remove(File("kept"));
      // A store whose lost file has a copy is whole at step 2: no record of step 3 was written.
      if (!IsOfTiles(name) || replaced) {
        EXPECT_EQ(MustOpen()->committed().step, 2);
      }
    }
  }
}

TEST_F(LostBlocksTest, AFileWithSeveralNamesIsNotedOnce) {
  std::filesystem::create_hard_link(File("state.fbs"), in_ram_.Path("link"));
  const auto store = MustOpen();
  EXPECT_THAT(store->notes(), testing::ElementsAre(HasSubstr("hard links")));
  std::filesystem::create_hard_link(File("weights.fbs"), in_ram_.Path("other"));
  ASSERT_EQ(WriteStep(*store, 3), absl::OkStatus());
  ASSERT_EQ(WriteStep(*store, 4), absl::OkStatus());
  EXPECT_EQ(store->notes().size(), 2u);
}

TEST_F(LostBlocksTest, WhatIsInThePlaceOfTheLockIsNotWrittenTo) {
  const std::string precious(100'000, 'p');
  Put("lock", precious);
  const absl::Status status = OpenError();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr(File("lock")));
  EXPECT_EQ(*ReadWholeFile(File("lock"), 1 << 20), precious);
}

TEST_F(LostBlocksTest, AManifestOfMoreTilesThanTheFilesHoldIsRefusedBeforeMemoryIsMadeForThem) {
  auto manifest = *DecodeManifest(whole_.at("manifest.json"), "m");
  manifest.tile_elems = 2048;
  manifest.inventory = Inventory();
  manifest.inventory.BeginLayer("huge");
  manifest.inventory.Add("huge", {int64_t{1} << 20, int64_t{1} << 21}, 0, true);
  for (const std::string name : kManifestNames) Put(name, EncodeManifest(manifest));
  const absl::Status status = OpenError();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("weights.fbs"));
}

TEST_F(LostBlocksTest, ARecordWithValuesThatNoStoreWritesCountsAsDamaged) {
  const auto forge = [&](const auto& change) {
    auto copy = *DecodeCommitRecord(
        std::as_bytes(std::span(whole_.at("commit.fbs"))).first(kCommitRecordBytes), "r");
    change(copy.record);
    std::vector<std::byte> bytes(static_cast<size_t>(kCommitRecordBytes));
    EncodeCommitRecord(copy.record, bytes);
    for (const std::string name : kCommitNames) {
      std::string contents = whole_.at("commit.fbs");
      std::memcpy(contents.data(), bytes.data(), bytes.size());
      Put(name, contents);
    }
    return OpenError();
  };
  const std::pair<const char*, std::function<void(CommitRecord&)>> forgeries[] = {
      {"negative step", [](CommitRecord& r) { r.step = -1; }},
      {"huge step", [](CommitRecord& r) { r.step = int64_t{1} << 62; }},
      {"no sequence", [](CommitRecord& r) { r.sequence = 0; }},
      {"huge sequence", [](CommitRecord& r) { r.sequence = ~uint64_t{0}; }},
      {"last sequence", [](CommitRecord& r) { r.sequence = uint64_t{1} << 60; }},
      {"behind the last", [](CommitRecord& r) { r.sequence = (uint64_t{1} << 60) + 1; }},
      {"slot", [](CommitRecord& r) { r.slot = 7; }},
      {"another manifest", [](CommitRecord& r) { r.manifest_hash ^= 1; }},
      {"another root", [](CommitRecord& r) { r.seals_root[0] ^= 1; }},
      {"no JSON", [](CommitRecord& r) { r.trainer = "{"; }},
  };
  for (const auto& [what, change] : forgeries) {
    SCOPED_TRACE(what);
    ASSERT_NO_FATAL_FAILURE(PutAll());
    const absl::Status status = forge(change);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
    // The checksums have the true record; but tiles that a record does not speak of may have been
    // given up.
    const auto report = Repair(engine_.get());
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->step, std::string_view(what) == "another root" ? 1 : 2);
    EXPECT_TRUE(HoldsStep(*MustOpen(), report->step));
  }
}

}  // namespace
}  // namespace forebay
