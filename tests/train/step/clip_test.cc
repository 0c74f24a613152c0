#include "forebay/train/step/clip.h"

#include "gtest/gtest.h"

namespace forebay {
namespace {

// Adam hardly notices a constant factor, so no comparison of trained weights would tell.
TEST(ClipScale, BringsALongerGradientToTheNormOfTorch) {
  EXPECT_DOUBLE_EQ(ClipScale(0.5, 2.0), 0.5 / (2.0 + 1e-6));
  EXPECT_DOUBLE_EQ(ClipScale(1.0, 1.0), 1.0 / (1.0 + 1e-6));
}

TEST(ClipScale, LeavesAShorterGradientAsItIs) {
  EXPECT_EQ(ClipScale(1.0, 0.25), 1.0);
  EXPECT_EQ(ClipScale(1.0, 0.0), 1.0);
}

TEST(ClipScale, ZeroMeansNoClipping) {
  EXPECT_EQ(ClipScale(0.0, 1e9), 1.0);
}

}  // namespace
}  // namespace forebay
