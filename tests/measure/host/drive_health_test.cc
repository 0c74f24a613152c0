#include "forebay/measure/host/drive_health.h"

#include <array>
#include <cstring>

#include "gtest/gtest.h"

namespace forebay {
namespace {

std::array<std::byte, 512> Log(unsigned warning) {
  std::array<std::byte, 512> log = {};
  log[0] = std::byte(warning);
  log[3] = std::byte(98);  // spare
  log[4] = std::byte(5);   // of which 5 are the least
  log[5] = std::byte(7);   // used
  const uint64_t units_written = 2'000'000, media_errors = 3;
  std::memcpy(&log[48], &units_written, 8);
  std::memcpy(&log[160], &media_errors, 8);
  return log;
}

TEST(ParseHealthLog, ReadsWhatTheSpecificationPutsThere) {
  const DriveHealth expected = {.used_percent = 7,
                                .spare_percent = 98,
                                .least_spare_percent = 5,
                                .written_bytes = 1'024'000'000'000,
                                .num_media_errors = 3};
  EXPECT_EQ(ParseHealthLog(Log(0)), expected);
}

TEST(ParseHealthLog, HeatIsNoTroubleOfTheMedium) {
  EXPECT_FALSE(ParseHealthLog(Log(0b10))->reports_trouble);
  for (const unsigned bit : {0u, 2u, 3u, 4u}) {
    EXPECT_TRUE(ParseHealthLog(Log(1u << bit))->reports_trouble) << bit;
  }
}

TEST(ParseHealthLog, RefusesAShortLog) {
  const std::array<std::byte, 512> log = Log(0);
  EXPECT_EQ(ParseHealthLog(std::span(log).first(511)), std::nullopt);
}

TEST(AskDriveHealth, IsSilentAboutWhatIsNoNvmeDrive) {
  EXPECT_EQ(AskDriveHealth("/dev/null"), std::nullopt);
  EXPECT_EQ(AskDriveHealth("/there/is/no/such/drive"), std::nullopt);
}

}  // namespace
}  // namespace forebay
