#include "forebay/aio/io_profile.h"

#include <functional>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

DeviceProfile Sample() {
  DeviceProfile device;
  device.directory = "/nvme";
  device.key = {"259:1", "uuid:0123456789abcdef0123456789abcdef", "6.1.0-18-amd64"};
  device.engine = EngineKind::kLibaio;
  device.block_bytes = 1 << 20;
  device.inflight_read_bytes = 8 << 20;
  device.inflight_write_bytes = 4 << 20;
  device.burst_bytes = 32 << 20;
  device.read_bytes_per_s = 6.4e9;
  device.write_bytes_per_s = 5.1e9;
  device.mixed_bytes_per_s = 5.5e9;
  device.flush_ms = 1.25;
  device.weight = 6.4;
  return device;
}

Json SampleJson() {
  return ToJson(IoProfile{{Sample()}}, "0.1.0");
}

absl::Status ParseError(const Json& json) {
  return ParseIoProfile(json.dump(), "io.json").status();
}

TEST(IoProfile, IsReadBackAsItWasWritten) {
  IoProfile written{{Sample(), Sample()}};
  written.devices[1].key.device = "0:45";
  written.devices[1].engine = EngineKind::kBuffered;
  written.devices[1].flush_ms = 0;
  const absl::StatusOr<IoProfile> read =
      ParseIoProfile(ToJson(written, "0.1.0").dump(2), "io.json");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->devices.size(), 2u);
  EXPECT_EQ(ToJson(*read, "0.1.0"), ToJson(written, "0.1.0"));
  EXPECT_EQ(read->devices[0].key, Sample().key);
  EXPECT_EQ(read->devices[0].engine, EngineKind::kLibaio);
  EXPECT_EQ(read->devices[0].inflight_write_bytes, 4 << 20);
  EXPECT_EQ(read->devices[0].mixed_bytes_per_s, 5.5e9);
}

TEST(IoProfile, EveryKeyIsRequiredAndNamedWhenItIsMissing) {
  const Json sample = SampleJson();
  for (const auto& [key, value] : sample.items()) {
    Json json = SampleJson();
    json.erase(key);
    EXPECT_EQ(ExitCodeOf(ParseError(json)), ExitCode::kBadInput) << key;
    EXPECT_THAT(MessageOf(ParseError(json)), HasSubstr("'" + key + "' is missing"));
  }
  for (const auto& [key, value] : sample["devices"][0].items()) {
    Json json = SampleJson();
    json["devices"][0].erase(key);
    EXPECT_EQ(ExitCodeOf(ParseError(json)), ExitCode::kBadInput) << key;
    EXPECT_THAT(MessageOf(ParseError(json)), HasSubstr("'devices[0]." + key + "' is missing"));
  }
}

TEST(IoProfile, UnknownKeysAreNamed) {
  Json json = SampleJson();
  json["comment"] = "mine";
  EXPECT_THAT(MessageOf(ParseError(json)), HasSubstr("'comment' is not known"));
  json = SampleJson();
  json["devices"][0]["blocks"] = 1;
  EXPECT_THAT(MessageOf(ParseError(json)), HasSubstr("'devices[0].blocks' is not known"));
}

TEST(IoProfile, ImpossibleValuesAreNamed) {
  struct Case {
    const char* key;
    Json value;
  };
  for (const Case& bad : std::vector<Case>{{"directory", ""},
                                           {"directory", 1},
                                           {"st_dev", nullptr},
                                           {"engine", "auto"},
                                           {"engine", "spdk"},
                                           {"block", 0},
                                           {"block", -4096},
                                           {"block", 1000},
                                           {"block", 1048576.0},
                                           {"block", int64_t{1} << 31},
                                           {"block", UINT64_MAX},
                                           {"block", "1M"},
                                           {"inflight_read_bytes", 4096},
                                           {"inflight_write_bytes", 4096},
                                           {"burst_bytes", 0},
                                           {"read_bw", 0},
                                           {"read_bw", -1},
                                           {"write_bw", 1e300},
                                           {"mixed_bw", "fast"},
                                           {"flush_ms", -0.5},
                                           {"weight", 0}}) {
    Json json = SampleJson();
    json["devices"][0][bad.key] = bad.value;
    const absl::Status status = ParseError(json);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput) << bad.key << " " << bad.value;
    EXPECT_THAT(MessageOf(status), HasSubstr(std::string("'devices[0].") + bad.key + "' is"))
        << bad.value;
    EXPECT_THAT(MessageOf(status), HasSubstr("swap-bench tune"));
  }
}

TEST(IoProfile, OtherDocumentsAreRefused) {
  for (const char* text : {"", "{", "[]", "1", "null", "\"io.json\"", "{}"}) {
    EXPECT_EQ(ExitCodeOf(ParseIoProfile(text, "io.json").status()), ExitCode::kBadInput) << text;
  }
  Json json = SampleJson();
  json["format"] = 2;
  EXPECT_THAT(MessageOf(ParseError(json)), HasSubstr("another version"));
  json = SampleJson();
  json["devices"] = Json::array();
  EXPECT_THAT(MessageOf(ParseError(json)), HasSubstr("'devices' is no list"));
  json["devices"] = Json::array({1});
  EXPECT_THAT(MessageOf(ParseError(json)), HasSubstr("'devices[0]' is no object"));
}

TEST(IoProfile, AFileThatIsNotThereSaysHowToMakeIt) {
  const absl::Status status = ReadIoProfile("/nonexistent/io.json").status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), HasSubstr("swap-bench tune DIR --out=/nonexistent/io.json"));
}

TEST(FindProfile, TakesTheDeviceWithTheSameKey) {
  IoProfile profile{{Sample(), Sample()}};
  profile.devices[0].key.device = "8:1";
  std::string why_not;
  EXPECT_EQ(FindProfile(profile, Sample().key, why_not), &profile.devices[1]);
}

TEST(FindProfile, SaysWhatDiffers) {
  const IoProfile profile{{Sample()}};
  std::string why_not;
  DeviceKey key = Sample().key;
  key.kernel = "6.18.44";
  EXPECT_EQ(FindProfile(profile, key, why_not), nullptr);
  EXPECT_THAT(why_not, HasSubstr("kernel 6.1.0-18-amd64, and this is 6.18.44"));
  key = Sample().key;
  key.file_system = "fsid:00";
  EXPECT_EQ(FindProfile(profile, key, why_not), nullptr);
  EXPECT_THAT(why_not, HasSubstr("no measurement of the device 259:1 (fsid:00)"));
}

TEST(AskDeviceKey, IsTheSameForAFolderAndWhatWillBeInIt) {
  const TemporaryFolder folder;
  const absl::StatusOr<DeviceKey> key = AskDeviceKey(folder.path());
  ASSERT_TRUE(key.ok()) << key.status();
  EXPECT_THAT(key->device, testing::MatchesRegex("[0-9]+:[0-9]+"));
  EXPECT_THAT(key->file_system, testing::MatchesRegex("(uuid|fsid):[0-9a-f]+"));
  EXPECT_FALSE(key->kernel.empty());
  EXPECT_EQ(*AskDeviceKey(folder.Path("a/b/c")), *key);
  EXPECT_NE(*AskDeviceKey("/proc"), *key);
}

TEST(FsUuidText, ZerosAreNoIdentity) {
  EXPECT_EQ(FsUuidText(std::vector<uint8_t>{0, 0x1a}), "uuid:001a");
  EXPECT_EQ(FsUuidText(std::vector<uint8_t>(16, 0)), "");
  EXPECT_EQ(FsUuidText({}), "");
}

TEST(WithProfile, SetsBlockCapsAndBurstAlone) {
  EngineOptions options;
  options.num_threads = 7;
  const EngineOptions tuned = WithProfile(options, Sample());
  EXPECT_EQ(tuned.num_threads, 7);
  EXPECT_EQ(tuned.engine, EngineKind::kAuto);
  EXPECT_EQ(tuned.block_bytes, 1 << 20);
  EXPECT_EQ(tuned.max_in_flight_bytes, 8 << 20);
  EXPECT_EQ(tuned.max_writing_bytes, 4 << 20);
  EXPECT_EQ(tuned.burst_bytes, 32 << 20);
}

}  // namespace
}  // namespace forebay
