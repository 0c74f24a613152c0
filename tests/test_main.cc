#include "gmock/gmock.h"

int main(int argc, char** argv) {
  // The child of a death test runs the program anew: a fork would copy locks that other threads
  // hold, and may then wait for ever.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
