// Write-backs that several threads wait for, on a disk that holds one of them back.
#include "forebay/optimizer/tile_writes.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "forebay/aio/disk_calls.h"
#include "forebay/base/errors.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using namespace std::chrono_literals;

// The next write of weights waits for Release; others do not.
class HoldingDisk : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (kind == IoKind::kWrite && path.ends_with("/weights.fbs") && holds_next.exchange(false)) {
      std::unique_lock lock(mutex_);
      is_held_ = true;
      changed_.notify_all();
      changed_.wait(lock, [this] { return is_released_; });
      if (fails) return -EIO;
    }
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }
  void AwaitHeld() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_held_; });
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    is_released_ = true;
    changed_.notify_all();
  }

  std::atomic<bool> holds_next = false;
  std::atomic<bool> fails = false;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_held_ = false;      // mutex_
  bool is_released_ = false;  // mutex_
};

class TileWritesTest : public testing::Test {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.directories = {folder_.Path("store")};
    options.layout = Layout::kFp32;
    options.tile_elems = 2048;
    auto store = TensorStore::Create(options, OptimizerInventory(), engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto buffer = HostBuffer::Create(&budget_, "test", 2 * store_->tiles().max_weight_bytes());
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    buffer_ = *std::move(buffer);
    writes_ = std::make_unique<TileWrites>(store_.get());
  }
  // Not a check of speed: whatever waits for the held write would never come.
  void ExpectEnds(std::future<absl::Status>& future) {
    EXPECT_EQ(future.wait_for(20s), std::future_status::ready);
  }
  void Start(int tile) {
    const TileMap& tiles = store_->tiles();
    writes_->StartWeights(tile,
                          buffer_.bytes()
                              .subspan(static_cast<size_t>(tile * tiles.max_weight_bytes()))
                              .first(tiles.WeightBytes(tiles.tiles()[tile])),
                          /*step=*/1);
  }
  std::future<absl::Status> AwaitInThread(int tile) {
    return std::async(std::launch::async, [this, tile] { return writes_->AwaitWeights(tile); });
  }
  // Tile 0 is under way and stays so, and a thread waits for it.
  std::future<absl::Status> HoldTile0() {
    disk_.holds_next = true;
    Start(0);
    disk_.AwaitHeld();
    std::future<absl::Status> waiter = AwaitInThread(0);
    // So that it is there before the others: otherwise the test shows less, but is no other.
    waiter.wait_for(100ms);
    return waiter;
  }

  const TemporaryFolder folder_;
  HoldingDisk disk_;
  const std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 4}, &disk_);
  MemoryBudget budget_{0};
  std::unique_ptr<TensorStore> store_;
  HostBuffer buffer_;
  std::unique_ptr<TileWrites> writes_;
};

TEST_F(TileWritesTest, WhoeverWaitsForATileIsInNobodysWay) {
  std::future<absl::Status> waiter = HoldTile0();
  std::future<absl::Status> other = std::async(std::launch::async, [this] {
    Start(1);
    EXPECT_TRUE(writes_->WeightsArePending(0));
    return writes_->AwaitWeights(1);
  });
  ExpectEnds(other);
  EXPECT_EQ(waiter.wait_for(0s), std::future_status::timeout);
  disk_.Release();
  EXPECT_EQ(waiter.get(), absl::OkStatus());
  EXPECT_EQ(other.get(), absl::OkStatus());
}

TEST_F(TileWritesTest, SeveralMayWaitForTheSameTile) {
  std::vector<std::future<absl::Status>> waiters;
  waiters.push_back(HoldTile0());
  for (int i = 0; i < 3; ++i) waiters.push_back(AwaitInThread(0));
  disk_.Release();
  for (auto& waiter : waiters) EXPECT_EQ(waiter.get(), absl::OkStatus());
  EXPECT_FALSE(writes_->WeightsArePending(0));
}

TEST_F(TileWritesTest, AllOfThemHearOfAFailure) {
  disk_.fails = true;
  std::vector<std::future<absl::Status>> waiters;
  waiters.push_back(HoldTile0());
  for (int i = 0; i < 3; ++i) waiters.push_back(AwaitInThread(0));
  disk_.Release();
  for (auto& waiter : waiters) {
    const absl::Status status = waiter.get();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
    EXPECT_THAT(MessageOf(status), testing::HasSubstr("writing the weights of tile 0"));
  }
}

}  // namespace
}  // namespace forebay
