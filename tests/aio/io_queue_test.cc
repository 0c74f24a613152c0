#include <array>
#include <string>

#include "forebay/aio/engine_base.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

// Pops everything and spells the classes: d(emand), p(refetch), w(rite-back).
std::string PopAll(IoQueue& queue) {
  std::string order;
  while (!queue.empty()) order += "dpw"[static_cast<int>(queue.Pop().io_class)];
  return order;
}

template <size_t kNumOps>
void PushAll(IoQueue& queue, std::array<IoOp, kNumOps>& ops, std::string_view classes) {
  for (size_t i = 0; i < classes.size(); ++i) {
    ops[i].io_class = classes[i] == 'd'   ? IoClass::kDemandRead
                      : classes[i] == 'p' ? IoClass::kPrefetch
                                          : IoClass::kWriteBack;
    queue.Push(ops[i]);
  }
}

TEST(IoQueue, ServesClassesInTheirOrder) {
  IoQueue queue;
  std::array<IoOp, 3> ops;
  PushAll(queue, ops, "wpd");
  EXPECT_EQ(PopAll(queue), "dpw");
}

TEST(IoQueue, IsFirstInFirstOutWithinAClass) {
  IoQueue queue;
  std::array<IoOp, 3> ops;
  PushAll(queue, ops, "ppp");
  for (IoOp& op : ops) EXPECT_EQ(&queue.Pop(), &op);
  EXPECT_TRUE(queue.empty());
}

TEST(IoQueue, AWriteBackThatWasPassedOverThreeTimesGoesNext) {
  IoQueue queue;
  std::array<IoOp, 10> ops;
  PushAll(queue, ops, "ddddddddww");
  EXPECT_EQ(PopAll(queue), "dddwdddwdd");
}

TEST(IoQueue, NoClassStarvesWhenAllAreBusy) {
  IoQueue queue;
  std::array<IoOp, 24> ops;
  PushAll(queue, ops, "ddddddddddddddddddddppww");
  const std::string order = PopAll(queue);
  EXPECT_LT(order.find('w'), 5u);
  EXPECT_LT(order.find('p'), 5u);
  EXPECT_LT(order.rfind('w'), 10u);
  EXPECT_LT(order.rfind('p'), 10u);
}

TEST(IoQueue, CanBeFilledAgainAfterItWasEmpty) {
  IoQueue queue;
  std::array<IoOp, 2> ops;
  PushAll(queue, ops, "w");
  EXPECT_EQ(PopAll(queue), "w");
  PushAll(queue, ops, "wd");
  EXPECT_EQ(PopAll(queue), "dw");
}

}  // namespace
}  // namespace forebay
