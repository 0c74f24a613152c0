// A session's steps on disks that crash or fail. What the store promises under a crash is in
// crash_test.cc; here it is what a session makes of it: tiles that are copied forward, kept where
// they are, written early, written again and given up.
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/base/errors.h"
#include "forebay/tests/swap/session/session_fixture.h"
#include "forebay/tests/swap/store/crash_store.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

// Two layers of three tiles, with neighbours in a tile, and a raw one of a single tile.
Inventory CrashInventory() {
  Inventory inventory;
  for (const std::string layer : {"a", "b"}) {
    inventory.BeginLayer(layer);
    inventory.Add(layer + ".large", {3000}, 0, true);
    inventory.Add(layer + ".small", {700}, 0, true);
  }
  inventory.BeginRawLayer("c");
  inventory.AddRaw("c.count", 9);
  return inventory;
}

constexpr int kNumWorkSteps = 5;
// Of the store alone there is more in crash_test.cc.
constexpr CrashChoice kChoice = {.writes_for_all_subsets = 2, .tear_last = false, .num_random = 1};

SessionOptions CrashOptions() {
  const TileMap tiles(CrashInventory(), Layout::kBf16, 2048);
  return {.memory_bytes = TensorSession::LeastMemoryBytes(tiles, 3000)};
}

// What step 1, 2, ... does; commits are the caller's.
absl::Status Work(TensorSession& session, PlainTensors& values, int64_t step) {
  const auto seed = static_cast<uint64_t>(100 * step);
  switch (step) {
    case 1:
      return SetEverything(session, values, seed);
    case 2:  // written again after it was, and the rest is copied forward
      FOREBAY_RETURN_IF_ERROR(SetAll(session, values, "a.small", TensorPlane::kM, seed));
      FOREBAY_RETURN_IF_ERROR(SetAll(session, values, "b.large", TensorPlane::kMaster, seed));
      FOREBAY_RETURN_IF_ERROR(SetAll(session, values, "c.count", TensorPlane::kRaw, seed));
      return SetAll(session, values, "a.small", TensorPlane::kM, seed + 1);
    case 3:  // most is kept
      return SetAll(session, values, "b.small", TensorPlane::kV, seed);
    case 4:
      return absl::OkStatus();
    default:
      return SetEverything(session, values, seed);
  }
}

class TensorSessionCrashTest : public testing::TestWithParam<int> {
 protected:
  std::vector<std::string> Folders(const std::string& directory) const {
    return FoldersIn(directory, GetParam());
  }
  StoreOptions Store(const std::string& directory, int num_slots) const {
    return {.directories = Folders(directory), .tile_elems = 2048, .num_slots = num_slots};
  }

  // A store that has committed step 1, and what it holds.
  void MakeStore(const std::string& directory, int num_slots = kMostSlots) {
    const auto engine = CreateThreadsEngine({.num_threads = 1});
    auto session = TensorSession::Create(CrashOptions(), Store(directory, num_slots), inventory_,
                                         engine.get());
    ASSERT_TRUE(session.ok()) << session.status();
    PlainTensors values(&inventory_);
    ASSERT_EQ(Work(**session, values, 1), absl::OkStatus());
    ASSERT_EQ((*session)->Commit(1), absl::OkStatus());
    at_step_.assign(2, values);
  }

  // "" when the store in `folder` is one whole step from `promised` to `promised` + 1.
  std::string Check(ImageFolder& folder, int64_t promised) {
    RecordedStore store(folder);
    if (!store.ok()) return MessageOf(store.status());
    const int64_t step = store->committed().step;
    if (step < promised || step > promised + 1) {
      return fmt::format("promised {}, found {}", promised, step);
    }
    return HoldsTensors(*store, at_step_[step]) ? "" : fmt::format("step {} is mixed", step);
  }

  using OpenedSession = absl::StatusOr<std::unique_ptr<TensorSession>>;

  // Step `step` from the one before it.
  absl::Status WorkAndCommit(TensorSession& session, int64_t step) {
    PlainTensors values = at_step_[step - 1];
    FOREBAY_RETURN_IF_ERROR(Work(session, values, step));
    // Known before the commit, which may get through to the disk though it fails.
    at_step_[step] = values;
    return session.Commit(step);
  }

  // For each call of the disk, as long as there are more: opens a session of the store in "start"
  // where that call fails, hands it to `work`, and what it has left to `check`.
  void ForEachFailingCall(const std::function<void(OpenedSession&)>& work,
                          const std::function<void(ImageFolder&)>& check) {
    const Image start = LoadImage(folder_.Path("start"));
    bool reached = true;
    for (int64_t call = 0; reached && !HasFatalFailure(); ++call) {
      SCOPED_TRACE(fmt::format("call {}", call));
      ImageFolder failing(GetParam());
      failing.Put(start);
      {
        FaultPlan plan;
        plan.fail_call = call;
        plan.effect = call % 2 == 0 ? FaultEffect::kError : FaultEffect::kNothing;
        FaultyDisk disk(plan);
        const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
        OpenedSession session =
            TensorSession::Open(CrashOptions(), failing.folders(), engine.get());
        work(session);
        reached = disk.num_calls() > call;
      }
      if (!HasFatalFailure()) check(failing);
    }
  }

  Inventory inventory_ = CrashInventory();
  std::vector<PlainTensors> at_step_;  // what each step is to hold
  TemporaryFolder folder_{FolderInRam()};
};

TEST_P(TensorSessionCrashTest, AtEveryMomentLeavesTheStepBeforeOrTheNewOne) {
  const std::string directory = folder_.Path("recorded");
  MakeStore(directory);
  const Image start = LoadImage(directory);
  std::vector<size_t> events_at_commit;
  FaultPlan recording;
  recording.record = true;
  FaultyDisk disk(recording);
  {
    const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
    auto session = TensorSession::Open(CrashOptions(), Folders(directory), engine.get());
    ASSERT_TRUE(session.ok()) << session.status();
    for (int64_t step = 2; step <= kNumWorkSteps; ++step) {
      PlainTensors lost = at_step_.back();
      ASSERT_EQ(SetAll(**session, lost, "a.large", TensorPlane::kM, 99), absl::OkStatus());
      // Not before it is in its tiles, and the first of them on its way to the disk.
      ASSERT_TRUE((*session)->Acquire("a.large", TensorPlane::kM, LeaseAccess::kRead).ok());
      ASSERT_EQ((*session)->Abort(), absl::OkStatus());
      PlainTensors values = at_step_.back();
      ASSERT_EQ(Work(**session, values, step), absl::OkStatus());
      ASSERT_EQ((*session)->Commit(step), absl::OkStatus());
      at_step_.push_back(values);
      events_at_commit.push_back(disk.events().size());
    }
    EXPECT_GT((*session)->stats().kept_bytes, 0);
    EXPECT_GT((*session)->stats().copied_bytes, 0);
  }
  const std::vector<DiskEvent> events = disk.events();
  ImageFolder crashed(GetParam());
  std::set<std::pair<std::string, int64_t>> checked;
  int64_t num_points = 0;
  for (size_t num_events = 0; num_events <= events.size(); ++num_events) {
    const int64_t promised = 1 + std::ranges::count_if(events_at_commit, [&](size_t at_commit) {
                               return at_commit <= num_events;
                             });
    for (const DiskCase& crash :
         CrashesAfter(events, num_events, CounterRng(CrashSeed(), num_events), kChoice)) {
      ++num_points;
      const Image image = ImageOf(start, events, crash);
      if (!checked.insert({DigestOf(image), promised}).second) continue;
      crashed.Put(image);
      ASSERT_EQ(Check(crashed, promised), "")
          << Describe(events, crash) << "Repeat with: " << RepeatCommand();
    }
  }
  CountCrashPoints(num_points, static_cast<int64_t>(checked.size()));
}

// One call of the disk fails. What can be undone is, and done again; what cannot leaves a step.
TEST_P(TensorSessionCrashTest, AFailureOfAnyCallLeavesTheCommittedStep) {
  MakeStore(folder_.Path("start"));
  at_step_.resize(kNumWorkSteps + 1, PlainTensors(&inventory_));
  int num_undone = 0;
  int num_final = 0;
  int64_t promised = 1;
  const auto work = [&](OpenedSession& session) {
    promised = 1;
    bool is_final = !session.ok();
    for (int64_t step = 2; step <= kNumWorkSteps && !is_final; ++step) {
      for (int attempt = 0; attempt < 2 && promised < step && !is_final; ++attempt) {
        const absl::Status status = WorkAndCommit(**session, step);
        if (status.ok()) {
          promised = step;
          break;
        }
        ASSERT_EQ(attempt, 0) << status;  // one call fails
        is_final = !(*session)->Abort().ok();
        if (is_final) break;
        ++num_undone;
        ASSERT_EQ(SeesTensors(**session, at_step_[step - 1]), absl::OkStatus());
      }
    }
    num_final += is_final ? 1 : 0;
  };
  ForEachFailingCall(work, [&](ImageFolder& left) { ASSERT_EQ(Check(left, promised), ""); });
  EXPECT_GT(num_undone, 10);
  EXPECT_GT(num_final, 5);
}

// With one slot there is nothing to go back to: the session ends, and says so. What it leaves is a
// whole step, or is refused, and then repaired to one or not at all.
TEST_P(TensorSessionCrashTest, AFailureOfAnyCallWithOneSlotIsFinalAndLeavesNoMixture) {
  MakeStore(folder_.Path("start"), 1);
  at_step_.resize(kNumWorkSteps + 1, PlainTensors(&inventory_));
  int num_refused = 0;
  int num_repaired = 0;
  int64_t promised = 1;
  const auto work = [&](OpenedSession& session) {
    promised = 1;
    for (int64_t step = 2; step <= kNumWorkSteps && session.ok(); ++step) {
      const absl::Status status = WorkAndCommit(**session, step);
      if (!status.ok()) {
        const ExitCode code = ExitCodeOf(status);
        EXPECT_THAT(code, testing::AnyOf(ExitCode::kStorage, ExitCode::kCorrupt)) << status;
        EXPECT_EQ(ExitCodeOf((*session)->Abort()), code);
        EXPECT_EQ(ExitCodeOf((*session)->Commit(step)), code);
        EXPECT_EQ(ExitCodeOf((*session)->Abort()), code);
        break;
      }
      promised = step;
    }
  };
  ForEachFailingCall(work, [&](ImageFolder& left) {
    if (ExitCodeOf(RecordedStore(left).status()) == ExitCode::kCorrupt) {
      ++num_refused;
      if (!RepairStore(left).ok()) return;
      ++num_repaired;
    }
    ASSERT_EQ(Check(left, promised), "");
  });
  EXPECT_GT(num_refused, 10);
  EXPECT_GT(num_repaired, 0);
  EXPECT_LT(num_repaired, num_refused);
}

INSTANTIATE_TEST_SUITE_P(Folders, TensorSessionCrashTest, testing::Values(1, 2));

}  // namespace
}  // namespace forebay
