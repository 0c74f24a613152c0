#include "forebay/train/report/event_file.h"

#include "forebay/train/report/report_events.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

std::string Bytes(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) bytes += static_cast<char>(value);
  return bytes;
}

// Test vectors of RFC 3720, B.4.
TEST(Crc32c, OfKnownTexts) {
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(Crc32c(""), 0U);
}

TEST(EventFile, BeginsWithItsVersion) {
  const std::string file = EventFile(1.0).contents();
  const std::string event = Bytes({0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0x1a, 13}) + "brain.Event:2";
  ASSERT_EQ(file.size(), 8 + 4 + event.size() + 4);
  EXPECT_EQ(file.substr(0, 8), Bytes({24, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(file.substr(12, 24), event);
}

TEST(EventFile, HasScalarsByTag) {
  EventFile file(1.0);
  const size_t begin = file.contents().size();
  file.Add(1.0, 300, {{"a", 1.5}});
  const std::string event = Bytes({0x09, 0,  0,    0, 0,    0, 0,   0xf0, 0x3f, 0x10, 0xac, 2,
                                   0x2a, 10, 0x0a, 8, 0x0a, 1, 'a', 0x15, 0,    0,    0xc0, 0x3f});
  EXPECT_EQ(file.contents().substr(begin + 12, event.size()), event);
  EXPECT_EQ(file.contents().size(), begin + 12 + event.size() + 4);
}

TEST(RunEvents, LeavesOutWhatIsNoNumber) {
  MetricsTable metrics;
  metrics.Add(1, {{"loss", nullptr}, {"lr", 1e300}, {"waits", {{"state", 0.5}}}});
  const std::string events = RunEvents(metrics, 10);
  EXPECT_THAT(events, testing::HasSubstr("waits/state"));
  EXPECT_THAT(events, testing::Not(testing::HasSubstr("loss")));
  EXPECT_THAT(events, testing::Not(testing::HasSubstr("lr")));
}

}  // namespace
}  // namespace forebay
