// run.json and its copy: what is read, from which of them, and what is refused.
#include <filesystem>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/train/files/run_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class RunJsonTest : public testing::Test {
 protected:
  RunJsonTest() { EXPECT_EQ(WriteRunJson(paths_, whole_), absl::OkStatus()); }
  static void Write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  }

  const TemporaryFolder folder_;
  const std::string run_ = folder_.path();
  const RunPaths paths_{run_};
  const Json whole_ = {{"format", kRunFormat},        {"state", kRunReady},
                       {"stores", {"swap", "/fast"}}, {"store_uuid", std::string(32, 'a')},
                       {"model", "source"},           {"fingerprint", {{"lr", "0.1"}}},
                       {"files", Json::array()}};
};

TEST_F(RunJsonTest, IsThereTwiceAndReadFromTheFirst) {
  std::string note;
  EXPECT_EQ(*ReadRunJson(run_, &note), whole_);
  EXPECT_EQ(note, "");
  EXPECT_EQ(*ReadRunJsonAt(paths_.run_json_copy), whole_);
  EXPECT_THAT(*StoreDirectoriesOf(run_), testing::ElementsAre(JoinPath(run_, "swap"), "/fast"));
  EXPECT_EQ(ModelOf(run_, whole_), JoinPath(run_, "source"));
}

TEST_F(RunJsonTest, ThatIsLostOrDamagedIsReadFromItsCopyWithANote) {
  for (const char* text : {"", "{", "[]", "{\"format\": 2}", "lost"}) {
    Write(paths_.run_json, text);
    if (std::string(text) == "lost") std::filesystem::remove(paths_.run_json);
    EXPECT_TRUE(IsRunFolder(run_));
    std::string note;
    const auto json = ReadRunJson(run_, &note);
    ASSERT_TRUE(json.ok()) << json.status();
    EXPECT_EQ(*json, whole_);
    EXPECT_THAT(note, AllOf(HasSubstr(paths_.run_json), HasSubstr(paths_.run_json_copy),
                            HasSubstr("--repair")));
  }
}

// A copy says nothing of a run that another version goes on with.
TEST_F(RunJsonTest, OfAnotherFormatIsNotReadFromItsCopy) {
  Json other = whole_;
  other["format"] = kRunFormat + 1;
  Write(paths_.run_json, other.dump());
  const absl::Status status = ReadRunJson(run_).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("has format"));
}

TEST_F(RunJsonTest, EachFieldOfAWrongTypeOrRangeIsNamed) {
  std::filesystem::remove(paths_.run_json_copy);
  const Json entry = {{"name", "a"}, {"bytes", 1u}, {"xxh3_128", std::string(32, '0')}};
  Json escaping = entry, negative = entry;
  escaping["name"] = "../a";
  negative["bytes"] = -1;
  const std::vector<std::pair<std::string, std::vector<Json>>> wrong = {
      {"state", {nullptr, 3, "", "Ready", true, Json::array()}},
      {"stores", {nullptr, "swap", Json::array(), {3}, {""}, {std::string("a\0b", 3)}, {nullptr}}},
      {"stores", {Json(std::vector<std::string>(65, "swap"))}},
      {"store_uuid", {nullptr, 3, "", "0", std::string(32, 'A'), std::string(33, '0')}},
      {"model", {nullptr, 3, Json::array(), std::string("a\0b", 3)}},
      {"fingerprint", {3, "x", true, Json::array()}},
      {"files", {3, "x", Json::object(), {3}, {escaping}, {negative}, {Json::object()}}}};
  for (const auto& [field, values] : wrong) {
    for (const Json& value : values) {
      Json json = whole_;
      json[field] = value;
      Write(paths_.run_json, json.dump());
      const absl::Status status = ReadRunJson(run_).status();
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << json;
      EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("'" + field + "' is"), HasSubstr("run.json")));
    }
    if (field == "fingerprint" || field == "files") continue;
    Json json = whole_;
    json.erase(field);
    Write(paths_.run_json, json.dump());
    EXPECT_EQ(ExitCodeOf(ReadRunJson(run_).status()), ExitCode::kCorrupt) << field;
  }
}

TEST_F(RunJsonTest, IsNotWrittenThroughALink) {
  std::filesystem::remove_all(paths_.files);
  ASSERT_TRUE(MakeDirectories(folder_.Path("elsewhere")).ok());
  std::filesystem::create_symlink(folder_.Path("elsewhere"), paths_.files);
  EXPECT_EQ(ExitCodeOf(WriteRunJson(paths_, whole_)), ExitCode::kUsage);
  EXPECT_THAT(*ListFolder(folder_.Path("elsewhere")), testing::IsEmpty());
}

}  // namespace
}  // namespace forebay
