#include "forebay/aio/device_queue.h"

#include <array>
#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kQueuedOpBytes = 4096;

// Takes everything, a block at a time, and spells the classes: d(emand), p(refetch), u(pdate read),
// w(rite-back).
std::string TakeAll(DeviceQueue& queue) {
  std::string order;
  while (!queue.empty()) {
    const IoOp* const expected = &queue.Peek();
    const IoOp* const taken = queue.Take(kQueuedOpBytes).op;
    EXPECT_EQ(taken, expected) << "Peek must foresee Take";
    order += "dpuw"[static_cast<int>(taken->io_class)];
  }
  return order;
}

class DeviceQueueTest : public testing::Test {
 protected:
  // One op of a block for each letter.
  void Push(DeviceQueue& queue, std::string_view classes) {
    for (const char letter : classes) Push(queue, letter, kQueuedOpBytes);
  }
  IoOp& Push(DeviceQueue& queue, char letter, int64_t bytes) {
    IoOp& op = ops_[num_ops_++];
    op.io_class = letter == 'd'   ? IoClass::kDemand
                  : letter == 'p' ? IoClass::kPrefetch
                  : letter == 'u' ? IoClass::kUpdateRead
                                  : IoClass::kWriteBack;
    op.kind = letter == 'w' ? IoKind::kWrite : IoKind::kRead;
    op.buffer = std::span(memory_).first(static_cast<size_t>(bytes));
    queue.Push(op);
    return op;
  }

  std::vector<std::byte> memory_{1 << 20};
  std::array<IoOp, 64> ops_;
  size_t num_ops_ = 0;
};

TEST_F(DeviceQueueTest, ServesClassesInTheirOrder) {
  DeviceQueue queue(100 * kQueuedOpBytes);
  Push(queue, "wupd");
  EXPECT_EQ(TakeAll(queue), "dpuw");
}

TEST_F(DeviceQueueTest, IsFirstInFirstOutWithinAClass) {
  DeviceQueue queue(100 * kQueuedOpBytes);
  Push(queue, "ppp");
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(queue.Take(kQueuedOpBytes).op, &ops_[i]);
  EXPECT_TRUE(queue.empty());
}

TEST_F(DeviceQueueTest, CutsAnOpIntoPiecesFromItsFront) {
  DeviceQueue queue(100 * kQueuedOpBytes);
  IoOp& op = Push(queue, 'p', 3 * kQueuedOpBytes);
  const DeviceQueue::Piece first = queue.Take(2 * kQueuedOpBytes);
  EXPECT_EQ(first.op, &op);
  EXPECT_EQ(first.offset_bytes, 0);
  EXPECT_EQ(first.bytes, 2 * kQueuedOpBytes);
  const DeviceQueue::Piece second = queue.Take(2 * kQueuedOpBytes);
  EXPECT_EQ(second.offset_bytes, 2 * kQueuedOpBytes);
  EXPECT_EQ(second.bytes, kQueuedOpBytes);
  EXPECT_TRUE(queue.empty());
}

TEST_F(DeviceQueueTest, ADemandReadGoesBetweenThePiecesOfAPrefetch) {
  DeviceQueue queue(100 * kQueuedOpBytes);
  Push(queue, 'p', 3 * kQueuedOpBytes);
  queue.Take(kQueuedOpBytes);
  Push(queue, "d");
  EXPECT_EQ(TakeAll(queue), "dpp");
}

TEST_F(DeviceQueueTest, AWriteBackThatWasPassedOverForABurstGetsATurnOfThatLength) {
  DeviceQueue queue(3 * kQueuedOpBytes);
  Push(queue, "ddddddddwwww");
  EXPECT_EQ(TakeAll(queue), "dddwwwdddwdd");
}

TEST_F(DeviceQueueTest, NoClassStarvesWhenAllAreBusy) {
  DeviceQueue queue(4 * kQueuedOpBytes);
  Push(queue, "dddddddddddddddddddddddddddddddddddddddd");
  Push(queue, "ppppppppwwwwwwww");
  const std::string order = TakeAll(queue);
  EXPECT_LE(order.find('w'), 12u) << order;
  EXPECT_LE(order.find('p'), 12u) << order;
  // From turn to turn as well: three bursts at most.
  size_t last = order.find('w');
  for (size_t at = last; at != std::string::npos; at = order.find('w', at + 1)) {
    EXPECT_LE(at - last, 13u) << order;
    last = at;
  }
}

TEST_F(DeviceQueueTest, PrefetchesWaitForTheEndOfABurstOfWriteBacks) {
  DeviceQueue queue(4 * kQueuedOpBytes);
  Push(queue, "wwwwww");
  queue.Take(kQueuedOpBytes);
  Push(queue, "ppp");
  EXPECT_EQ(TakeAll(queue), "wwwpppww");
}

TEST_F(DeviceQueueTest, ADemandReadInterruptsABurstOfWriteBacks) {
  DeviceQueue queue(8 * kQueuedOpBytes);
  Push(queue, "wwww");
  queue.Take(kQueuedOpBytes);
  Push(queue, "d");
  EXPECT_EQ(TakeAll(queue), "dwww");
}

TEST_F(DeviceQueueTest, ARemovedOpIsNotServed) {
  DeviceQueue queue(100 * kQueuedOpBytes);
  Push(queue, "ppp");
  queue.Remove(ops_[1]);
  EXPECT_EQ(queue.Take(kQueuedOpBytes).op, &ops_[0]);
  EXPECT_EQ(queue.Take(kQueuedOpBytes).op, &ops_[2]);
  EXPECT_TRUE(queue.empty());
  Push(queue, "pp");
  queue.Remove(ops_[4]);
  Push(queue, "p");
  EXPECT_EQ(queue.Take(kQueuedOpBytes).op, &ops_[3]);
  EXPECT_EQ(queue.Take(kQueuedOpBytes).op, &ops_[5]);
}

TEST_F(DeviceQueueTest, CanBeFilledAgainAfterItWasEmpty) {
  DeviceQueue queue(100 * kQueuedOpBytes);
  Push(queue, "w");
  EXPECT_EQ(TakeAll(queue), "w");
  Push(queue, "wd");
  EXPECT_EQ(TakeAll(queue), "dw");
}

TEST_F(DeviceQueueTest, KnowsWhichMemoryItsOpsUse) {
  DeviceQueue queue(100 * kQueuedOpBytes);
  Push(queue, 'p', kQueuedOpBytes);
  IoOp& op = Push(queue, 'w', 2 * kQueuedOpBytes);
  const std::span<const std::byte> memory(memory_);
  EXPECT_TRUE(queue.HasUserOf(memory.first(1)));
  EXPECT_TRUE(queue.HasUserOf(memory.subspan(2 * kQueuedOpBytes - 1)));
  EXPECT_FALSE(queue.HasUserOf(memory.subspan(2 * kQueuedOpBytes)));
  queue.Remove(op);
  EXPECT_FALSE(queue.HasUserOf(memory.subspan(kQueuedOpBytes)));
}

}  // namespace
}  // namespace forebay
