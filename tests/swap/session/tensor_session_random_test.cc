// Random calls of a session against plain memory, and threads that share one. With another seed:
//   FOREBAY_SESSION_SEED=7 build/tests_bin/tensor_session_test --gtest_filter='*PlainMemory*'
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/tests/swap/session/session_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

struct RandomCase {
  uint64_t seed = 0;
  int num_slots = 2;
  Layout layout = Layout::kBf16;
  int num_folders = 1;
  bool least_memory = false;
};

// One thread that draws what to do next, and a reference that does the same.
class RandomCalls {
 public:
  explicit RandomCalls(const RandomCase& drawn)
      : case_(drawn), rng_(drawn.seed, 1), disk_({.max_delay_us = 100, .seed = drawn.seed}) {
    for (int i = 0; i < drawn.num_folders; ++i) {
      store_options_.directories.push_back(folder_.Path(std::to_string(i)));
    }
    store_options_.layout = drawn.layout;
    store_options_.tile_elems = kSmallTileElems;
    store_options_.num_slots = drawn.num_slots;
    const TileMap tiles(inventory_, drawn.layout, kSmallTileElems);
    options_.memory_bytes =
        drawn.least_memory ? TensorSession::LeastMemoryBytes(tiles, 19500) : 700 << 10;
    options_.wait_limit_s = 60;
  }

  void Run(int num_calls) {
    auto session = TensorSession::Create(options_, store_options_, inventory_, engine_.get());
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    for (int i = 0; i < num_calls && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(fmt::format("call {} of seed {}", i, case_.seed));
      Call();
    }
    EXPECT_EQ(SeesTensors(*session_, now_), absl::OkStatus());
    const SessionStats stats = session_->stats();
    EXPECT_LE(stats.peak_resident_bytes, options_.memory_bytes);
    EXPECT_LE(stats.copied_bytes, stats.write_bytes);
    EXPECT_EQ(stats.leased_bytes, 0);
  }

 private:
  int64_t Below(int64_t end) {
    return static_cast<int64_t>(rng_.Below(num_drawn_++, static_cast<uint64_t>(end)));
  }

  void Call() {
    const TensorSpec& tensor = inventory_.tensors()[static_cast<size_t>(
        Below(static_cast<int64_t>(inventory_.tensors().size())))];
    const TensorPlane plane = tensor.raw ? TensorPlane::kRaw : kWritablePlanes[Below(3)];
    const int64_t kind = Below(100);
    if (kind < 25) {
      Read(tensor, plane);
    } else if (kind < 55) {
      Write(tensor, plane);
    } else if (kind < 70) {
      ASSERT_EQ(SetAll(*session_, now_, tensor.name, plane, Below(1 << 30)), absl::OkStatus());
      is_changed_ = true;
    } else if (kind < 76) {
      ASSERT_EQ(session_->Expect(tensor.name, plane), absl::OkStatus());
    } else if (kind < 84) {
      ReadCommitted(tensor, plane);
    } else if (kind < 92) {
      ASSERT_EQ(session_->Commit(++step_), absl::OkStatus());
      committed_ = now_;
      is_changed_ = false;
    } else if (kind < 96) {
      Abort();
    } else {
      Reopen();
    }
  }

  void Read(const TensorSpec& tensor, TensorPlane plane) {
    const auto lease = session_->Acquire(tensor.name, plane, LeaseAccess::kRead);
    ASSERT_TRUE(lease.ok()) << lease.status();
    ASSERT_TRUE(SameBytes(BytesOf(*lease), now_.Bytes(tensor.name, plane))) << tensor.name;
  }

  void Write(const TensorSpec& tensor, TensorPlane plane) {
    auto lease = session_->Acquire(tensor.name, plane, LeaseAccess::kWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    const std::span<std::byte> expected = now_.Bytes(tensor.name, plane);
    ASSERT_TRUE(SameBytes(BytesOf(*lease), expected)) << tensor.name;
    const int64_t begin = Below(tensor.num_elems);
    const auto part = WritableBytesOf(*lease).subspan(
        static_cast<size_t>(begin * BytesPerElem(plane)),
        static_cast<size_t>(Below(tensor.num_elems - begin) * BytesPerElem(plane)));
    CounterRng(case_.seed, static_cast<uint64_t>(1000 + num_drawn_)).Fill(part);
    if (Below(8) == 0) return lease->Discard();
    std::ranges::copy(BytesOf(*lease), expected.begin());
    is_changed_ = true;
    ASSERT_EQ(lease->Release(), absl::OkStatus());
  }

  void ReadCommitted(const TensorSpec& tensor, TensorPlane plane) {
    const int64_t count = Below(tensor.num_elems);
    const int64_t first = Below(tensor.num_elems - count);
    std::vector<float> floats(tensor.raw ? 0 : static_cast<size_t>(count));
    std::vector<std::byte> bytes(tensor.raw ? static_cast<size_t>(count) : 0);
    const absl::Status status = tensor.raw
                                    ? session_->ReadCommittedRaw(tensor.name, first, bytes)
                                    : session_->ReadCommitted(tensor.name, plane, first, floats);
    const bool refused = step_ == 0 || (case_.num_slots == 1 && is_changed_);
    ASSERT_EQ(ExitCodeOf(status), refused ? ExitCode::kUsage : ExitCode::kOk) << status;
    if (refused) return;
    const std::span<const std::byte> out =
        tensor.raw ? std::span<const std::byte>(bytes) : std::as_bytes(std::span(floats));
    const std::span<const std::byte> all = committed_.Bytes(tensor.name, plane);
    ASSERT_TRUE(
        SameBytes(out, all.subspan(static_cast<size_t>(first * BytesPerElem(plane)), out.size())));
  }

  void Abort() {
    const absl::Status status = session_->Abort();
    const bool refused = step_ > 0 && case_.num_slots == 1 && is_changed_;
    ASSERT_EQ(ExitCodeOf(status), refused ? ExitCode::kUsage : ExitCode::kOk) << status;
    if (refused) return;
    now_ = committed_;
    is_changed_ = false;
  }

  // As after a kill; with one slot what was committed would be lost with it.
  void Reopen() {
    if (case_.num_slots == 1 && is_changed_) return;
    session_.reset();
    auto session = TensorSession::Open(options_, store_options_.directories, engine_.get());
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    now_ = committed_;
    is_changed_ = false;
    ASSERT_EQ(session_->committed().has_value() ? session_->committed()->step : 0, step_);
  }

  const RandomCase case_;
  CounterRng rng_;
  uint64_t num_drawn_ = 0;
  TemporaryFolder folder_;
  Inventory inventory_ = WithRawLayers(SmallInventory());
  StoreOptions store_options_;
  SessionOptions options_;
  FaultyDisk disk_;
  std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 2}, &disk_);
  std::unique_ptr<TensorSession> session_;
  PlainTensors now_{&inventory_};
  PlainTensors committed_{&inventory_};
  int64_t step_ = 0;
  bool is_changed_ = false;
};

class TensorSessionRandomTest : public testing::TestWithParam<RandomCase> {};

TEST_P(TensorSessionRandomTest, DoesWhatPlainMemoryDoes) {
  RandomCase drawn = GetParam();
  if (const char* const seed = std::getenv("FOREBAY_SESSION_SEED")) {
    drawn.seed = std::strtoull(seed, nullptr, 10);
  }
  RandomCalls(drawn).Run(250);
}

INSTANTIATE_TEST_SUITE_P(Calls, TensorSessionRandomTest,
                         testing::Values(RandomCase{1}, RandomCase{2, 2, Layout::kBf16, 1, true},
                                         RandomCase{3, 2, Layout::kFp32, 2, true}, RandomCase{4, 1},
                                         RandomCase{5, 1, Layout::kFp32, 1, true},
                                         RandomCase{6, 2, Layout::kBf16, 3}),
                         [](const auto& c) { return fmt::format("Seed{}", c.param.seed); });

// ---- Threads

// Every write sets all of a tensor to one number, so that a mixture shows.
bool IsUniform(std::span<const float> values) {
  return std::ranges::all_of(values, [&](float value) { return value == values[0]; });
}

class SharedSession {
 public:
  SharedSession() {
    const TileMap tiles(inventory_, Layout::kBf16, kSmallTileElems);
    auto session = TensorSession::Create(
        {.memory_bytes = TensorSession::LeastMemoryBytes(tiles, 4 * 19500)},
        {.directories = {folder_.Path("store")}, .tile_elems = kSmallTileElems}, inventory_,
        engine_.get());
    FOREBAY_CHECK(session.ok());
    session_ = *std::move(session);
  }

  TensorSession& session() { return *session_; }

  // Writes every so many-th tensor: neighbours by different threads.
  absl::Status WriteSome(int first, int stride, float value) {
    const std::vector<TensorSpec>& tensors = inventory_.tensors();
    for (size_t i = static_cast<size_t>(first); i < tensors.size();
         i += static_cast<size_t>(stride)) {
      const LeaseRequest requests[] = {
          {tensors[i].name, TensorPlane::kMaster, LeaseAccess::kWrite},
          {tensors[i].name, TensorPlane::kV, LeaseAccess::kOverwrite},
      };
      TensorLease leases[2];
      FOREBAY_RETURN_IF_ERROR(session_->AcquireAll(requests, leases));
      for (TensorLease& lease : leases) {
        std::ranges::fill(lease.floats(), value);
        FOREBAY_RETURN_IF_ERROR(lease.Release());
      }
    }
    return absl::OkStatus();
  }

  // At least once, and until it is to stop: everything that is read is whole.
  absl::Status ReadOn(const std::stop_token& stop) {
    std::vector<float> values;
    do {
      for (const TensorSpec& tensor : inventory_.tensors()) {
        for (const TensorPlane plane : {TensorPlane::kMaster, TensorPlane::kV}) {
          FOREBAY_ASSIGN_OR_RETURN(const TensorLease lease,
                                   session_->Acquire(tensor.name, plane, LeaseAccess::kRead));
          if (!IsUniform(lease.values())) return CorruptError("a mixture was leased");
        }
        values.resize(static_cast<size_t>(tensor.num_elems));
        FOREBAY_RETURN_IF_ERROR(
            session_->ReadCommitted(tensor.name, TensorPlane::kMaster, 0, values));
        if (!IsUniform(values)) return CorruptError("a mixture was committed");
      }
    } while (!stop.stop_requested());
    return absl::OkStatus();
  }

 private:
  TemporaryFolder folder_;
  Inventory inventory_ = SmallInventory();
  FaultyDisk disk_{{.max_delay_us = 200}};
  std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 2}, &disk_);
  std::unique_ptr<TensorSession> session_;
};

// A tensor of several tiles, few of which fit in memory at a time: a gather takes a while. However
// long it takes here, there are as many reads as are wanted in which a write came.
TEST(TensorSessionThreads, NoReaderSeesATensorThatIsHalfWritten) {
  constexpr int64_t kNumOverlaps = 60;
  SharedSession shared;
  std::atomic<int64_t> num_written = 0;
  std::atomic<int64_t> num_overlaps = 0;
  std::atomic<int64_t> num_mixed = 0;
  std::vector<std::jthread> readers;  // which end with the test, however it ends
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        const int64_t before = num_written;
        const auto lease =
            shared.session().Acquire("embed.weight", TensorPlane::kV, LeaseAccess::kRead);
        num_overlaps += num_written > before ? 1 : 0;
        num_mixed += lease.ok() && IsUniform(lease->values()) ? 0 : 1;
      }
    });
  }
  while (num_overlaps < kNumOverlaps && num_mixed == 0) {
    auto lease = shared.session().Acquire("embed.weight", TensorPlane::kV, LeaseAccess::kWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    std::ranges::fill(lease->floats(), static_cast<float>(num_written + 1));
    ASSERT_EQ(lease->Release(), absl::OkStatus());
    ++num_written;
  }
  readers.clear();
  EXPECT_EQ(num_mixed, 0);
  EXPECT_GE(num_written, 1);
}

TEST(TensorSessionThreads, NeighboursAreWrittenReadAndCommittedAtOnce) {
  SharedSession shared;
  ASSERT_EQ(shared.session().Commit(1), absl::OkStatus());
  absl::Status readers[2];
  std::vector<std::jthread> threads;
  for (absl::Status& status : readers) {
    threads.emplace_back([&](const std::stop_token& stop) { status = shared.ReadOn(stop); });
  }
  for (int64_t step = 2; step <= 8; ++step) {
    absl::Status writers[3];
    std::vector<std::jthread> of_step;
    for (int i = 0; i < 3; ++i) {
      of_step.emplace_back(
          [&, i] { writers[i] = shared.WriteSome(i, 3, static_cast<float>(step)); });
    }
    of_step.clear();
    for (const absl::Status& status : writers) ASSERT_EQ(status, absl::OkStatus());
    if (step % 3 == 0) {
      ASSERT_EQ(shared.session().Abort(), absl::OkStatus());
    } else {
      ASSERT_EQ(shared.session().Commit(step), absl::OkStatus());
    }
  }
  threads.clear();
  for (const absl::Status& status : readers) EXPECT_EQ(status, absl::OkStatus());
  std::vector<float> values(3200);
  ASSERT_EQ(shared.session().ReadCommitted("layers.0.up", TensorPlane::kV, 0, values),
            absl::OkStatus());
  EXPECT_TRUE(values[0] == 8.0f && IsUniform(values));
}

// A session and its leases go from one thread to the next, as a Python program hands them on: only
// one uses them at a time, and it is not always the same.
TEST(TensorSessionThreads, ASessionAndItsLeasesAreHandedOn) {
  constexpr int kNumThreads = 8;
  auto shared = std::make_unique<SharedSession>();
  TensorLease lease;
  absl::Status status;
  for (int i = 0; i < kNumThreads; ++i) {
    const auto number = static_cast<float>(i);
    std::thread([&] {
      if (lease.is_out()) {
        status.Update(IsUniform(lease.values()) ? lease.Release() : CorruptError("a mixture"));
      }
      status.Update(shared->WriteSome(0, 1, number));
      status.Update(i % 3 == 2 ? shared->session().Abort() : shared->session().Commit(i + 1));
      auto next = shared->session().Acquire("head.norm", TensorPlane::kM, LeaseAccess::kWrite);
      status.Update(next.status());
      if (!next.ok()) return;
      std::ranges::fill(next->floats(), number);
      lease = *std::move(next);
    }).join();
    ASSERT_EQ(status, absl::OkStatus()) << "thread " << i;
    // Ended by this thread, which did not begin it.
    EXPECT_EQ(lease.values()[0], number);
    if (i % 2 == 0) status.Update(lease.Release());
  }
  ASSERT_EQ(status, absl::OkStatus());
  lease.Discard();
  const auto seen = shared->session().Acquire("head.norm", TensorPlane::kM, LeaseAccess::kRead);
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_EQ(seen->values()[0], static_cast<float>(kNumThreads - 2));
  std::thread([&] { shared.reset(); }).join();
}

}  // namespace
}  // namespace forebay
