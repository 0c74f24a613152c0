#include "forebay/base/format.h"

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

TEST(SizeText, IsWhatTheFlagTakes) {
  EXPECT_EQ(SizeText(1 << 20), "1M");
  EXPECT_EQ(SizeText(256 << 10), "256K");
  EXPECT_EQ(SizeText(int64_t{2} << 30), "2G");
  EXPECT_EQ(SizeText(12345), "12345");
}

TEST(FormatBytes, ShowsThreeSignificantDigitsInPowersOf1000) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(999), "999 B");
  EXPECT_EQ(FormatBytes(1'000), "1.00 KB");
  EXPECT_EQ(FormatBytes(786'432), "786 KB");
  EXPECT_EQ(FormatBytes(1'050'000'000), "1.05 GB");
  EXPECT_EQ(FormatBytes(-1'500), "-1.50 KB");
}

TEST(FormatBytes, RoundsUpIntoTheNextUnit) {
  EXPECT_EQ(FormatBytes(999'499), "999 KB");
  EXPECT_EQ(FormatBytes(999'500), "1.00 MB");
  EXPECT_EQ(FormatBytes(9'999), "10.0 KB");
  EXPECT_EQ(FormatBytes(99'990), "100 KB");
}

TEST(FormatBinaryBytes, RoundedDownAreLessThanANeedThatIsRoundedUp) {
  const int64_t mib = int64_t{1} << 20;
  EXPECT_EQ(FormatBinaryBytesDown(943 * mib + mib / 2), "943 MiB");
  EXPECT_EQ(FormatBinaryBytesDown(1024 * mib), "1.00 GiB");
  EXPECT_EQ(FormatBinaryBytesDown(1024 * mib - 1), "1023 MiB");
  EXPECT_EQ(FormatBinaryBytesDown(10309 * mib), "10.0 GiB");
  EXPECT_EQ(FormatBinaryBytesDown(1'536), "1.50 KiB");
  EXPECT_EQ(FormatBinaryBytesDown(1'023), "1023 B");
}

TEST(FormatBinaryBytes, UsesPowersOf1024) {
  EXPECT_EQ(FormatBinaryBytes(1'023), "1023 B");
  EXPECT_EQ(FormatBinaryBytes(int64_t{1} << 30), "1.00 GiB");
  EXPECT_EQ(FormatBinaryBytes(int64_t{1536} << 20), "1.50 GiB");
  EXPECT_EQ(FormatBinaryBytes((int64_t{1} << 20) - 1), "1.00 MiB");
}

TEST(FormatCount, NamesMillionsAndBillions) {
  EXPECT_EQ(FormatCount(812), "812");
  EXPECT_EQ(FormatCount(134'515'008), "135 M");
  EXPECT_EQ(FormatCount(13'015'864'320), "13.0 G");
}

TEST(FormatDuration, PicksTheUnitThatPeopleWouldSay) {
  EXPECT_EQ(FormatDuration(4.21), "4.2 s");
  EXPECT_EQ(FormatDuration(59.96), "1m00s");
  EXPECT_EQ(FormatDuration(192), "3m12s");
  EXPECT_EQ(FormatDuration(3599.7), "1h00m");
  EXPECT_EQ(FormatDuration(34'740), "9h39m");
}

TEST(ParseSize, AcceptsTheSpellingsOfPowersOf1024) {
  for (const char* text :
       {"1GiB", "1G", "1Gi", "1GB", "1g", "1024M", "1048576K", "1073741824", "1073741824B"}) {
    EXPECT_EQ(ParseSize(text).value_or(-1), int64_t{1} << 30) << text;
  }
}

TEST(ParseSize, AcceptsFractionsOfAUnit) {
  EXPECT_EQ(*ParseSize("1.5G"), int64_t{3} << 29);
  EXPECT_EQ(*ParseSize("0.5Ki"), 512);
  EXPECT_EQ(*ParseSize("2T"), int64_t{2} << 40);
}

TEST(ParseSize, RefusesWhatIsNoSizeAndSaysWhatOneIs) {
  for (const char* text : {"", "GiB", "-1", "1X", "1GiBs", "1 GiB", "1Gi B", "nan", "inf", "0x10",
                           "1iB", "1e300", "9999999999T", "\xff"}) {
    const auto size = ParseSize(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(ExitCodeOf(size.status()), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(size.status()), HasSubstr("1GiB or 512M"));
  }
}

TEST(ParseDuration, AcceptsTheUsualUnits) {
  EXPECT_EQ(*ParseDuration("3"), 3);
  EXPECT_EQ(*ParseDuration("0.2s"), 0.2);
  EXPECT_EQ(*ParseDuration("500ms"), 0.5);
  EXPECT_EQ(*ParseDuration("2m"), 120);
  EXPECT_EQ(*ParseDuration("1h"), 3600);
}

TEST(ParseDuration, RefusesWhatIsNoTime) {
  for (const char* text : {"", "s", "-1s", "3d", "3 s", "nan", "1s2"}) {
    EXPECT_FALSE(ParseDuration(text).ok()) << text;
  }
}

TEST(NearestName, FindsTheNameThatWasMeant) {
  const std::vector<std::string> names = {"weight_decay", "warmup", "steps", "seq"};
  EXPECT_EQ(NearestName("weight-decay", names), "weight_decay");
  EXPECT_EQ(NearestName("warmpu", names), "warmup");
  EXPECT_EQ(NearestName("step", names), "steps");
}

TEST(ShellQuoted, IsReadByAShellAsItWas) {
  EXPECT_EQ(ShellQuoted("/runs/book-1.5"), "/runs/book-1.5");
  EXPECT_EQ(ShellQuoted("a b"), "'a b'");
  EXPECT_EQ(ShellQuoted("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellQuoted("$x"), "'$x'");
  EXPECT_EQ(ShellQuoted(""), "''");
}

TEST(NearestName, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(NearestName("zzzzzzzz", {"weight_decay", "warmup"}), "");
  EXPECT_EQ(NearestName("x", {}), "");
  // As far from "seq" as from any name of three letters.
  EXPECT_EQ(NearestName("x", {"seq", "out"}), "");
  EXPECT_EQ(NearestName("", {"seq"}), "");
}

TEST(NearestName, PrefersTheCloserOfTwo) {
  EXPECT_EQ(NearestName("bata1", {"data", "beta1"}), "beta1");
}

}  // namespace
}  // namespace forebay
