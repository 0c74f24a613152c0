// --set=activations_tier=nvme: the same bits in less memory, whatever else a run does, and nothing
// lost if the disk gives back something else.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "forebay/aio/disk_calls.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kBlocks = 6;
// All but three of seven.
constexpr int64_t kSpilled = 4;

class PlanObserver : public SilentObserver {
 public:
  void OnPlan(const std::string& text, const Json& json) override {
    plan_text = text;
    plan = json;
  }
  void OnStep(const Json& metrics) override { steps.push_back(metrics); }
  std::string plan_text;
  Json plan;
  std::vector<Json> steps;
};

// Another bit in what is read from the scratch area.
class FlippingDisk : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    const int64_t result = SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
    if (kind == IoKind::kRead && path.ends_with(kScratchName) && --reads_left == 0) {
      buffer[buffer.size() / 2] ^= std::byte{16};
    }
    return result;
  }
  int reads_left = 6;  // one I/O thread; the second step's
};

struct Variant {
  const char* name;
  TrainOptions (ToyTask::*options)(const std::string& out) const;
  void (*change)(TrainOptions& options) = nullptr;
  bool delays = false;
};
void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.name;
}

class SpilledRunTest : public testing::TestWithParam<Variant> {
 protected:
  TrainOptions Options(const std::string& name, ActivationsTier tier) const {
    TrainOptions options = (task_.*GetParam().options)(folder_.Path(name));
    if (GetParam().change != nullptr) GetParam().change(options);
    if (GetParam().delays) task_.Delay(options);
    options.activations_tier = tier;
    return options;
  }
  ToyResult MustGive(const std::string& name) const {
    const auto result = ResultOf(folder_.Path(name));
    EXPECT_TRUE(result.ok()) << result.status();
    return *result;
  }

  const TemporaryFolder folder_{FolderInRam()};
  const ToyTask task_{folder_.path(), kBlocks};
};

TEST_P(SpilledRunTest, GivesTheSameBitsWithLessMemoryAndMovesWhatThePlanSays) {
  PlanObserver in_ram;
  PlanObserver on_disk;
  ASSERT_EQ(TrainToy(Options("ram", ActivationsTier::kRam), {}, in_ram), absl::OkStatus());
  ASSERT_EQ(TrainToy(Options("nvme", ActivationsTier::kNvme), {}, on_disk), absl::OkStatus());
  EXPECT_EQ(MustGive("nvme"), MustGive("ram"));
  // Two rows of 16 tokens of 32 floats are one block.
  constexpr int64_t kMoved = kSpilled * 4096;
  EXPECT_EQ(in_ram.plan["activation_area_bytes"], 0);
  EXPECT_EQ(on_disk.plan["activation_area_bytes"], kMoved);
  for (const Json& term : on_disk.plan["terms"]) {
    if (term["name"] != "activation checkpoints") continue;
    EXPECT_EQ(term["host_bytes"], 3 * 4096);
    EXPECT_EQ(term["nvme_bytes"], kMoved);
  }
  ASSERT_EQ(on_disk.steps.size(), static_cast<size_t>(kToySteps));
  // Where memory is short, gradients take what the activations leave.
  const bool lie_alike = in_ram.plan["placement"] == on_disk.plan["placement"];
  if (GetParam().options == &ToyTask::RoomyRun) {
    EXPECT_TRUE(lie_alike);
  }
  if (!lie_alike || GetParam().delays) return;
  const auto more_planned = [&](const char* key) {
    return on_disk.plan[key].get<int64_t>() - in_ram.plan[key].get<int64_t>();
  };
  EXPECT_EQ(more_planned("read_bytes_per_step"), kMoved);
  EXPECT_EQ(more_planned("write_bytes_per_step"), kMoved);
  // Not what is read: it depends on time how far weights are read ahead.
  for (size_t i = 0; i < on_disk.steps.size(); ++i) {
    const auto more = [&](const char* key) {
      return on_disk.steps[i][key].get<int64_t>() - in_ram.steps[i][key].get<int64_t>();
    };
    EXPECT_EQ(more("host_peak_bytes"), -kSpilled * 4096);
    const int num_passes = on_disk.steps[i].value("recomputed", false) ? 2 : 1;
    EXPECT_EQ(more("write_bytes"), num_passes * kMoved);
  }
}

TEST_P(SpilledRunTest, IsChosenWhereRamHasNoRoomForThem) {
  ASSERT_EQ(TrainToy(Options("ram", ActivationsTier::kRam)), absl::OkStatus());
  const auto fits = [&](int64_t ram_bytes) {
    TrainOptions options = Options("run", ActivationsTier::kRam);
    options.ram_bytes = ram_bytes;
    options.dry_run = true;
    return TrainToy(options).ok();
  };
  int64_t least = Options("run", ActivationsTier::kRam).ram_bytes, too_little = 0;
  while (least - too_little > 1) {
    const int64_t middle = (least + too_little) / 2;
    (fits(middle) ? least : too_little) = middle;
  }
  TrainOptions options = Options("run", ActivationsTier::kAuto);
  options.ram_bytes = too_little;
  PlanObserver observer;
  ASSERT_EQ(TrainToy(options, {}, observer), absl::OkStatus());
  EXPECT_EQ(observer.plan["activation_area_bytes"], kSpilled * 4096);
  EXPECT_EQ(MustGive("run"), MustGive("ram"));
}

TEST_P(SpilledRunTest, MayChangeTheTierWhenItGoesOn) {
  ASSERT_EQ(TrainToy(Options("ram", ActivationsTier::kRam)), absl::OkStatus());
  for (const ActivationsTier first : {ActivationsTier::kRam, ActivationsTier::kNvme}) {
    TrainOptions options = Options("run", first);
    options.stop_after = 1;
    ASSERT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
    options.resume = true;
    options.activations_tier =
        first == ActivationsTier::kRam ? ActivationsTier::kNvme : ActivationsTier::kRam;
    ASSERT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kInterrupted);
    options.stop_after = 0;
    options.activations_tier = first;
    ASSERT_EQ(TrainToy(options), absl::OkStatus());
    EXPECT_EQ(MustGive("run"), MustGive("ram"));
    ASSERT_TRUE(RemoveTree(options.out).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Variants, SpilledRunTest,
    testing::Values(Variant{"Tight", &ToyTask::TightRun}, Variant{"Roomy", &ToyTask::RoomyRun},
                    Variant{"TwoFolders", &ToyTask::StripedRun},
                    Variant{"Delayed", &ToyTask::TightRun, nullptr, true},
                    // Its steps are clipped, and computed a second time.
                    Variant{"Speculative", &ToyTask::TightRun,
                            [](TrainOptions& o) {
                              o.gradients = GradientChoice::kSpeculate;
                              o.ram_bytes += int64_t{1} << 20;
                            }},
                    Variant{"OneSlot", &ToyTask::TightRun,
                            [](TrainOptions& o) { o.durability = Durability::kNone; }},
                    Variant{"Fp16", &ToyTask::TightRun,
                            [](TrainOptions& o) {
                              o.precision = cpu::Precision::kFp16;
                              o.layout = Layout::kFp16;
                              o.grad_dtype = DType::kF16;
                              o.ram_bytes = LeastRam(o);  // more, without native bf16
                            }}),
    [](const auto& c) { return std::string(c.param.name); });

// Gradients are in RAM, so that activations alone are in the scratch area.
TEST(SpilledRun, ADamagedByteEndsTheRunWhichGoesOnFromItsLastCommit) {
  const TemporaryFolder folder(FolderInRam());
  const ToyTask task(folder.path(), kBlocks);
  ASSERT_EQ(TrainToy(task.RoomyRun(folder.Path("undisturbed"))), absl::OkStatus());
  TrainOptions options = task.RoomyRun(folder.Path("run"));
  options.activations_tier = ActivationsTier::kNvme;
  options.io_threads = 1;
  FlippingDisk disk;
  const absl::Status status = TrainToy(options, OnDisk(&disk));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("activation of layer 'layers."),
                                       HasSubstr(kScratchName), HasSubstr("resume")));
  EXPECT_LE(disk.reads_left, 0);
  ExpectResumesTo(*ResultOf(folder.Path("undisturbed")), options, status);
}

}  // namespace
}  // namespace forebay
