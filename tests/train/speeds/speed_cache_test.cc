#include "forebay/train/speeds/speed_cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

class SpeedCacheTest : public testing::Test {
 protected:
  std::string KeptText() { return *ReadWholeFile(cache_.PathOf(key_), 1 << 20); }
  void Write(const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(cache_.PathOf(key_), text).ok());
  }

  TemporaryFolder folder_;
  const SpeedCache cache_{folder_.Path("a/speeds")};
  const Json key_ = {{"what", "disk"}, {"device", "259:1"}};
};

TEST_F(SpeedCacheTest, FindsWhatWasKeptForTheSameKeyAlone) {
  EXPECT_FALSE(cache_.Find(key_).has_value());
  ASSERT_EQ(cache_.Keep(key_, {{"read", 3e9}, {"write", 2e9}}), absl::OkStatus());
  const auto kept = cache_.Find(key_);
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->speeds, (Speeds{{"read", 3e9}, {"write", 2e9}}));
  EXPECT_GE(kept->age_s, 0);
  EXPECT_LT(kept->age_s, 3600);
  EXPECT_FALSE(cache_.Find({{"what", "disk"}, {"device", "259:2"}}).has_value());
}

TEST_F(SpeedCacheTest, AnyDamagedByteMakesItUnknown) {
  ASSERT_EQ(cache_.Keep(key_, {{"read", 3e9}}), absl::OkStatus());
  const std::string text = KeptText();
  // The last one is the end of the line, and part of nothing.
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] ^= 1;
    Write(damaged);
    EXPECT_FALSE(cache_.Find(key_).has_value()) << damaged;
    Write(text.substr(0, i));
    EXPECT_FALSE(cache_.Find(key_).has_value()) << i;
  }
  Write(text);
  EXPECT_TRUE(cache_.Find(key_).has_value());
  for (const char* other : {"", "[]", "{}", "null", "\xff"}) {
    Write(other);
    EXPECT_FALSE(cache_.Find(key_).has_value()) << other;
  }
}

TEST_F(SpeedCacheTest, AFileOfAnotherKeyUnderThisNameIsNotTaken) {
  const Json other = {{"what", "disk"}, {"device", "8:1"}};
  ASSERT_EQ(cache_.Keep(other, {{"read", 3e9}}), absl::OkStatus());
  Write(*ReadWholeFile(cache_.PathOf(other), 1 << 20));
  EXPECT_FALSE(cache_.Find(key_).has_value());
}

TEST_F(SpeedCacheTest, WhereNothingCanBeWrittenIsAnError) {
  ASSERT_TRUE(WriteFileAtomically(folder_.Path("file"), "x").ok());
  const SpeedCache cache(folder_.Path("file/speeds"));
  EXPECT_EQ(ExitCodeOf(cache.Keep(key_, {{"read", 3e9}})), ExitCode::kStorage);
  EXPECT_FALSE(cache.Find(key_).has_value());
}

}  // namespace
}  // namespace forebay
