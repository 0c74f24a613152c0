#include "forebay/train/files/committed_trainer.h"

#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/train/files/fingerprint.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const char kDigest[] = "0123456789abcdef0123456789abcdef";

Json Whole() {
  Json trainer = TrainerOf({.num_steps = 9, .settings = kDigest, .files = kDigest});
  trainer["rows_per_step"] = 8u;
  trainer["written_bytes"] = int64_t{1} << 40;
  trainer["seed"] = 18446744073709551615u;
  trainer["kernel"] = "a kernel";
  trainer["metrics"] = {{"step", 5}, {"loss", 0.5}, {"grad_norm", nullptr}, {"skipped", false}};
  trainer["updates"] = 5;
  trainer["loss_scaler"] = Json::object();
  trainer["skipped"] = true;  // of an earlier version
  return trainer;
}

TEST(CommittedTrainer, OfAnyRunIsAccepted) {
  EXPECT_EQ(CheckTrainer({5, Whole()}, "'swap'"), absl::OkStatus());
  EXPECT_EQ(CheckTrainer({9, Whole()}, "'swap'"), absl::OkStatus());
  EXPECT_EQ(CheckTrainer({0, Json::object()}, "'swap'"), absl::OkStatus()) << "forebay init --run";
  Json before_the_first = TrainerOf({.num_steps = 9, .settings = kDigest, .files = kDigest});
  before_the_first["metrics"] = nullptr;
  EXPECT_EQ(CheckTrainer({0, before_the_first}, "'swap'"), absl::OkStatus());
}

TEST(CommittedTrainer, EachFieldOfAWrongTypeOrRangeIsNamed) {
  const std::vector<std::pair<std::string, std::vector<Json>>> wrong = {
      {"num_steps", {nullptr, "9", 0, 4, -9, 9.5, 1e300, 9223372036854775808u, Json::array()}},
      {"written_bytes", {nullptr, "8", -8, 0.5, 1e300, Json::object()}},
      {"num_ranks", {nullptr, "2", 1, 0, -2, 2.5, Json::object()}},
      {"rows_per_step", {nullptr, "8", 0, -8, 0.5, int64_t{1} << 40, Json::object()}},
      {"seed", {nullptr, "0", -1, 0.5, 1e300}},
      {"settings", {nullptr, 1, "", "0123", std::string(32, 'g'), std::string(33, '0')}},
      {"files", {nullptr, 1, "", "0123", std::string(32, 'g'), Json::array()}},
      {"kernel", {nullptr, 1, true, Json::array(), Json::object()}},
      {"metrics", {1, "x", Json::array(), Json::object(), {{"step", -1}}, {{"step", "5"}}}},
      {"metrics", {{{"step", 5}, {"loss", "x"}}, {{"step", 5}, {"loss", Json::array()}}}},
      {"updates", {nullptr, "5", -1, 6, 0.5, 9223372036854775808u}},
      {"loss_scaler", {nullptr, 1, "x", Json::array()}},
      {"skipped", {nullptr, 0, "true"}}};
  for (const auto& [field, values] : wrong) {
    for (const Json& value : values) {
      Json trainer = Whole();
      trainer[field] = value;
      const absl::Status status = CheckTrainer({5, trainer}, "'swap'");
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << field << " " << value;
      EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("'" + field + "' is"), HasSubstr("'swap'")));
    }
  }
  for (const Json& trainer : {Json(), Json(3), Json("x"), Json::array()}) {
    EXPECT_EQ(ExitCodeOf(CheckTrainer({5, trainer}, "'swap'")), ExitCode::kCorrupt) << trainer;
  }
  for (const int64_t step : {int64_t{-1}, int64_t{10}, INT64_MIN, INT64_MAX}) {
    EXPECT_EQ(ExitCodeOf(CheckTrainer({step, Whole()}, "'swap'")), ExitCode::kCorrupt) << step;
  }
}

TEST(CommittedTrainer, OnlyTheRecordThatItWasMadeWithIsItsOwn) {
  const RunFiles files = {{"config.json", 3, kDigest}};
  const Json run = {{"fingerprint", {{"lr", "0.1"}}}, {"files", ToJson(files)}};
  const CommitInfo committed = {
      5, TrainerOf({9, FingerprintDigest(run["fingerprint"]), DigestOf(files)})};
  EXPECT_EQ(CheckIsOfCommit(run, "run.json", committed), absl::OkStatus());
  EXPECT_EQ(CheckIsOfCommit(Json::object(), "run.json", {0, Json::object()}), absl::OkStatus());
  for (const auto& [field, value] : std::vector<std::pair<std::string, Json>>{
           {"fingerprint", nullptr},
           {"fingerprint", Json::object()},
           {"fingerprint", {{"lr", "0.2"}}},
           {"files", nullptr},
           {"files", Json::array()},
           {"files", ToJson({{"config.json", 3, std::string(32, '0')}})},
           {"files", ToJson({{"other.json", 3, kDigest}})}}) {
    Json other = run;
    other[field] = value;
    const absl::Status status = CheckIsOfCommit(other, "run.json", committed);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << other;
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("'run.json'"), HasSubstr("'" + field + "'"),
                                         HasSubstr("--repair")));
    other.erase(field);
    EXPECT_EQ(ExitCodeOf(CheckIsOfCommit(other, "run.json", committed)), ExitCode::kCorrupt);
  }
}

}  // namespace
}  // namespace forebay
