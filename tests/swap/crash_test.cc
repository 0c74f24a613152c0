// Crashes at every moment of a small run. A recorded run gives the writes and flushes that reached
// the disk; every legal state of the disk at every point is rebuilt (writes without a later flush
// may be missing or torn), and what opens there must be one whole step, and no older than the last
// one that was promised.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "forebay/aio/faulty_disk.h"
#include "forebay/base/errors.h"
#include "forebay/swap/tensor_store.h"
#include "forebay/tests/swap/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kSectorBytes = 512;
constexpr int64_t kNumSteps = 4;

// File contents by name.
using Image = std::map<std::string, std::string>;

std::string NameOf(const std::string& path) {
  return std::filesystem::path(path).filename();
}

Image LoadImage(const std::string& directory) {
  Image image;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    image[NameOf(entry.path())] = *ReadWholeFile(entry.path(), 1 << 24);
  }
  return image;
}

void SaveImage(const Image& image, const std::string& directory) {
  ASSERT_TRUE(MakeDirectories(directory).ok());
  for (const auto& [name, contents] : image) {
    const auto fd = OpenFile(JoinPath(directory, name), O_WRONLY | O_CREAT | O_TRUNC);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(contents)), 0, name).ok());
  }
}

// The first `bytes` of a write.
void Apply(Image& image, const DiskEvent& write, int64_t bytes) {
  std::memcpy(image[NameOf(write.path)].data() + write.offset_bytes, write.data.data(), bytes);
}

// What a crash may do to the writes that no flush has made durable.
enum class Loss { kNone, kAll, kOne, kAllButOne, kTornLast, kRandom };

// The disk after `num_events` of `events`, some unflushed writes lost.
Image CrashImage(Image image, std::span<const DiskEvent> events, Loss loss, uint64_t seed) {
  std::map<std::string, size_t> last_flush;  // by file: the number of events before its end
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].is_flush) last_flush[events[i].path] = i;
  }
  std::vector<size_t> unflushed;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].is_flush) continue;
    const auto flush = last_flush.find(events[i].path);
    const bool durable = flush != last_flush.end() && flush->second > i;
    if (durable) {
      Apply(image, events[i], events[i].data.size());
    } else {
      unflushed.push_back(i);
    }
  }
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

class CrashTest : public testing::Test {
 protected:
  // Commits step 1, then records steps 2 to kNumSteps.
  void SetUp() override {
    const std::string directory = folder_.Path("recorded");
    Inventory inventory;
    for (int layer = 0; layer < 2; ++layer) {
      inventory.BeginLayer(std::to_string(layer));
      inventory.Add(std::to_string(layer), {3000}, 0, true);
    }
    const auto engine = CreateThreadsEngine({.num_threads = 1});
    {
      auto store = TensorStore::Create({.directory = directory, .tile_elems = 2048}, inventory,
                                       engine.get());
      ASSERT_TRUE(store.ok()) << store.status();
      ASSERT_EQ(WriteStep(**store, 1), absl::OkStatus());
    }
    start_ = LoadImage(directory);
    FaultPlan plan;
    plan.record = true;
    FaultyDisk disk(plan);
    const auto recorder = CreateThreadsEngine({.num_threads = 1}, &disk);
    auto store = TensorStore::Open(directory, recorder.get());
    ASSERT_TRUE(store.ok()) << store.status();
    for (int64_t step = 2; step <= kNumSteps; ++step) {
      ASSERT_EQ(WriteStep(**store, step), absl::OkStatus());
      events_at_commit_.push_back(disk.events().size());
    }
    events_ = disk.events();
  }

  // The newest step whose Commit had returned within the first `num_events`.
  int64_t PromisedStep(size_t num_events) const {
    int64_t step = 1;
    for (const size_t events : events_at_commit_) step += events <= num_events ? 1 : 0;
    return step;
  }

  // "" when `image` opens as one whole step, no older than `promised`; else what is wrong. The step
  // goes to `recovered`, what opening did to the disk to `repair`.
  std::string Check(const Image& image, int64_t promised, int64_t* recovered = nullptr,
                    std::vector<DiskEvent>* repair = nullptr) {
    const std::string directory = crashed_folder_.Path("crashed");
    SaveImage(image, directory);
    FaultPlan plan;
    plan.record = true;
    FaultyDisk disk(plan);
    const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
    auto store = TensorStore::Open(directory, engine.get());
    if (!store.ok()) return MessageOf(store.status());
    if (repair != nullptr) *repair = disk.events();
    if (!(*store)->has_commit()) return "no step is committed";
    const int64_t step = (*store)->committed().step;
    if (recovered != nullptr) *recovered = step;
    if (step < promised || step > promised + 1) {
      return "promised " + std::to_string(promised) + ", found " + std::to_string(step);
    }
    if (!HoldsStep(**store, step)) return "step " + std::to_string(step) + " is mixed with another";
    return "";
  }

  // The number of crash states that are wrong, over all points of `events`.
  int CountViolations(const std::vector<DiskEvent>& events,
                      const std::vector<size_t>& events_at_commit) {
    int violations = 0;
    events_at_commit_ = events_at_commit;
    for (size_t num_events = 0; num_events <= events.size(); ++num_events) {
      const std::span<const DiskEvent> seen = std::span(events).first(num_events);
      for (const Loss loss : {Loss::kNone, Loss::kAll, Loss::kOne, Loss::kAllButOne,
                              Loss::kTornLast, Loss::kRandom}) {
        const std::string problem =
            Check(CrashImage(start_, seen, loss, num_events), PromisedStep(num_events));
        if (!problem.empty()) {
          ++violations;
          last_problem_ = problem + " (after " + std::to_string(num_events) + " events, loss " +
                          std::to_string(static_cast<int>(loss)) + ")";
        }
      }
    }
    return violations;
  }

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
  std::string last_problem_;
};

TEST_F(CrashTest, AtEveryMomentLeavesOneWholeStep) {
  EXPECT_EQ(CountViolations(events_, events_at_commit_), 0) << last_problem_;
}

// The suite must be able to fail: without the flush of the data before the record, some crash mixes
// steps.
TEST_F(CrashTest, WouldBeCaughtIfTheDataWereNotFlushedBeforeTheRecord) {
  std::vector<DiskEvent> events;
  std::vector<size_t> commits;
  for (size_t i = 0; i < events_.size(); ++i) {
    const bool data_flush = events_[i].is_flush && NameOf(events_[i].path) != "commit.fbs";
    if (!data_flush) events.push_back(events_[i]);
    if (std::ranges::count(events_at_commit_, i + 1) > 0) commits.push_back(events.size());
  }
  EXPECT_GT(CountViolations(events, commits), 0);
}

TEST_F(CrashTest, ATornRecordInEitherCopyLeavesTheOther) {
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].is_flush || NameOf(events_[i].path) != "commit.fbs") continue;
    const Image before = CrashImage(start_, std::span(events_).first(i), Loss::kNone, 0);
    for (int64_t torn = 0; torn <= 4096; torn += kSectorBytes) {
      Image image = before;
      Apply(image, events_[i], torn);
      EXPECT_EQ(Check(image, PromisedStep(i)), "") << "event " << i << " torn at " << torn;
    }
  }
}

TEST_F(CrashTest, DuringTheRepairOfATornRecordLosesNothing) {
  int num_repairs = 0;
  for (size_t i = 0; i < events_.size(); ++i) {
    if (events_[i].is_flush || NameOf(events_[i].path) != "commit.fbs") continue;
    Image image = CrashImage(start_, std::span(events_).first(i), Loss::kNone, 0);
    Apply(image, events_[i], 2048);
    int64_t recovered = 0;
    std::vector<DiskEvent> repair;
    ASSERT_EQ(Check(image, PromisedStep(i), &recovered, &repair), "");
    for (const DiskEvent& event : repair) {
      if (event.is_flush) continue;
      ++num_repairs;
      for (int64_t torn = 0; torn <= 4096; torn += kSectorBytes) {
        Image again = image;
        Apply(again, event, torn);
        int64_t recovered_again = 0;
        EXPECT_EQ(Check(again, PromisedStep(i), &recovered_again), "");
        EXPECT_EQ(recovered_again, recovered);
      }
    }
  }
  EXPECT_GT(num_repairs, 0);
}

TEST_F(CrashTest, TheRunGoesOnAfterARecoveryAndMayCrashAgain) {
  // The record of step 3 is in one copy only: the step is real, and the next commit must not tear
  // that copy alone.
  size_t first_copy = 0;
  for (size_t i = events_at_commit_[0]; i < events_at_commit_[1]; ++i) {
    if (!events_[i].is_flush && NameOf(events_[i].path) == "commit.fbs") {
      first_copy = i;
      break;
    }
  }
  const Image crashed =
      CrashImage(start_, std::span(events_).first(first_copy + 1), Loss::kNone, 0);
  const std::string directory = crashed_folder_.Path("crashed");
  SaveImage(crashed, directory);
  FaultPlan plan;
  plan.record = true;
  FaultyDisk disk(plan);
  {
    const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
    auto store = TensorStore::Open(directory, engine.get());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ((*store)->committed().step, 3);
    ASSERT_EQ(WriteStep(**store, 4), absl::OkStatus());
  }
  start_ = crashed;
  const std::vector<DiskEvent> second_run = disk.events();
  for (size_t num_events = 0; num_events < second_run.size(); ++num_events) {
    for (const Loss loss : {Loss::kNone, Loss::kAll, Loss::kTornLast, Loss::kRandom}) {
      const Image image =
          CrashImage(start_, std::span(second_run).first(num_events), loss, num_events);
      EXPECT_EQ(Check(image, 3), "") << num_events;
    }
  }
}

}  // namespace
}  // namespace forebay
