// The memory of a training run's transfers is registered with the engine as long as it is there,
// and no longer.
#include <cerrno>
#include <memory>
#include <string>

#include "forebay/aio/faults/simulated_disk.h"
#include "forebay/base/errors.h"
#include "forebay/tests/aio/registering_port.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/engine/engine_run.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

struct Setting {
  const char* name;
  bool real = false;    // io_uring and a disk; else simulated
  bool roomy = false;   // gradients in RAM, fp32; else spilled
  bool in_ram = false;  // weights and state stay in RAM
};

class RegistrationTest : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (GetParam().real && !OpenIoUringPort().ok()) GTEST_SKIP() << "no io_uring here";
  }

  TrainOptions Options(const std::string& out) const {
    const std::string path = folder_.Path(out);
    TrainOptions options =
        GetParam().roomy || GetParam().in_ram ? task_.RoomyRun(path) : task_.TightRun(path);
    if (GetParam().in_ram) options.weights_tier = options.state_tier = TierChoice::kHost;
    // The export reads tensors piece by piece into memory of its own.
    options.export_format = ExportFormat::kNone;
    return options;
  }

  TrainEnvironment Environment() const {
    return On([this](const EngineOptions& options) {
      return CreateRegisteringEngine(options, log_, [] {
        return GetParam().real ? OpenIoUringPort()
                               : absl::StatusOr<std::unique_ptr<IoPort>>(MakeSimulatedDisk({}));
      });
    });
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path()};
  const std::shared_ptr<RegistrationLog> log_ = std::make_shared<RegistrationLog>();
};

TEST_P(RegistrationTest, EveryTransferOfARunIsFromOrToRegisteredMemory) {
  for (const bool resume : {false, true}) {
    SCOPED_TRACE(resume ? "resumed" : "new");
    TrainOptions options = Options("run");
    options.resume = resume;
    options.stop_after = resume ? 0 : 1;
    const absl::Status status = TrainToy(options, Environment());
    EXPECT_EQ(ExitCodeOf(status), resume ? ExitCode::kOk : ExitCode::kInterrupted) << status;
    EXPECT_GT(log_->num_inside(), 0);
    EXPECT_EQ(log_->longest_outside_bytes(), 8192) << "more than commit records and checksums";
    EXPECT_EQ(log_->registered_bytes(), 0) << "a registration outlives the run";
    EXPECT_EQ(log_->problem(), "");
  }
  EXPECT_EQ(NumEvents(folder_.Path("run"), "not registered"), 0);
}

TEST_P(RegistrationTest, WhereTheLimitIsTooLowOneLineSaysSoAndTheBitsAreTheSame) {
  ASSERT_TRUE(TrainToy(Options("expected")).ok());
  log_->refuse = [](std::span<std::byte> memory) { return memory.size() > 16384 ? ENOMEM : 0; };
  ASSERT_TRUE(TrainToy(Options("run"), Environment()).ok());
  EXPECT_EQ(NumEvents(folder_.Path("run"), "were not registered"), 1);
  EXPECT_EQ(NumEvents(folder_.Path("run"), "limit of locked memory"), 1);
  EXPECT_EQ(log_->problem(), "");
  const auto digest = [&](const std::string& out) {
    const auto engine = CreateThreadsEngine({});
    const auto store = OpenRunStore(folder_.Path(out), engine.get());
    return store.ok() ? StateDigest(**store).value_or("none") : MessageOf(store.status());
  };
  EXPECT_EQ(digest("run"), digest("expected"));
}

INSTANTIATE_TEST_SUITE_P(Runs, RegistrationTest,
                         testing::ValuesIn(std::vector<Setting>{
                             {"IoUring", true},
                             {"IoUringRoomy", true, true},
                             {"IoUringInRam", true, true, true},
                             {"SimulatedDisk"},
                             {"SimulatedDiskRoomy", false, true}}),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace forebay
