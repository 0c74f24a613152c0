#include "forebay/aio/faults/simulated_disk.h"

#include <array>
#include <vector>

#include "forebay/tests/aio/engine_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

class SimulatedDiskTest : public testing::Test {
 protected:
  static constexpr int kNumOps = 24;

  // The order in which writes of one block each reach the disk.
  std::vector<int64_t> OrderOfWrites(uint64_t seed, FaultPlan faults = {}) {
    faults.record = true;
    auto script = std::make_shared<FaultScript>(faults);
    const auto engine = CreateSimulatedEngine({}, {.seed = seed}, script);
    const std::string path = folder_.Path(std::to_string(num_files_++));
    auto file = OpenDirectFile(path, {.create = true, .size_bytes = kNumOps * 4096});
    const int number = engine->AddFile(std::move(file->fd), path);
    auto buffer = HostBuffer::Create(&budget_, "test", kNumOps * 4096);
    std::array<IoOp, kNumOps> ops;
    for (int i = 0; i < kNumOps; ++i) {
      ops[i].kind = IoKind::kWrite;
      ops[i].file = number;
      ops[i].offset_bytes = i * 4096;
      ops[i].buffer = buffer->bytes().subspan(i * 4096, 4096);
      engine->Submit(ops[i]);
    }
    for (IoOp& op : ops) EXPECT_TRUE(engine->Wait(op).ok());
    std::vector<int64_t> order;
    for (const DiskEvent& event : script->events()) order.push_back(event.offset_bytes / 4096);
    return order;
  }

  const TemporaryFolder folder_;
  MemoryBudget budget_{0};
  int num_files_ = 0;
};

TEST_F(SimulatedDiskTest, CompletesOutOfOrder) {
  const std::vector<int64_t> order = OrderOfWrites(1);
  EXPECT_EQ(order.size(), size_t{kNumOps});
  EXPECT_FALSE(std::ranges::is_sorted(order));
}

TEST_F(SimulatedDiskTest, DoesTheSameInEveryRun) {
  EXPECT_EQ(OrderOfWrites(2), OrderOfWrites(2));
  const FaultPlan faults = {.again_every = 3, .seed = 9};
  EXPECT_EQ(OrderOfWrites(2, faults), OrderOfWrites(2, faults));
}

TEST_F(SimulatedDiskTest, DoesOtherThingsWithAnotherSeed) {
  EXPECT_NE(OrderOfWrites(3), OrderOfWrites(4));
}

TEST_F(SimulatedDiskTest, TheEngineCountsTheTimeThatReadsAndWritesTake) {
  const auto engine =
      CreateSimulatedEngine({}, {.least_latency_us = 1000, .most_latency_us = 1000}, nullptr);
  const std::string path = folder_.Path("timed");
  auto file = OpenDirectFile(path, {.create = true, .size_bytes = 4096});
  const int number = engine->AddFile(std::move(file->fd), path);
  auto buffer = HostBuffer::Create(&budget_, "test", 4096);
  const auto run = [&](IoKind kind) {
    IoOp op;
    op.kind = kind;
    op.file = number;
    op.buffer = buffer->bytes();
    engine->Submit(op);
    EXPECT_TRUE(engine->Wait(op).ok());
  };
  run(IoKind::kWrite);
  EXPECT_EQ(engine->stats().write_us, 1000);
  EXPECT_EQ(engine->stats().read_us, 0);
  run(IoKind::kRead);
  run(IoKind::kRead);
  EXPECT_EQ(engine->stats().write_us, 1000);
  EXPECT_EQ(engine->stats().read_us, 2000);
}

}  // namespace
}  // namespace forebay
