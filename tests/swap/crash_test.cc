// Crashes at every moment of a small run. A recorded run gives the writes and flushes that reached
// the disk; the legal states of the disk at every point are rebuilt (writes without a later flush
// may be missing or torn: every subset of few writes, samples of more), and what opens there must
// be one whole step, and no older than the last one that was promised. A process that is killed
// leaves its unflushed writes to the next one, which reads them; a power cut then loses those of
// both.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/faulty_disk.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/swap/tensor_store.h"
#include "forebay/tests/swap/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kSectorBytes = 512;
constexpr int64_t kNumSteps = 4;
constexpr size_t kWritesForAllSubsets = 4;

// File contents by name.
using Image = std::map<std::string, std::string>;

// "0/weights.fbs": in a folder of the store.
std::string NameOf(const std::filesystem::path& path) {
  return path.parent_path().filename() / path.filename();
}

bool IsCommitFile(const std::string& path) {
  return path.ends_with("/commit.fbs");
}

Image LoadImage(const std::string& directory) {
  Image image;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_directory()) continue;
    image[NameOf(entry.path())] = *ReadWholeFile(entry.path(), 1 << 24);
  }
  return image;
}

// The folders of a store in `directory`.
std::vector<std::string> FoldersIn(const std::string& directory, int num_folders) {
  std::vector<std::string> folders;
  for (int i = 0; i < num_folders; ++i) {
    folders.push_back(JoinPath(directory, std::to_string(i)));
  }
  return folders;
}

void SaveImage(const Image& image, const std::string& directory) {
  for (const auto& [name, contents] : image) {
    const std::string folder = std::filesystem::path(name).parent_path();
    ASSERT_TRUE(MakeDirectories(JoinPath(directory, folder)).ok());
    const auto fd = OpenFile(JoinPath(directory, name), O_WRONLY | O_CREAT | O_TRUNC);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(contents)), 0, name).ok());
  }
}

std::string DigestOf(const Image& image) {
  Xxh3_128 hash;
  for (const auto& [name, contents] : image) {
    hash.Update(name);
    hash.UpdateInt(static_cast<int64_t>(contents.size()));
    hash.Update(contents);
  }
  return hash.Hex();
}

FaultPlan Recording() {
  FaultPlan plan;
  plan.record = true;
  return plan;
}

// A store that a process of its own has open, every write and flush of it on record.
struct RecordedStore {
  explicit RecordedStore(const std::vector<std::string>& folders)
      : store(TensorStore::Open(folders, engine.get())) {}

  FaultyDisk disk{Recording()};
  std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1}, &disk);
  absl::StatusOr<std::unique_ptr<TensorStore>> store;
};

// The first `bytes` of a write.
void Apply(Image& image, const DiskEvent& write, int64_t bytes) {
  std::memcpy(image[NameOf(write.path)].data() + write.offset_bytes, write.data.data(), bytes);
}

// What a crash may do to the writes that no flush has made durable.
enum class Loss { kNone, kAll, kOne, kAllButOne, kTornLast, kRandom };

// The writes of `events` that a flush made durable; the others are returned.
std::vector<size_t> ApplyFlushed(Image& image, std::span<const DiskEvent> events) {
  std::map<std::string, size_t> last_flush;  // by file: the number of events before its end
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].is_flush) last_flush[NameOf(events[i].path)] = i;
  }
  std::vector<size_t> unflushed;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].is_flush) continue;
    const auto flush = last_flush.find(NameOf(events[i].path));
    const bool durable = flush != last_flush.end() && flush->second > i;
    if (durable) {
      Apply(image, events[i], events[i].data.size());
    } else {
      unflushed.push_back(i);
    }
  }
  return unflushed;
}

// The disk after `events`, for every subset of its unflushed writes where they are few; none where
// there are more.
std::vector<Image> SubsetImages(Image image, std::span<const DiskEvent> events) {
  const std::vector<size_t> unflushed = ApplyFlushed(image, events);
  std::vector<Image> images;
  if (unflushed.size() > kWritesForAllSubsets) return images;
  for (unsigned kept = 0; kept < 1U << unflushed.size(); ++kept) {
    Image& subset = images.emplace_back(image);
    for (size_t i = 0; i < unflushed.size(); ++i) {
      const DiskEvent& write = events[unflushed[i]];
      if ((kept >> i & 1U) != 0) Apply(subset, write, static_cast<int64_t>(write.data.size()));
    }
  }
  return images;
}

// The disk after `num_events` of `events`, some unflushed writes lost.
Image CrashImage(Image image, std::span<const DiskEvent> events, Loss loss, uint64_t seed) {
  const std::vector<size_t> unflushed = ApplyFlushed(image, events);
  const CounterRng rng(seed);
  const size_t special = unflushed.empty() ? 0 : unflushed[rng.Below(0, unflushed.size())];
  for (const size_t i : unflushed) {
    const auto bytes = static_cast<int64_t>(events[i].data.size());
    const auto sectors = static_cast<uint64_t>(bytes / kSectorBytes);
    const int64_t torn_bytes = kSectorBytes * static_cast<int64_t>(rng.Below(i + 1, sectors + 1));
    const bool last = i == unflushed.back();
    const int64_t kept_bytes = loss == Loss::kNone        ? bytes
                               : loss == Loss::kAll       ? 0
                               : loss == Loss::kOne       ? (i == special ? 0 : bytes)
                               : loss == Loss::kAllButOne ? (i == special ? bytes : 0)
                               : loss == Loss::kTornLast  ? (last ? torn_bytes : bytes)
                                                          : torn_bytes;
    Apply(image, events[i], kept_bytes);
  }
  return image;
}

// The parameter is the number of folders.
class CrashTest : public testing::TestWithParam<int> {
 protected:
  // Commits step 1, then records steps 2 to kNumSteps.
  void SetUp() override {
    const std::string directory = folder_.Path("recorded");
    const std::vector<std::string> folders = FoldersIn(directory, GetParam());
    Inventory inventory;
    for (int layer = 0; layer < 2; ++layer) {
      inventory.BeginLayer(std::to_string(layer));
      inventory.Add(std::to_string(layer), {3000}, 0, true);
    }
    const auto engine = CreateThreadsEngine({.num_threads = 1});
    {
      auto store = TensorStore::Create({.directories = folders, .tile_elems = 2048}, inventory,
                                       engine.get());
      ASSERT_TRUE(store.ok()) << store.status();
      ASSERT_EQ(WriteStep(**store, 1), absl::OkStatus());
    }
    start_ = LoadImage(directory);
    RecordedStore recorded(folders);
    ASSERT_TRUE(recorded.store.ok()) << recorded.store.status();
    for (int64_t step = 2; step <= kNumSteps; ++step) {
      ASSERT_EQ(WriteStep(**recorded.store, step), absl::OkStatus());
      events_at_commit_.push_back(recorded.disk.events().size());
    }
    events_ = recorded.disk.events();
  }

  // The newest step whose Commit had returned within the first `num_events`.
  int64_t PromisedStep(size_t num_events) const {
    int64_t step = 1;
    for (const size_t events : events_at_commit_) step += events <= num_events ? 1 : 0;
    return step;
  }

  // Folders of a store that hold `image`, the same ones at each call.
  std::vector<std::string> FoldersWith(const Image& image) {
    const std::string directory = crashed_folder_.Path("crashed");
    SaveImage(image, directory);
    return FoldersIn(directory, GetParam());
  }

  // "" when `image` opens as one whole step, no older than `promised`; else what is wrong. The step
  // goes to `recovered`, what opening did to the disk to `repair`.
  std::string Check(const Image& image, int64_t promised, int64_t* recovered = nullptr,
                    std::vector<DiskEvent>* repair = nullptr) {
    RecordedStore opened(FoldersWith(image));
    if (!opened.store.ok()) return MessageOf(opened.store.status());
    TensorStore& store = **opened.store;
    if (repair != nullptr) *repair = opened.disk.events();
    if (!store.has_commit()) return "no step is committed";
    const int64_t step = store.committed().step;
    if (recovered != nullptr) *recovered = step;
    if (step < promised || step > promised + 1) {
      return "promised " + std::to_string(promised) + ", found " + std::to_string(step);
    }
    if (!HoldsStep(store, step)) return "step " + std::to_string(step) + " is mixed with another";
    return "";
  }

  // A process that goes on where another one was killed: what it finds, and its own events up to
  // the commit of one more step.
  struct Resumed {
    int64_t step = 0;
    size_t num_events_of_open = 0;
    std::vector<DiskEvent> events;
  };
  void ResumeAfterKill(std::span<const DiskEvent> left, Resumed& next) {
    RecordedStore resumed(FoldersWith(CrashImage(start_, left, Loss::kNone, 0)));
    ASSERT_TRUE(resumed.store.ok()) << resumed.store.status();
    next.num_events_of_open = resumed.disk.events().size();
    next.step = (*resumed.store)->committed().step;
    ASSERT_EQ(WriteStep(**resumed.store, next.step + 1), absl::OkStatus());
    next.events = resumed.disk.events();
  }

  // Check, for the states of a loop: many losses leave the same disk, which is looked at once.
  std::string CheckOnce(const Image& image, int64_t promised, int64_t* recovered = nullptr) {
    const auto [found, is_new] = checked_.try_emplace({DigestOf(image), promised});
    auto& [problem, step] = found->second;
    if (is_new) problem = Check(image, promised, &step);
    if (recovered != nullptr) *recovered = step;
    return problem;
  }

  // The first crash state, over all points of `events`, that is wrong; "" when none is.
  std::string FirstViolation(const std::vector<DiskEvent>& events,
                             const std::vector<size_t>& events_at_commit) {
    events_at_commit_ = events_at_commit;
    for (size_t num_events = 0; num_events <= events.size(); ++num_events) {
      const std::span<const DiskEvent> seen = std::span(events).first(num_events);
      for (const Loss loss : {Loss::kNone, Loss::kAll, Loss::kOne, Loss::kAllButOne,
                              Loss::kTornLast, Loss::kRandom}) {
        const std::string problem =
            CheckOnce(CrashImage(start_, seen, loss, num_events), PromisedStep(num_events));
        if (problem.empty()) continue;
        return problem + " (after " + std::to_string(num_events) + " events, loss " +
               std::to_string(static_cast<int>(loss)) + ")";
      }
      for (const Image& image : SubsetImages(start_, seen)) {
        const std::string problem = CheckOnce(image, PromisedStep(num_events));
        if (!problem.empty()) {
          return problem + " (after " + std::to_string(num_events) + " events, some writes lost)";
        }
      }
    }
    return "";
  }

  // The first state that is wrong after a kill around one commit, from its first record on, and a
  // power cut at any moment of the process that goes on; "" when none is. `flushes_first`: or as if
  // it had not flushed what it is about to read.
  std::string FirstViolationAfterKills(bool flushes_first) {
    uint64_t seed = 0;
    size_t begin = events_at_commit_[0];
    while (events_[begin].is_flush || !IsCommitFile(events_[begin].path)) ++begin;
    for (size_t killed = begin; killed <= events_at_commit_[1]; ++killed) {
      const std::span<const DiskEvent> left = std::span(events_).first(killed);
      Resumed next;
      ResumeAfterKill(left, next);
      if (testing::Test::HasFailure()) return "the next process did not go on";
      std::vector<DiskEvent> events(left.begin(), left.end());
      size_t done = 0;
      while (!flushes_first && next.events[done].is_flush) ++done;
      for (;; ++done) {
        const int64_t promised = done >= next.num_events_of_open ? next.step : PromisedStep(killed);
        for (const Loss loss : {Loss::kAll, Loss::kOne, Loss::kAllButOne, Loss::kTornLast,
                                Loss::kRandom, Loss::kRandom, Loss::kRandom, Loss::kRandom}) {
          const std::string problem = CheckOnce(CrashImage(start_, events, loss, ++seed), promised);
          if (problem.empty()) continue;
          return problem + " (killed after " + std::to_string(killed) + " events, cut after " +
                 std::to_string(done) + " of the next, loss " +
                 std::to_string(static_cast<int>(loss)) + ")";
        }
        if (done == next.events.size()) break;
        events.push_back(next.events[done]);
      }
    }
    return "";
  }

  std::string FirstViolationOfRepair(const Image& damaged, std::span<const DiskEvent> events,
                                     int64_t step);

  // The states of the disk are many and small; in RAM they take a tenth of the time.
  static std::filesystem::path FolderInRam() {
    return ::access("/dev/shm", W_OK) == 0 ? std::filesystem::path("/dev/shm")
                                           : std::filesystem::temp_directory_path();
  }

  TemporaryFolder folder_;
  TemporaryFolder crashed_folder_{FolderInRam()};
  Image start_;
  std::vector<DiskEvent> events_;
  std::vector<size_t> events_at_commit_;
  // By the state's digest and what was promised: what is wrong, and the step that was found.
  std::map<std::pair<std::string, int64_t>, std::pair<std::string, int64_t>> checked_;
};

TEST_P(CrashTest, AtEveryMomentLeavesOneWholeStep) {
  EXPECT_EQ(FirstViolation(events_, events_at_commit_), "");
}

// The suite must be able to fail: without the flush of the data before the record, some crash mixes
// steps.
TEST_P(CrashTest, WouldBeCaughtIfTheDataWereNotFlushedBeforeTheRecord) {
  std::vector<DiskEvent> events;
  std::vector<size_t> commits;
  for (size_t i = 0; i < events_.size(); ++i) {
    const bool data_flush = events_[i].is_flush && !IsCommitFile(events_[i].path);
    if (!data_flush) events.push_back(events_[i]);
    if (std::ranges::count(events_at_commit_, i + 1) > 0) commits.push_back(events.size());
  }
  EXPECT_NE(FirstViolation(events, commits), "");
}

// Nor without that between the two copies: both may be torn then, or one folder have the record in
// its second copy before another has it at all.
TEST_P(CrashTest, WouldBeCaughtIfTheFirstCopiesWereNotFlushedBeforeTheSecond) {
  std::vector<DiskEvent> events;
  std::vector<size_t> commits;
  std::map<std::string, int> num_flushes;  // by commit file
  bool is_open = false;                    // what opening flushes stays
  for (size_t i = 0; i < events_.size(); ++i) {
    is_open |= !events_[i].is_flush;
    const bool commit_flush = is_open && events_[i].is_flush && IsCommitFile(events_[i].path);
    if (!commit_flush || num_flushes[events_[i].path]++ % 2 == 1) events.push_back(events_[i]);
    if (std::ranges::count(events_at_commit_, i + 1) > 0) commits.push_back(events.size());
  }
  EXPECT_NE(FirstViolation(events, commits), "");
}

TEST_P(CrashTest, ATornRecordInEitherCopyLeavesTheOther) {
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].is_flush || !IsCommitFile(events_[i].path)) continue;
    const Image before = CrashImage(start_, std::span(events_).first(i), Loss::kNone, 0);
    for (int64_t torn = 0; torn <= 4096; torn += kSectorBytes) {
      Image image = before;
      Apply(image, events_[i], torn);
      EXPECT_EQ(Check(image, PromisedStep(i)), "") << "event " << i << " torn at " << torn;
    }
  }
}

TEST_P(CrashTest, DuringTheRepairOfATornRecordLosesNothing) {
  int num_repairs = 0;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].is_flush || !IsCommitFile(events_[i].path)) continue;
    Image image = CrashImage(start_, std::span(events_).first(i), Loss::kNone, 0);
    Apply(image, events_[i], 2048);
    int64_t recovered = 0;
    std::vector<DiskEvent> repair;
    ASSERT_EQ(Check(image, PromisedStep(i), &recovered, &repair), "");
    for (size_t done = 0; done <= repair.size(); ++done) {
      const std::span<const DiskEvent> seen = std::span(repair).first(done);
      std::vector<Image> crashes;
      for (const Loss loss : {Loss::kNone, Loss::kAll, Loss::kOne, Loss::kAllButOne}) {
        crashes.push_back(CrashImage(image, seen, loss, done));
      }
      for (int64_t torn = 0; done > 0 && !repair[done - 1].is_flush && torn <= 4096;
           torn += kSectorBytes) {
        Image& again =
            crashes.emplace_back(CrashImage(image, seen.first(done - 1), Loss::kNone, 0));
        Apply(again, repair[done - 1], torn);
        ++num_repairs;
      }
      for (const Image& again : crashes) {
        int64_t recovered_again = 0;
        EXPECT_EQ(CheckOnce(again, PromisedStep(i), &recovered_again), "");
        EXPECT_EQ(recovered_again, recovered);
      }
    }
  }
  EXPECT_GT(num_repairs, 0);
}

// The image after all steps, with some of it damaged so that `step` is the newest that is whole.
struct DamagedImage {
  std::string what;
  Image image;
  int64_t step = 0;
};

std::vector<DamagedImage> DamagedImages(const Image& whole) {
  std::vector<DamagedImage> images;
  const auto add = [&](std::string what, int64_t step) -> Image& {
    return images.emplace_back(DamagedImage{std::move(what), whole, step}).image;
  };
  // The last step is in slot B.
  for (const std::string name : {"0/weights.fbs", "0/state.fbs"}) {
    std::string& file = add(name, kNumSteps - 1)[name];
    file[file.size() / 2 + 7] ^= 1;
  }
  std::string& tables = add("tables", kNumSteps - 1)["0/seals.fbs"];
  tables[tables.size() / 2 + 7] ^= 1;
  tables[tables.size() / 4 * 3 + 7] ^= 1;
  Image& without_records = add("all records", kNumSteps);
  for (auto& [name, file] : without_records) {
    if (IsCommitFile(name)) file.assign(file.size(), '\0');
  }
  add("records of one folder", kNumSteps)["0/commit.fbs"].assign(8192, '?');
  return images;
}

absl::StatusOr<RepairReport> Repair(const std::vector<std::string>& folders, FaultyDisk& disk) {
  const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
  MemoryBudget budget(0);
  return TensorStore::Repair(folders, engine.get(), "", &budget, {});
}

// The first crash state of a repair, over all points of its `events`, from which another repair
// does not come to `step`; "" when none is.
std::string CrashTest::FirstViolationOfRepair(const Image& damaged,
                                              std::span<const DiskEvent> events, int64_t step) {
  for (size_t done = 0; done <= events.size(); ++done) {
    for (const Loss loss :
         {Loss::kNone, Loss::kAll, Loss::kOne, Loss::kAllButOne, Loss::kTornLast, Loss::kRandom}) {
      const std::vector<std::string> folders =
          FoldersWith(CrashImage(damaged, events.first(done), loss, done));
      const std::string when =
          fmt::format(" (cut after {} events, loss {})", done, static_cast<int>(loss));
      FaultyDisk disk(Recording());
      const auto again = Repair(folders, disk);
      if (!again.ok()) return MessageOf(again.status()) + when;
      RecordedStore opened(folders);
      if (!opened.store.ok()) return MessageOf(opened.store.status()) + when;
      TensorStore& store = **opened.store;
      if (again->step != step || store.committed().step != step || !HoldsStep(store, step)) {
        return fmt::format("step {} instead of {}", store.committed().step, step) + when;
      }
    }
  }
  return "";
}

TEST_P(CrashTest, ARepairThatIsCutShortIsMadeAnewToTheSameStep) {
  for (const DamagedImage& damaged : DamagedImages(CrashImage(start_, events_, Loss::kNone, 0))) {
    SCOPED_TRACE(damaged.what);
    FaultyDisk recorded(Recording());
    const auto report = Repair(FoldersWith(damaged.image), recorded);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_TRUE(report->changed);
    EXPECT_EQ(report->step, damaged.step);
    EXPECT_EQ(FirstViolationOfRepair(damaged.image, recorded.events(), damaged.step), "");
  }
}

// The suite must be able to fail: both copies of a table may be torn when they are not flushed one
// after the other.
TEST_P(CrashTest, WouldBeCaughtIfARepairFlushedNoTableBeforeItsCopy) {
  const DamagedImage damaged = DamagedImages(CrashImage(start_, events_, Loss::kNone, 0)).front();
  FaultyDisk recorded(Recording());
  ASSERT_TRUE(Repair(FoldersWith(damaged.image), recorded).ok());
  std::vector<DiskEvent> events = recorded.events();
  std::erase_if(events, [](const DiskEvent& event) {
    return event.is_flush && event.path.ends_with("/seals.fbs");
  });
  EXPECT_NE(FirstViolationOfRepair(damaged.image, events, damaged.step), "");
}

TEST_P(CrashTest, TheRunGoesOnAfterARecoveryAndMayCrashAgain) {
  // The record of step 3 is in one copy only: the step is real, and the next commit must not tear
  // that copy alone.
  size_t first_copy = 0;
  for (size_t i = events_at_commit_[0]; i < events_at_commit_[1]; ++i) {
    if (!events_[i].is_flush && IsCommitFile(events_[i].path)) {
      first_copy = i;
      break;
    }
  }
  const Image crashed =
      CrashImage(start_, std::span(events_).first(first_copy + 1), Loss::kNone, 0);
  std::vector<DiskEvent> second_run;
  {
    RecordedStore resumed(FoldersWith(crashed));
    ASSERT_TRUE(resumed.store.ok()) << resumed.store.status();
    ASSERT_EQ((*resumed.store)->committed().step, 3);
    ASSERT_EQ(WriteStep(**resumed.store, 4), absl::OkStatus());
    second_run = resumed.disk.events();
  }
  start_ = crashed;
  for (size_t num_events = 0; num_events < second_run.size(); ++num_events) {
    for (const Loss loss : {Loss::kNone, Loss::kAll, Loss::kTornLast, Loss::kRandom}) {
      const Image image =
          CrashImage(start_, std::span(second_run).first(num_events), loss, num_events);
      EXPECT_EQ(CheckOnce(image, 3), "") << num_events;
    }
  }
}

// A kill loses nothing that the next process would not read, and makes nothing durable either: what
// that process builds upon what it read, a power cut must not bring down.
TEST_P(CrashTest, APowerCutAfterAKillLosesNothingThatTheNextProcessFound) {
  EXPECT_EQ(FirstViolationAfterKills(/*flushes_first=*/true), "");
}

TEST_P(CrashTest, WouldBeCaughtIfTheNextProcessDidNotFlushWhatItReads) {
  EXPECT_NE(FirstViolationAfterKills(/*flushes_first=*/false), "");
}

INSTANTIATE_TEST_SUITE_P(Folders, CrashTest, testing::Values(1, 2, 3),
                         [](const auto& c) { return std::to_string(c.param); });

}  // namespace
}  // namespace forebay
