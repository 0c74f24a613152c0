#include "forebay/base/errors.h"
#include "forebay/model/files/safetensors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::string ErrorOfIndex(std::string_view text) {
  const absl::Status status = ParseSafetensorsIndex(text, "dir/index.json").status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), HasSubstr("dir/index.json"));
  return MessageOf(status);
}
std::string ErrorOfIndexFile(std::string_view file) {
  return ErrorOfIndex("{\"weight_map\":{\"a\":\"" + std::string(file) + "\"}}");
}

TEST(SafetensorsIndex, ReadsTheFileOfEveryTensor) {
  const auto index = ParseSafetensorsIndex(
      R"({"metadata":{"total_size":12.5,"more":[null]},"weight_map":{"b":"model-2.safetensors","a":"model-1.safetensors"}})",
      "i");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_THAT(*index,
              ElementsAre(Pair("a", "model-1.safetensors"), Pair("b", "model-2.safetensors")));
}
TEST(SafetensorsIndex, RefusesPathsThatLeaveTheFolder) {
  for (const char* file :
       {"../secret.safetensors", "/etc/x.safetensors", "a/b.safetensors", "..", ".", "",
        "..\\\\x.safetensors", ".hidden.safetensors", "a\\u0000.safetensors", "/.safetensors"}) {
    EXPECT_THAT(ErrorOfIndexFile(file), HasSubstr("not the bare name")) << file;
  }
}
TEST(SafetensorsIndex, RefusesFilesOfOtherKinds) {
  EXPECT_THAT(ErrorOfIndexFile("model.bin"), HasSubstr("not the bare name"));
}
TEST(SafetensorsIndex, RefusesNamesThatNoFileSystemTakes) {
  EXPECT_THAT(ErrorOfIndexFile(std::string(300, 'x') + ".safetensors"),
              HasSubstr("not the bare name"));
}
TEST(SafetensorsIndex, RefusesDuplicateTensors) {
  EXPECT_THAT(ErrorOfIndex(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})"),
              HasSubstr("'a' appears twice"));
}
TEST(SafetensorsIndex, RefusesTwoWeightMaps) {
  EXPECT_THAT(ErrorOfIndex(R"({"weight_map":{"a":"1.safetensors"},"weight_map":{}})"),
              HasSubstr("appears twice"));
}
TEST(SafetensorsIndex, RefusesAnIndexWithoutTensors) {
  EXPECT_THAT(ErrorOfIndex(R"({"weight_map":{}})"), HasSubstr("no weight_map"));
  EXPECT_THAT(ErrorOfIndex(R"({"metadata":{}})"), HasSubstr("no weight_map"));
}
TEST(SafetensorsIndex, RefusesWhatIsNoJson) {
  EXPECT_THAT(ErrorOfIndex(""), HasSubstr("byte 0"));
  EXPECT_THAT(ErrorOfIndex(R"({"weight_map":{"a":"1.safetensors"}} x)"), HasSubstr("byte 37"));
  EXPECT_THAT(ErrorOfIndex(R"({"weight_map":{"a":1}})"), HasSubstr("a string is expected"));
  EXPECT_THAT(ErrorOfIndex("{\"x\":" + std::string(100000, '[')), HasSubstr("nested too deeply"));
}

}  // namespace
}  // namespace forebay
