// Runs of which nobody wants more than their metrics: what they keep in memory is in no file.
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/device/device.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/faults/toy_run.h"
#include "forebay/train/files/run_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;
using testing::Pair;

// By name, with their bytes.
std::map<std::string, int64_t> FilesIn(const std::string& folder) {
  std::map<std::string, int64_t> files;
  if (!IsDirectory(folder)) return files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = std::filesystem::relative(entry.path(), folder);
    files[name] = entry.is_directory() ? 0 : static_cast<int64_t>(entry.file_size());
  }
  return files;
}

// Looks at the swap area after each step.
class Watcher : public SilentObserver {
 public:
  explicit Watcher(std::string swap, std::function<void()> on_step = {})
      : swap_(std::move(swap)), on_step_(std::move(on_step)) {}
  void OnPlan(const std::string&, const Json& json) override { plan = json; }
  void OnStep(const Json&) override {
    files = FilesIn(swap_);
    if (on_step_) on_step_();
  }
  Json plan;
  std::map<std::string, int64_t> files;

 private:
  const std::string swap_;
  const std::function<void()> on_step_;
};

class UnkeptRunTest : public testing::TestWithParam<ComputeDevice> {
 protected:
  void SetUp() override {
    if (GetParam() != ComputeDevice::kCuda) return;
    const auto device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
  }

  TrainOptions Kept(const std::string& name) const {
    TrainOptions options = task_.TightRun(folder_.Path(name));
    options.ram_bytes = int64_t{256} << 20;
    options.device = GetParam();
    options.eval_data = options.data;
    return options;
  }
  TrainOptions Unkept(const std::string& name, TierChoice weights, TierChoice state) const {
    TrainOptions options = Kept(name);
    options.durability = Durability::kNone;
    options.export_format = ExportFormat::kNone;
    options.weights_tier = weights;
    options.state_tier = state;
    return options;
  }
  static std::string SwapOf(const TrainOptions& options) { return JoinPath(options.out, "swap"); }

  // What does not depend on the clock or the disk, by line of metrics.jsonl.
  static std::vector<Json> ResultsOf(const TrainOptions& options, int64_t from_step = 0) {
    std::vector<Json> results;
    std::ifstream file(RunPaths(options.out).metrics);
    for (std::string line; std::getline(file, line);) {
      Json json = Json::parse(line);
      if (json["step"] < from_step) continue;
      Json& result = results.emplace_back();
      for (const char* key : {"step", "loss", "grad_norm", "eval_loss"}) {
        result[key] = json.value(key, Json());
      }
    }
    return results;
  }
  static int64_t MovedBytes(const TrainOptions& options) {
    int64_t bytes = 0;
    std::ifstream file(RunPaths(options.out).metrics);
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      bytes += json.value("read_bytes", int64_t{0}) + json.value("write_bytes", int64_t{0});
    }
    return bytes;
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path()};
};

TEST_P(UnkeptRunTest, HasNothingOnDiskAndTheSameBits) {
  const TrainOptions kept = Kept("kept");
  ASSERT_EQ(TrainToy(kept), absl::OkStatus());
  const std::vector<Json> expected = ResultsOf(kept);
  ASSERT_TRUE(expected.back()["eval_loss"].is_number());
  std::vector<TierChoice> tiers = {TierChoice::kHost};
  if (GetParam() == ComputeDevice::kCuda) tiers.push_back(TierChoice::kDevice);
  for (const TierChoice state : tiers) {
    TrainOptions options = Unkept("unkept", TierChoice::kHost, state);
    options.out += state == TierChoice::kHost ? "_host" : "_gpu";
    Watcher watcher(SwapOf(options));
    ASSERT_EQ(TrainToy(options, {}, watcher), absl::OkStatus());
    EXPECT_EQ(watcher.plan["nvme_bytes"], 0);
    EXPECT_EQ(watcher.plan["write_bytes_per_step"], 0);
    EXPECT_THAT(watcher.files, IsEmpty());
    EXPECT_FALSE(IsDirectory(SwapOf(options)));
    EXPECT_EQ(MovedBytes(options), 0);
    EXPECT_EQ(ResultsOf(options), expected);
  }
}

TEST_P(UnkeptRunTest, HasThePartOnDiskThatDoesNotStayInMemory) {
  const TrainOptions kept = Kept("kept");
  Watcher of_kept(SwapOf(kept));
  ASSERT_EQ(TrainToy(kept, {}, of_kept), absl::OkStatus());
  for (const char* part : {"weights.fbs", "state.fbs"}) {
    const bool is_weights = part == std::string("weights.fbs");
    const TrainOptions options = Unkept(part, is_weights ? TierChoice::kNvme : TierChoice::kHost,
                                        is_weights ? TierChoice::kHost : TierChoice::kNvme);
    Watcher watcher(SwapOf(options));
    ASSERT_EQ(TrainToy(options, {}, watcher), absl::OkStatus());
    EXPECT_THAT(watcher.files, ElementsAre(Key("creating"), Key("lock"), Key("owner.json"),
                                           Pair(part, of_kept.files[part] / 2)));
    EXPECT_EQ(watcher.plan["nvme_bytes"], of_kept.files[part] / 2);
    EXPECT_FALSE(IsDirectory(SwapOf(options))) << "it goes with the run";
    EXPECT_EQ(ResultsOf(options), ResultsOf(kept));
  }
}

TEST_P(UnkeptRunTest, IsNotResumedAndNotReplaced) {
  TrainOptions options = Unkept("unkept", TierChoice::kHost, TierChoice::kHost);
  options.stop_after = 2;
  const absl::Status stopped = TrainToy(options);
  EXPECT_EQ(ExitCodeOf(stopped), ExitCode::kInterrupted);
  EXPECT_THAT(MessageOf(stopped), HasSubstr("after step 2 of 3. Nothing of it is"));
  const absl::Status again = TrainToy(options);
  EXPECT_EQ(ExitCodeOf(again), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(again), HasSubstr("holds another run"));
  options.resume = true;
  const absl::Status resumed = TrainToy(options);
  EXPECT_EQ(ExitCodeOf(resumed), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(resumed), HasSubstr("left nothing of it"));
}

TEST_P(UnkeptRunTest, MayBeginWithTheStateOfAnother) {
  TrainOptions first = Kept("first");
  first.stop_after = 1;
  ASSERT_EQ(ExitCodeOf(TrainToy(first)), ExitCode::kInterrupted);
  TrainOptions kept = Kept("kept");
  kept.from = first.out;
  ASSERT_EQ(TrainToy(kept), absl::OkStatus());
  for (const TierChoice weights : {TierChoice::kHost, TierChoice::kNvme}) {
    TrainOptions options = Unkept("unkept", weights, TierChoice::kHost);
    options.out += std::to_string(static_cast<int>(weights));
    options.from = first.out;
    ASSERT_EQ(TrainToy(options), absl::OkStatus());
    EXPECT_EQ(ResultsOf(options), ResultsOf(kept));
    EXPECT_EQ(ResultsOf(options).back()["step"], kToySteps);
  }
}

TEST_P(UnkeptRunTest, LeavesWhatCleanTakesWhereItIsKilled) {
  const TrainOptions options = Unkept("unkept", TierChoice::kNvme, TierChoice::kHost);
  const std::string rest = folder_.Path("rest");
  Watcher watcher(SwapOf(options), [&] {
    std::filesystem::remove_all(rest);
    std::filesystem::copy(SwapOf(options), rest);
  });
  ASSERT_EQ(TrainToy(options, {}, watcher), absl::OkStatus());
  std::filesystem::rename(rest, SwapOf(options));
  const auto cleaned = CleanRun(options.out);
  ASSERT_TRUE(cleaned.ok()) << cleaned.status();
  EXPECT_EQ(cleaned->freed_bytes, watcher.files["weights.fbs"]);
  EXPECT_FALSE(IsDirectory(SwapOf(options)));
}

INSTANTIATE_TEST_SUITE_P(Devices, UnkeptRunTest,
                         testing::Values(ComputeDevice::kCpu, ComputeDevice::kCuda),
                         [](const auto& each) {
                           return each.param == ComputeDevice::kCpu ? "Cpu" : "Gpu";
                         });

}  // namespace
}  // namespace forebay
