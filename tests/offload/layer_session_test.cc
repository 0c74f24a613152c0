// The master test of the engine for what is no decoder: the same bits whatever tiers, tiles,
// threads, kinds of update, ways of handing gradients over, commits, stops and crashes.
#include "forebay/offload/layer_session.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/errors.h"
#include "forebay/collective/communicator.h"
#include "forebay/step/layer_gradient.h"
#include "forebay/tests/collective/rank_group.h"
#include "forebay/tests/offload/module_run.h"
#include "forebay/tests/optimizer/shut_state_disk.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kSteps = 5;

// The clip that every second step exceeds.
double MiddleClip() {
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), SmallSettings());
  EXPECT_EQ(run.Open(), absl::OkStatus());
  std::vector<double> norms;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run.session().BeginStep(run.UpdateOfStep()), absl::OkStatus());
    const auto gradients = run.RunPass();
    EXPECT_TRUE(gradients.ok()) << gradients.status();
    norms.push_back(gradients->norm);
    EXPECT_EQ(run.session().Update(run.KeptOfStep()), absl::OkStatus());
  }
  EXPECT_GT(norms[0], 1.5 * norms[1]);
  return (norms[0] + norms[1]) / 2;
}

// The same run whose process ends without a word after each step.
std::string DigestWithKills(const ModuleSettings& settings) {
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings);
  EXPECT_EQ(run.Open(), absl::OkStatus());
  for (int64_t step = 1; step <= kSteps; ++step) {
    EXPECT_EQ(run.RunUntil(step), absl::OkStatus());
    EXPECT_EQ(run.Open(), absl::OkStatus());
  }
  EXPECT_EQ(run.RunUntil(kSteps), absl::OkStatus());
  return run.Digest();
}

struct Variant {
  std::string name;
  ModuleSettings settings;
};

// Kills, and state on an emulated GPU, take most of the time: the case that has most is enough, but
// in scripts/test --full.
bool RunsAll(const ModuleSettings& base) {
  return std::getenv("FOREBAY_FULL") != nullptr ||
         (base.has_raw && base.offload.layout == Layout::kBf16);
}

std::vector<Variant> VariantsOf(const ModuleSettings& base) {
  std::vector<Variant> variants;
  const auto add = [&](const std::string& name) -> ModuleSettings& {
    variants.push_back({name, base});
    return variants.back().settings;
  };
  {
    OffloadOptions& disk = add("disk").offload;
    disk.weights_tier = disk.state_tier = TierChoice::kNvme;
  }
  add("host").offload.weights_tier = TierChoice::kHost;
  add("weights on disk").offload.weights_tier = TierChoice::kNvme;
  add("state on disk").offload.state_tier = TierChoice::kNvme;
  add("tight").is_tight = true;
  add("tight, held") = [&] {
    ModuleSettings held = base;
    held.is_tight = true;
    held.offload.gradients = GradientChoice::kHold;
    return held;
  }();
  add("tight, speculative") = [&] {
    ModuleSettings hopes = base;
    hopes.is_tight = true;
    hopes.offload.gradients = GradientChoice::kSpeculate;
    return hopes;
  }();
  add("small tiles").offload.tile_elems = 2048;
  add("large tiles").offload.tile_elems = 1 << 20;
  add("four threads").offload.update_threads = 4;
  if (!base.is_uneven) {  // whose steps leave tensors out
    add("in parts").hands_parts = true;
    add("in parts, speculative, in RAM") = [&] {
      ModuleSettings parts = base;
      parts.hands_parts = true;
      parts.offload.gradients = GradientChoice::kSpeculate;
      parts.offload.weights_tier = TierChoice::kHost;
      return parts;
    }();
    for (const auto& [name, gradients] :
         {std::pair("in parts, tight, held", GradientChoice::kHold),
          std::pair("in parts, tight, speculative", GradientChoice::kSpeculate)}) {
      ModuleSettings& parts = add(name);
      parts.is_tight = parts.hands_parts = true;
      parts.offload.gradients = gradients;
    }
  }
  add("tensor by tensor").adds_tensors = true;
  add("tensor by tensor, tight") = [&] {
    ModuleSettings adds = base;
    adds.adds_tensors = adds.is_tight = true;
    return adds;
  }();
  add("one slot").offload.durability = Durability::kNone;
  add("one slot, tight") = [&] {
    ModuleSettings one = base;
    one.is_tight = true;
    one.offload.durability = Durability::kNone;
    return one;
  }();
  if (RunsAll(base)) {
    add("state on a device").state_on_device = true;
    add("state on a device, speculative, a commit in each step") = [&] {
      ModuleSettings hopes = base;
      hopes.state_on_device = true;
      hopes.offload.gradients = GradientChoice::kSpeculate;
      return hopes;
    }();
  }
  add("a commit in three steps").offload.commit_every = 3;
  return variants;
}

struct MasterCase {
  std::string name;
  Layout layout = Layout::kBf16;
  bool is_uneven = false;
  bool has_raw = false;
};

class LayerSessionMaster : public testing::TestWithParam<MasterCase> {};

TEST_P(LayerSessionMaster, OneRunHasOneDigest) {
  ModuleSettings base = SmallSettings();
  base.offload.layout = GetParam().layout;
  base.offload.clip = GetParam().is_uneven ? MiddleClip() / 2 : MiddleClip();
  base.is_uneven = GetParam().is_uneven;
  base.has_raw = GetParam().has_raw;
  const std::string digest = DigestAfter(base, kSteps);
  ASSERT_FALSE(digest.empty());
  for (const Variant& variant : VariantsOf(base)) {
    SCOPED_TRACE(variant.name);
    EXPECT_EQ(DigestAfter(variant.settings, kSteps), digest);
    if (RunsAll(base) && variant.settings.offload.durability != Durability::kNone) {
      EXPECT_EQ(DigestWithKills(variant.settings), digest);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, LayerSessionMaster,
                         testing::Values(MasterCase{"bf16", Layout::kBf16},
                                         MasterCase{"bf16_uneven", Layout::kBf16, true},
                                         MasterCase{"bf16_uneven_raw", Layout::kBf16, true, true},
                                         MasterCase{"fp32_uneven_raw", Layout::kFp32, true, true},
                                         MasterCase{"fp16_uneven_raw", Layout::kFp16, true, true}),
                         [](const auto& run) { return run.param.name; });

// Commits leave no update out, so that they fall on the same steps in all variants.
TEST(LayerSession, DelayedUpdatesHaveOneDigestOfTheirOwn) {
  for (const bool is_uneven : {false, true}) {
    ModuleSettings base = SmallSettings();
    base.is_uneven = base.has_raw = is_uneven;
    const std::string lazy = DigestAfter(base, kSteps);
    base.offload.delay_update_from = 3;
    base.offload.commit_every = 3;
    const std::string digest = DigestAfter(base, kSteps);
    EXPECT_NE(digest, lazy);
    for (const Variant& variant : VariantsOf(base)) {
      const OffloadOptions& offload = variant.settings.offload;
      if (offload.durability == Durability::kNone) continue;
      if (offload.gradients == GradientChoice::kSpeculate) continue;
      SCOPED_TRACE(variant.name);
      EXPECT_EQ(DigestAfter(variant.settings, kSteps), digest);
    }
    EXPECT_EQ(DigestWithKills(base), digest);
    ModuleSettings other = base;
    other.offload.commit_every = 2;
    EXPECT_NE(DigestAfter(other, kSteps), digest);
    other.offload.commit_every = 1000;  // only what is asked for
    // Of an uneven run the third step is skipped, and leaves no update to be left out.
    EXPECT_EQ(DigestAfter(other, kSteps) == digest, is_uneven);
  }
}

// Some layers may be updated already: the update that is pending is completed.
TEST(LayerSession, AStepAfterAnAbandonedOneSeesAllUpdates) {
  ModuleSettings settings = SmallSettings();
  settings.offload.delay_update_from = 2;
  settings.offload.commit_every = 1000;
  const auto digest = [&](int64_t num_layers, bool commits) {
    const TemporaryFolder folder;
    ModuleRun run(folder.path(), settings);
    EXPECT_EQ(run.Open(), absl::OkStatus());
    EXPECT_EQ(run.RunUntil(3), absl::OkStatus());
    LayerSession& session = run.session();
    if (commits) {
      EXPECT_EQ(session.Commit(), absl::OkStatus());
    } else {
      EXPECT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
      const std::vector<int> handed = run.plan().schedule.Handed();
      for (int64_t i = 0; i < num_layers; ++i) {
        const int layer = handed[static_cast<size_t>(i)];
        const std::vector<float> zeros(
            static_cast<size_t>(session.store().inventory().layers()[layer].num_elems));
        EXPECT_EQ(session.Hand(Fp32Gradient(layer, zeros)), absl::OkStatus());
      }
      session.Abandon();
    }
    EXPECT_EQ(run.RunUntil(6), absl::OkStatus());
    return run.Digest();
  };
  const std::string expected = digest(0, /*commits=*/true);
  for (const int64_t num_layers : {0, 1, 4, 7}) {
    EXPECT_EQ(digest(num_layers, /*commits=*/false), expected) << num_layers;
  }
}

// As torch.optim does with a gradient of None, and with parameters that need none.
TEST(LayerSession, TensorsWithoutAGradientAndFrozenOnesKeepEveryBit) {
  ModuleSettings settings = SmallSettings();
  settings.is_uneven = settings.has_raw = settings.adds_tensors = true;
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings);
  ASSERT_EQ(run.Open(), absl::OkStatus());
  TensorStore& store = run.session().store();
  const auto read = [&](const TensorSpec& tensor, TensorPlane plane) {
    std::vector<float> values(static_cast<size_t>(tensor.num_elems));
    EXPECT_EQ(store.ReadTensor(tensor, plane, 0, values), absl::OkStatus());
    return values;
  };
  int num_left_alone = 0;
  for (int64_t step = 1; step <= 4; ++step) {
    std::vector<std::vector<float>> before;
    for (const TensorSpec& tensor : store.inventory().tensors()) {
      if (tensor.raw) break;
      before.push_back(read(tensor, TensorPlane::kMaster));
    }
    ASSERT_EQ(run.RunStep(CommitWhen::kNow), absl::OkStatus());
    for (size_t i = 0; i < before.size(); ++i) {
      const TensorSpec& tensor = store.inventory().tensors()[i];
      SCOPED_TRACE(tensor.name + ", step " + std::to_string(step));
      const bool is_the_same = read(tensor, TensorPlane::kMaster) == before[i];
      EXPECT_EQ(is_the_same, run.IsLeftAlone(static_cast<int>(i), step));
      num_left_alone += is_the_same ? 1 : 0;
    }
  }
  EXPECT_GT(num_left_alone, 10);
}

TEST(LayerSession, SpeculatesWhereGradientsDoNotFit) {
  ModuleSettings settings = SmallSettings();
  settings.is_tight = true;
  settings.offload.gradients = GradientChoice::kSpeculate;
  settings.offload.clip = MiddleClip();
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings);
  ASSERT_EQ(run.Open(), absl::OkStatus());
  EXPECT_TRUE(run.session().speculates());
  ASSERT_EQ(run.RunUntil(4), absl::OkStatus());
  // Steps 1 and 3 are clipped. After 1 nothing is hoped for, so that step 2 is repeated as well.
  EXPECT_EQ(run.num_repeated(), 4);
}

// `fractions` outlives the run's sessions.
void TellSaving(ModuleRun& run, std::vector<double>& fractions) {
  run.ChangeOptions([&](LayerSessionOptions& options) {
    options.on_saving = [&](double fraction) { fractions.push_back(fraction); };
  });
}

// A commit has to write what lies in RAM, or what the updates that it applies write.
TEST(LayerSession, TellsHowFarACommitIs) {
  for (const bool is_tight : {false, true}) {
    ModuleSettings settings = SmallSettings();
    settings.is_tight = is_tight;
    const TemporaryFolder folder;
    ModuleRun run(folder.path(), settings);
    std::vector<double> fractions;
    TellSaving(run, fractions);
    ASSERT_EQ(run.Open(), absl::OkStatus());
    ASSERT_EQ(run.RunUntil(2), absl::OkStatus());
    fractions.clear();
    ASSERT_EQ(run.session().Commit(), absl::OkStatus());
    EXPECT_THAT(fractions, testing::SizeIs(testing::Gt(2)));
    EXPECT_TRUE(std::ranges::is_sorted(fractions)) << testing::PrintToString(fractions);
    EXPECT_EQ(fractions.front(), 0);
    EXPECT_GT(fractions.back(), 0.9);
  }
}

// The optimizer's thread still has updates of weights in RAM to make.
TEST(LayerSession, MayEndBeforeADelayedUpdateDoes) {
  ModuleSettings settings = SmallSettings();
  settings.offload.delay_update_from = 2;
  settings.offload.commit_every = 1000;
  settings.offload.weights_tier = TierChoice::kHost;
  settings.offload.state_tier = TierChoice::kNvme;
  settings.offload.tile_elems = 2048;
  ShutStateDisk disk;
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings, [&] { return CreateThreadsEngine({}, &disk); });
  ASSERT_EQ(run.Open(), absl::OkStatus());
  ASSERT_EQ(run.RunUntil(2), absl::OkStatus());
  LayerSession& session = run.session();
  ASSERT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
  disk.Shut(true);
  for (const int layer : run.plan().schedule.Handed()) {
    const std::vector<float> zeros(
        static_cast<size_t>(session.store().inventory().layers()[layer].num_elems));
    ASSERT_EQ(session.Hand(Fp32Gradient(layer, zeros)), absl::OkStatus());
  }
  // What is updated is not read again.
  const int last[] = {6};
  session.Expect(last);
  EXPECT_EQ(ExitCodeOf(session.Acquire(6).status()), ExitCode::kUsage);
  session.Abandon();
  disk.Shut(false);
  run.Drop();
}

// Sums over one rank, and commits of one, change nothing.
TEST(LayerSessionRanks, OneIsLikeNone) {
  std::string digests[2];
  const std::unique_ptr<Communicator> alone = Communicator::CreateAlone();
  for (const bool has_ranks : {false, true}) {
    const TemporaryFolder folder;
    ModuleRun run(folder.path(), SmallSettings());
    run.ChangeOptions(
        [&](LayerSessionOptions& options) { options.ranks = has_ranks ? alone.get() : nullptr; });
    ASSERT_EQ(run.Open(), absl::OkStatus());
    ASSERT_EQ(run.RunUntil(4), absl::OkStatus());
    digests[has_ranks] = run.Digest();
  }
  EXPECT_EQ(digests[0], digests[1]);
}

// Whatever a rank's session comes to, by rank: its digest, or an error.
using EndsOfRanks = std::vector<absl::StatusOr<std::string>>;

// A run of each of the ranks, which hand over gradients tensor by tensor.
EndsOfRanks RunRanks(const ModuleSettings& settings, const RankGroupOptions& options) {
  EndsOfRanks ends(static_cast<size_t>(options.num_ranks), absl::UnknownError("did not run"));
  RunOnRanks(options, [&](Communicator& ranks) {
    ModuleSettings of_rank = settings;
    of_rank.num_ranks = options.num_ranks;
    of_rank.rank = ranks.rank();
    of_rank.ranks = &ranks;
    const TemporaryFolder folder;
    ModuleRun run(folder.path(), of_rank);
    run.ChangeOptions([&](LayerSessionOptions& change) { change.ranks = &ranks; });
    absl::Status status = run.Open();
    if (status.ok()) status = run.RunUntil(kSteps);
    absl::StatusOr<std::string>& end = ends[static_cast<size_t>(ranks.rank())];
    if (status.ok()) {
      end = run.Digest();
    } else {
      end = status;
    }
  });
  return ends;
}

// Gradients that come tensor by tensor, some from one rank and some from another, and some from
// none, are together those of one session.
TEST(LayerSessionRanks, AddTheGradientsThatEachOfThemHas) {
  struct Case {
    bool is_tight;
    GradientChoice gradients;
    DType grad_dtype;
    int num_ranks;
  };
  for (const Case& with : {Case{false, GradientChoice::kHold, DType::kBF16, 2},
                           Case{true, GradientChoice::kHold, DType::kBF16, 2},
                           Case{true, GradientChoice::kSpeculate, DType::kBF16, 2},
                           Case{false, GradientChoice::kSpeculate, DType::kF32, 3}}) {
    ModuleSettings settings = SmallSettings();
    settings.is_tight = with.is_tight;
    settings.is_uneven = true;
    settings.adds_tensors = true;
    settings.offload.gradients = with.gradients;
    settings.offload.grad_dtype = with.grad_dtype;
    const std::string alone = DigestAfter(settings, kSteps);
    for (const absl::StatusOr<std::string>& end :
         RunRanks(settings,
                  {.transport = TransportOfTests::kSlowThreads, .num_ranks = with.num_ranks})) {
      ASSERT_EQ(end.status(), absl::OkStatus());
      EXPECT_EQ(*end, alone) << with.is_tight << " " << static_cast<int>(with.gradients);
    }
  }
}

// The same where each rank has its part of the state, and buffers of its own.
TEST(LayerSessionRanks, AddThemWhereTheStateIsDivided) {
  struct Case {
    int zero_stage;
    bool is_tight;
    GradientChoice gradients;
    int num_ranks;
    bool state_on_device = false;
  };
  for (const Case& with :
       {Case{1, false, GradientChoice::kHold, 2}, Case{3, true, GradientChoice::kHold, 2},
        Case{3, false, GradientChoice::kSpeculate, 3},
        Case{3, false, GradientChoice::kHold, 2, /*state_on_device=*/true}}) {
    ModuleSettings settings = SmallSettings();
    settings.is_tight = with.is_tight;
    settings.is_uneven = settings.has_raw = true;
    settings.adds_tensors = true;
    settings.state_on_device = with.state_on_device;
    settings.offload.gradients = with.gradients;
    const std::string alone = DigestAfter(settings, kSteps);
    settings.zero_stage = with.zero_stage;
    for (const absl::StatusOr<std::string>& end :
         RunRanks(settings,
                  {.transport = TransportOfTests::kSlowThreads, .num_ranks = with.num_ranks})) {
      ASSERT_EQ(end.status(), absl::OkStatus());
      EXPECT_EQ(*end, alone) << with.zero_stage << " " << with.num_ranks;
    }
  }
}

// At any of its exchanges: those of gradients, and of how many ranks have each.
TEST(LayerSessionRanks, EndWithTheReasonWhereOneDies) {
  ModuleSettings settings = SmallSettings();
  settings.adds_tensors = true;
  for (const int64_t exchange : {0, 7, 20, 41}) {
    const EndsOfRanks ends =
        RunRanks(settings, {.faults = {{ThreadFaultKind::kDies, 1, exchange}}});
    for (const absl::StatusOr<std::string>& end : ends) {
      EXPECT_EQ(ExitCodeOf(end.status()), ExitCode::kEnvironment) << end.status();
    }
    EXPECT_THAT(MessageOf(ends[0].status()), testing::HasSubstr("rank 1")) << exchange;
  }
}

// Otherwise they would add gradients of different layers.
TEST(LayerSessionRanks, HandLayersOverInTheOrderOfTheSchedule) {
  const std::unique_ptr<Communicator> alone = Communicator::CreateAlone();
  ModuleSettings settings = SmallSettings();
  settings.adds_tensors = true;
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings);
  run.ChangeOptions([&](LayerSessionOptions& options) { options.ranks = alone.get(); });
  ASSERT_EQ(run.Open(), absl::OkStatus());
  ASSERT_EQ(run.session().BeginStep(run.UpdateOfStep()), absl::OkStatus());
  const absl::Status status = run.session().CloseLayer(0);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("ranks sum them in the order"));
}

// Others than those that take tensors have no word for it.
TEST(LayerSessionRanks, TakeWholeLayersWithAllTheirGradients) {
  const std::unique_ptr<Communicator> alone = Communicator::CreateAlone();
  ModuleSettings settings = SmallSettings();
  settings.is_uneven = true;
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings);
  run.ChangeOptions([&](LayerSessionOptions& options) { options.ranks = alone.get(); });
  ASSERT_EQ(run.Open(), absl::OkStatus());
  const absl::Status status = run.RunStep();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("hand over zeros"));
}

}  // namespace
}  // namespace forebay
