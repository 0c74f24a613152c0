#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "gmock/gmock.h"

#if defined(__SANITIZE_THREAD__)
// oneDNN is not instrumented: TSan does not see the locks of its caches, which ranks that are
// threads of a test share.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:libdnnl.so\n";
}
#endif

int main(int argc, char** argv) {
  // The child of a death test runs the program anew: a fork would copy locks that other threads
  // hold, and may then wait for ever.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  testing::InitGoogleMock(&argc, argv);
  // A test finds nothing that another program has kept for later ones, and leaves nothing to them.
  const std::string cache = testing::TempDir() + "forebay-test-cache-" + std::to_string(::getpid());
  ::setenv("XDG_CACHE_HOME", cache.c_str(), /*overwrite=*/1);
  const int result = RUN_ALL_TESTS();
  std::error_code ignored;
  std::filesystem::remove_all(cache, ignored);
  return result;
}
