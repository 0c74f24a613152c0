#include "forebay/memory/address_space.h"

#include <sys/resource.h>

#include "forebay/base/errors.h"
#include "forebay/memory/process_memory.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// 'ulimit -v', as long as it lives.
class AddressSpaceLimit {
 public:
  explicit AddressSpaceLimit(int64_t bytes) {
    EXPECT_EQ(::getrlimit(RLIMIT_AS, &before_), 0);
    struct rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(bytes);
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~AddressSpaceLimit() { EXPECT_EQ(::setrlimit(RLIMIT_AS, &before_), 0); }

 private:
  struct rlimit before_ = {};
};

TEST(AddressSpace, WithoutALimitThereIsRoomForAnything) {
  if (AddressSpaceIsLimited()) GTEST_SKIP() << "the tests run under 'ulimit -v'";
  EXPECT_EQ(CheckAddressSpace(1000 * kGiB, 1000), absl::OkStatus());
}

TEST(AddressSpace, ALimitThatLeavesTooLittleIsNamedWithWhatIsNeeded) {
  const AddressSpaceLimit limit(ReadProcessMemory().mapped_bytes + kGiB);
  EXPECT_TRUE(AddressSpaceIsLimited());
  EXPECT_EQ(CheckAddressSpace(kGiB / 2, 2), absl::OkStatus());
  for (const absl::Status& status : {CheckAddressSpace(kGiB, 0), CheckAddressSpace(0, 2000)}) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kOutOfMemory);
    EXPECT_THAT(MessageOf(status), testing::ContainsRegex("Use 'ulimit -v [0-9]+' or more"));
  }
}

}  // namespace
}  // namespace forebay
