#include "forebay/step/window_buffers.h"

#include <vector>

#include "gmock/gmock.h"

namespace forebay {
namespace {

using enum BufferClass;

// Layers 0 to 4 share the buffers 0 and 1, layers 5 and 6 the buffer 2; layer 7 has the buffer 3.
WindowBuffers SomeBuffers() {
  return WindowBuffers({kBlock, kBlock, kBlock, kBlock, kBlock, kLarge, kLarge, kResident}, {2, 1});
}

// One access after the other. Returns the buffers.
std::vector<int> UseAll(WindowBuffers& buffers, const std::vector<int>& layers) {
  std::vector<int> used;
  for (const int layer : layers) {
    used.push_back(buffers.Choose(layer));
    buffers.Take(used.back(), layer);
    buffers.Release(used.back());
  }
  return used;
}

TEST(WindowBuffers, LayersTakeBuffersOfTheirClassAlone) {
  WindowBuffers buffers = SomeBuffers();
  EXPECT_EQ(buffers.num_layers(), 8);
  EXPECT_EQ(buffers.num_buffers(), 4);
  EXPECT_THAT(UseAll(buffers, {5, 0, 6, 1, 2, 3, 5}), testing::ElementsAre(2, 0, 2, 1, 0, 1, 2));
}

TEST(WindowBuffers, AResidentLayerHasItsBufferForGood) {
  WindowBuffers buffers = SomeBuffers();
  EXPECT_EQ(buffers.Find(7), 3);
  EXPECT_THAT(UseAll(buffers, {7, 0, 1, 2, 5, 6, 7}), testing::Contains(3).Times(2));
  EXPECT_EQ(buffers.Find(7), 3);
}

TEST(WindowBuffers, ALayerIsFoundUntilItGivesWay) {
  WindowBuffers buffers = SomeBuffers();
  EXPECT_EQ(buffers.Find(0), -1);
  UseAll(buffers, {0, 1});
  EXPECT_EQ(buffers.Find(0), 0);
  EXPECT_EQ(buffers.Choose(1), 1);
  UseAll(buffers, {2});
  EXPECT_EQ(buffers.Find(0), -1);
  EXPECT_EQ(buffers.Find(1), 1);
}

TEST(WindowBuffers, TheBufferThatHasBeenFreeForLongestGivesWay) {
  WindowBuffers buffers = SomeBuffers();
  UseAll(buffers, {0, 1, 0});
  EXPECT_EQ(buffers.Choose(2), 1);
  // Both are in use; that of layer 1 is free first.
  buffers.Take(0, 0);
  buffers.Take(1, 1);
  buffers.Release(1);
  buffers.Release(0);
  EXPECT_EQ(buffers.Choose(2), 1);
}

TEST(WindowBuffers, ABufferThatIsNeededDoesNotGiveWay) {
  WindowBuffers buffers = SomeBuffers();
  buffers.Take(0, 0);
  buffers.Take(0, 0);
  buffers.Take(1, 1);
  EXPECT_EQ(buffers.Choose(2), -1);
  buffers.Release(0);
  EXPECT_EQ(buffers.Choose(2), -1);
  EXPECT_EQ(buffers.Choose(0), 0);
  buffers.Release(0);
  EXPECT_EQ(buffers.Choose(2), 0);
}

TEST(WindowBuffers, AnAccessThatIsTakenBackIsNoUse) {
  WindowBuffers buffers = SomeBuffers();
  UseAll(buffers, {0, 1});
  buffers.Take(0, 0);
  buffers.TakeBack(0);
  EXPECT_EQ(buffers.Choose(2), 0);
  buffers.Take(0, 2);
  buffers.TakeBack(0);
  EXPECT_EQ(buffers.Find(2), 0);
  EXPECT_EQ(buffers.Choose(3), 0);
}

TEST(WindowBuffers, AForgottenLayerIsNotFoundAndItsBufferKeepsItsTurn) {
  WindowBuffers buffers = SomeBuffers();
  UseAll(buffers, {0, 1});
  buffers.Forget(1);
  EXPECT_EQ(buffers.Find(1), -1);
  EXPECT_EQ(buffers.Choose(1), 0);
  buffers.Forget(0);
  EXPECT_THAT(UseAll(buffers, {3, 4}), testing::ElementsAre(0, 1));
}

}  // namespace
}  // namespace forebay
