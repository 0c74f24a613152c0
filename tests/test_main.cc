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

namespace {

// A test finds nothing that another has kept for later runs, and leaves nothing to them; whatever
// cache the one before it has named.
class CacheOfEachTest : public testing::EmptyTestEventListener {
 public:
  CacheOfEachTest() { Name(); }
  void OnTestStart(const testing::TestInfo& /*test*/) override { Name(); }
  void OnTestEnd(const testing::TestInfo& /*test*/) override {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

 private:
  void Name() const { ::setenv("XDG_CACHE_HOME", path_.c_str(), /*overwrite=*/1); }

  const std::string path_ = testing::TempDir() + "forebay-test-cache-" + std::to_string(::getpid());
};

}  // namespace

int main(int argc, char** argv) {
  // The child of a death test runs the program anew: a fork would copy locks that other threads
  // hold, and may then wait for ever.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  testing::InitGoogleMock(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new CacheOfEachTest);
  return RUN_ALL_TESTS();
}
