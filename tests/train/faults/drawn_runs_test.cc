// The master test: runs of one task whose settings are drawn, all that must not change a bit, with
// stops and crashes between sessions of other settings. All of them give the same digests.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/child_process.h"
#include "forebay/tests/train/drawn_options.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/train/options/option_table.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int kBlocks = 6;
constexpr int kStreamedLayers = kBlocks + 2;

// The process ends at the call of this number to the disk, without another word.
class CrashingDisk : public SystemDiskCalls {
 public:
  explicit CrashingDisk(int64_t calls_left) : calls_left_(calls_left) {}
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (calls_left_.fetch_sub(1) == 0) ::kill(::getpid(), SIGKILL);
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }

 private:
  std::atomic<int64_t> calls_left_;
};

// The settings that a store is made with.
void DrawStore(Draw& draw, TrainOptions& options) {
  options.tile_elems = draw.OneOf<int64_t>({2048, 4096, 6144, 65536});
  if (draw.OneIn(3)) {
    options.nvme = {JoinPath(options.out, "swap"), JoinPath(options.out, "more")};
    options.nvme_weights = {static_cast<double>(draw.Between(1, 3)), 1};
  }
  options.durability = draw.OneOf({Durability::kAuto, Durability::kNone, Durability::kStep});
}

// Each session may have these otherwise.
void DrawSession(Draw& draw, TrainOptions& options) {
  options.engine = draw.OneOf(
      {EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads, EngineKind::kBuffered});
  options.io_threads = static_cast<int>(draw.Between(1, 4));
  options.threads = static_cast<int>(draw.Between(1, 3));
  options.update_threads = static_cast<int>(draw.Between(0, 2));
  if (options.durability != Durability::kNone) {
    options.durability = draw.OneOf({Durability::kAuto, Durability::kStep});
  }
  const auto tier = [&] {
    return draw.OneOf({TierChoice::kAuto, TierChoice::kHost, TierChoice::kNvme});
  };
  options.weights_tier = tier();
  options.state_tier = tier();
  options.gradients_tier = draw.OneOf({TierChoice::kAuto, TierChoice::kAuto, TierChoice::kNvme});
  options.activations_tier =
      draw.OneOf({ActivationsTier::kAuto, ActivationsTier::kRam, ActivationsTier::kNvme});
  options.recompute = draw.OneOf<std::optional<Recompute>>(
      {std::nullopt, Recompute::kAll, Recompute::kAttention, Recompute::kNone});
  const bool computes_again = options.recompute.value_or(Recompute::kNone) != Recompute::kNone;
  options.recompute_layers = computes_again ? draw.Between(0, kBlocks) : 0;
  options.number_checkpoints = MayHaveSegments(options) ? draw.Between(0, kBlocks) : 0;
  options.commit_every = 0;
  options.gradients = GradientChoice::kAuto;
  options.speculate_layers = 0;
  const bool has_two =
      options.durability == Durability::kAuto || options.durability == Durability::kStep;
  if (has_two && draw.OneIn(2)) {
    options.gradients = GradientChoice::kSpeculate;
    options.gradients_tier = TierChoice::kAuto;
    options.speculate_layers = draw.Between(0, kStreamedLayers);
  } else if (has_two) {
    options.commit_every = draw.Between(0, 3);
  }
  constexpr int64_t kAllOfTheModel = int64_t{2} << 20;
  options.ram_bytes = LeastRam(options) + (draw.OneIn(3) ? 0 : draw.Between(0, kAllOfTheModel));
}

std::string Describe(const TrainOptions& options) {
  std::string text;
  for (const char* const name : {"ram",
                                 "nvme",
                                 "tile_elems",
                                 "engine",
                                 "io_threads",
                                 "threads",
                                 "update_threads",
                                 "weights_tier",
                                 "state_tier",
                                 "activations_tier",
                                 "activations_dtype",
                                 "recompute",
                                 "recompute_layers",
                                 "number_checkpoints",
                                 "gradients",
                                 "speculate_layers",
                                 "durability",
                                 "commit_every",
                                 "stop_after",
                                 "resume"}) {
    text += fmt::format(" {}={}", name, OptionText(options, name));
  }
  return text + (options.gradients_tier == TierChoice::kNvme ? " gradients on NVMe" : "");
}

class DrawnRuns : public testing::Test {
 protected:
  void RunAll(int64_t num_runs) {
    std::printf("seed %llu\n", static_cast<unsigned long long>(FaultSeed()));
    for (const DType activations : {DType::kF32, DType::kBF16}) {
      TrainOptions options = task_.TightRun(folder_.Path("expected"));
      options.activations_dtype = activations;
      ASSERT_EQ(TrainToy(options), absl::OkStatus());
      const absl::StatusOr<ToyResult> result = ResultOf(options.out);
      ASSERT_TRUE(result.ok()) << result.status();
      expected_[activations] = *result;
      ASSERT_TRUE(RemoveTree(options.out).ok());
    }
    EXPECT_NE(expected_[DType::kF32].model, expected_[DType::kBF16].model);
    // So many, and on until there was a crash and a stop.
    const auto is_done = [&](int64_t number) {
      return number >= num_runs && num_crashes_ > 0 && num_stops_ > 0;
    };
    for (int64_t number = 0; !is_done(number) && number < 10 * num_runs; ++number) {
      const std::string name = std::to_string(number);
      if (!OnlyCase().empty() && OnlyCase() != name) continue;
      SCOPED_TRACE(RepeatCommand(name));
      ASSERT_NO_FATAL_FAILURE(RunOne(static_cast<uint64_t>(number)));
      if (HasFailure()) return;
    }
    EXPECT_TRUE(!OnlyCase().empty() || num_crashes_ > 0);
    EXPECT_TRUE(!OnlyCase().empty() || num_stops_ > 0);
  }

 private:
  void RunOne(uint64_t number) {
    Draw draw(FaultSeed(), number);
    TrainOptions options = task_.TightRun(folder_.Path("run"));
    DrawStore(draw, options);
    options.activations_dtype = draw.OneIn(3) ? DType::kBF16 : DType::kF32;
    const ToyResult& expected = expected_[options.activations_dtype];
    std::string sessions;
    for (int64_t left = draw.Between(0, 2); left >= 0; --left) {
      DrawSession(draw, options);
      const bool crashes = left > 0 && options.durability != Durability::kNone && draw.OneIn(2);
      options.stop_after = left > 0 && !crashes ? draw.Between(1, 2) : 0;
      const int64_t calls = draw.Between(1, 900);
      sessions += fmt::format(
          "\n{}{}", crashes ? fmt::format("crash at {}:", calls) : "session:", Describe(options));
      SCOPED_TRACE(sessions);
      if (crashes) {
        ASSERT_NO_FATAL_FAILURE(CrashAt(calls, options));
        continue;
      }
      const absl::Status status = TrainToyOn(options);
      num_stops_ += status.ok() ? 0 : 1;
      // A session may find the end already there, by the crash before.
      ASSERT_TRUE(status.ok() || (left > 0 && ExitCodeOf(status) == ExitCode::kInterrupted))
          << status;
    }
    SCOPED_TRACE(sessions);
    const absl::StatusOr<ToyResult> result = ResultOf(options.out);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->state, expected.state);
    EXPECT_EQ(result->model, expected.model);
    ASSERT_TRUE(RemoveTree(options.out).ok());
  }

  // Or the run ends before: then nothing is left to do.
  void CrashAt(int64_t calls, const TrainOptions& options) {
    const ChildEnd end = RunChild([&](int /*report*/) {
      CrashingDisk disk(calls);
      TrainOptions resumed = options;
      const absl::Status status = TrainToyOn(resumed, OnDisk(&disk));
      if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      ::_exit(status.ok() ? 0 : 1);
    });
    ASSERT_TRUE(WIFSIGNALED(end.status) || WEXITSTATUS(end.status) == 0) << end.status;
    num_crashes_ += WIFSIGNALED(end.status) ? 1 : 0;
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path(), kBlocks};
  std::map<DType, ToyResult> expected_;  // by that of the activations
  int64_t num_crashes_ = 0, num_stops_ = 0;
};

TEST_F(DrawnRuns, GiveOneDigest) {
  RunAll(kUnderSanitizer ? 8 : 30);
}

TEST_F(DrawnRuns, SlowGiveOneDigest) {
  RunAll(2000);
}

}  // namespace
}  // namespace forebay
