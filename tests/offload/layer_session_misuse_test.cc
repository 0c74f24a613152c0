// Mistakes of a caller of LayerSession: every call at every moment where it does not
// belong is a UsageError, and the run that it was made in ends with the digest of one without.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/base/errors.h"
#include "forebay/collective/communicator.h"
#include "forebay/offload/layer_session.h"
#include "forebay/tests/offload/module_run.h"
#include "forebay/tests/sample.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

ModuleSettings Settings(bool is_tight = false) {
  ModuleSettings settings = SmallSettings();
  settings.adds_tensors = true;
  settings.is_tight = is_tight;
  return settings;
}

bool IsUsage(const absl::Status& status) {
  return ExitCodeOf(status) == ExitCode::kUsage;
}

// The moments of a run.
enum class Moment { kBetween, kPass, kMustRepeat, kDone };

struct Call {
  std::string name;
  std::vector<Moment> belongs;  // where it is no mistake
  std::function<absl::Status(ModuleRun&)> make;
};

// `adds`: whether gradients come tensor by tensor; layers that got none may then be missing.
std::vector<Call> Calls(bool adds) {
  using enum Moment;
  const auto gradient = [](ModuleRun& run, int layer) -> absl::Status {
    const std::vector<float> zeros(
        static_cast<size_t>(run.session().store().inventory().layers()[layer].num_elems));
    return run.session().Hand(Fp32Gradient(layer, zeros));
  };
  return {
      {"BeginStep",
       {kBetween},
       [](ModuleRun& run) { return run.session().BeginStep(run.UpdateOfStep()); }},
      {"BeginStep without scalars", {}, [](ModuleRun& run) { return run.session().BeginStep({}); }},
      {"UpdatesOfTheStepBefore",
       {kPass},
       [](ModuleRun& run) { return run.session().UpdatesOfTheStepBefore(); }},
      {"Hand", {kPass}, [=](ModuleRun& run) { return gradient(run, 6); }},
      {"Hand of no layer", {}, [](ModuleRun& run) { return run.session().Hand({.layer = 7}); }},
      {"Hand of another layer", {}, [](ModuleRun& run) { return run.session().Hand({}); }},
      {"Hand of too little", {}, [](ModuleRun& run) { return run.session().Hand({.layer = 6}); }},
      {"AddGradient", adds ? std::vector<Moment>{kPass} : std::vector<Moment>{},
       [](ModuleRun& run) {
         const std::byte one[4] = {};
         return run.session().AddGradient(20, DType::kF32, one);
       }},
      {"AddGradient of too little",
       {},
       [](ModuleRun& run) { return run.session().AddGradient(20, DType::kF32, {}); }},
      {"AddGradient of no tensor",
       {},
       [](ModuleRun& run) { return run.session().AddGradient(21, DType::kF32, {}); }},
      {"CloseLayer", adds ? std::vector<Moment>{kPass} : std::vector<Moment>{},
       [](ModuleRun& run) { return run.session().CloseLayer(6); }},
      {"CloseLayer of no layer", {}, [](ModuleRun& run) { return run.session().CloseLayer(7); }},
      {"FinishBackward with layers missing",
       adds ? std::vector<Moment>{kPass} : std::vector<Moment>{},
       [](ModuleRun& run) { return run.session().FinishBackward().status(); }},
      {"BeginRepeat", {kMustRepeat}, [](ModuleRun& run) { return run.session().BeginRepeat(); }},
      {"Update", {kDone}, [](ModuleRun& run) { return run.session().Update(run.KeptOfStep()); }},
      {"Skip",
       {kDone, kMustRepeat},
       [](ModuleRun& run) { return run.session().Skip(run.KeptOfStep()); }},
      {"Commit", {kBetween}, [](ModuleRun& run) { return run.session().Commit(); }},
      {"ShowNewest", {kBetween}, [](ModuleRun& run) { return run.session().ShowNewest(); }},
      {"RawTensor of what is none",
       {},
       [](ModuleRun& run) { return run.session().RawTensor(0).status(); }},
      {"RawTensor of no tensor",
       {},
       [](ModuleRun& run) { return run.session().RawTensor(-1).status(); }},
      {"Acquire of nothing announced",
       {},
       [](ModuleRun& run) { return run.session().Acquire(0).status(); }},
      {"Acquire of no layer", {}, [](ModuleRun& run) { return run.session().Acquire(7).status(); }},
      {"Expect of no layer",
       {},
       [](ModuleRun& run) {
         const int layers[] = {0, 7};
         run.session().Expect(layers);
         return run.session().Acquire(0).status();
       }},
  };
}

// Makes every call that does not belong to `moment`.
void MakeMistakes(ModuleRun& run, Moment moment, bool adds) {
  for (const Call& call : Calls(adds)) {
    if (std::ranges::count(call.belongs, moment) > 0) continue;
    SCOPED_TRACE(call.name + " at moment " + std::to_string(static_cast<int>(moment)));
    const absl::Status status = call.make(run);
    EXPECT_TRUE(IsUsage(status)) << status;
  }
}

class LayerSessionMisuse : public testing::TestWithParam<bool> {};

TEST_P(LayerSessionMisuse, EveryCallAtEveryWrongMomentChangesNothing) {
  ModuleSettings settings = Settings(GetParam());
  settings.adds_tensors = GetParam();
  if (GetParam()) {
    settings.offload.gradients = GradientChoice::kSpeculate;
    settings.offload.clip = 1e-3;
  }
  const TemporaryFolder folder;
  const std::string digest = DigestAfter(settings, 3);

  ModuleRun wrong(folder.path(), settings);
  ASSERT_EQ(wrong.Open(), absl::OkStatus());
  ASSERT_EQ(wrong.RunStep(), absl::OkStatus());
  for (int step = 2; step <= 3; ++step) {
    MakeMistakes(wrong, Moment::kBetween, settings.adds_tensors);
    ASSERT_EQ(wrong.session().BeginStep(wrong.UpdateOfStep()), absl::OkStatus());
    MakeMistakes(wrong, Moment::kPass, settings.adds_tensors);
    auto gradients = wrong.RunPass();
    ASSERT_TRUE(gradients.ok()) << gradients.status();
    if (GetParam()) {
      ASSERT_TRUE(gradients->must_repeat);
      MakeMistakes(wrong, Moment::kMustRepeat, settings.adds_tensors);
      ASSERT_EQ(wrong.session().BeginRepeat(), absl::OkStatus());
      MakeMistakes(wrong, Moment::kPass, settings.adds_tensors);
      gradients = wrong.RunPass();
      ASSERT_TRUE(gradients.ok()) << gradients.status();
    }
    MakeMistakes(wrong, Moment::kDone, settings.adds_tensors);
    ASSERT_EQ(wrong.session().Update(wrong.KeptOfStep()), absl::OkStatus());
  }
  EXPECT_EQ(wrong.Digest(), digest);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LayerSessionMisuse, testing::Bool(), [](const auto& kind) {
  return std::string(kind.param ? "speculative_by_tensor" : "lazy_by_layer");
});

TEST(LayerSessionLeases, WhoeverIsStillOutStopsTheStepAndNothingIsLost) {
  const TemporaryFolder folder;
  const std::string digest = DigestAfter(Settings(), 2);

  ModuleRun run(folder.path(), Settings());
  ASSERT_EQ(run.Open(), absl::OkStatus());
  LayerSession& session = run.session();
  const int layers[] = {2, 3};
  session.Expect(layers);
  {
    auto lease = session.Acquire(2);
    ASSERT_TRUE(lease.ok()) << lease.status();
    EXPECT_THAT(MessageOf(session.BeginStep(run.UpdateOfStep())), HasSubstr("are lent"));
    EXPECT_TRUE(IsUsage(session.Commit()));
    EXPECT_TRUE(IsUsage(session.Acquire(2).status()));  // the next is 3
  }
  EXPECT_THAT(MessageOf(session.BeginStep(run.UpdateOfStep())), HasSubstr("not acquired"));
  session.CancelAnnounced();
  // Another order.
  const int others[] = {5, 0};
  session.Expect(others);
  EXPECT_TRUE(session.Acquire(5).ok());
  EXPECT_TRUE(session.Acquire(0).ok());
  ASSERT_EQ(run.RunStep(), absl::OkStatus());
  // At the end of a step.
  ASSERT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
  const auto gradients = run.RunPass();
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  session.Expect(others);
  EXPECT_TRUE(IsUsage(session.Update(run.KeptOfStep())));
  auto lease = session.Acquire(5);
  ASSERT_TRUE(lease.ok()) << lease.status();
  session.CancelAnnounced();
  EXPECT_TRUE(IsUsage(session.Update(run.KeptOfStep())));
  lease->Release();
  ASSERT_EQ(session.Update(run.KeptOfStep()), absl::OkStatus());
  EXPECT_EQ(run.Digest(), digest);
}

TEST(LayerSessionLeases, AsManyAsTheWindowHasBuffers) {
  ModuleSettings settings = Settings();
  settings.offload.weights_tier = TierChoice::kNvme;
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings);
  ASSERT_EQ(run.Open(), absl::OkStatus());
  const std::vector<int> layers = {1, 2, 3, 4, 5};
  run.session().Expect(layers);
  std::vector<WeightsLease> leases;
  absl::Status refused;
  for (const int layer : layers) {
    auto lease = run.session().Acquire(layer);
    refused = lease.status();
    if (!lease.ok()) break;
    leases.push_back(*std::move(lease));
  }
  EXPECT_EQ(static_cast<int>(leases.size()), run.plan().window.num_block_buffers);
  EXPECT_TRUE(IsUsage(refused)) << refused;
  leases.clear();
  run.session().CancelAnnounced();
  EXPECT_EQ(run.RunStep(), absl::OkStatus());
}

TEST(LayerSessionLeases, ALeaseKeepsTheSessionThatItIsOf) {
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), Settings());
  ASSERT_EQ(run.Open(), absl::OkStatus());
  const std::weak_ptr<LayerSession> session = run.TakeSession();
  EXPECT_TRUE(session.expired());

  ASSERT_EQ(run.Open(), absl::OkStatus());
  auto taken = run.TakeSession();
  const int layers[] = {4};
  taken->Expect(layers);
  auto lease = taken->Acquire(4);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const std::weak_ptr<LayerSession> kept = taken;
  const std::vector<std::byte> before(lease->weights().data.begin(), lease->weights().data.end());
  taken.reset();
  EXPECT_FALSE(kept.expired());
  EXPECT_TRUE(std::ranges::equal(before, lease->weights().data));
  lease->Release();
  EXPECT_TRUE(kept.expired());
}

TEST(LayerSessionSteps, OneThatIsAbandonedLeavesNoTrace) {
  const TemporaryFolder folder;
  const std::string digest = DigestAfter(Settings(/*is_tight=*/true), 3);
  ModuleRun run(folder.path(), Settings(/*is_tight=*/true));
  ASSERT_EQ(run.Open(), absl::OkStatus());
  for (int step = 1; step <= 3; ++step) {
    ASSERT_EQ(run.session().BeginStep(run.UpdateOfStep()), absl::OkStatus());
    const int layers[] = {0, 1, 2, 3};
    run.session().Expect(layers);
    EXPECT_TRUE(run.session().Acquire(0).ok());
    const std::byte one[4] = {};
    EXPECT_EQ(run.session().AddGradient(20, DType::kF32, one), absl::OkStatus());
    run.session().Abandon();
    ASSERT_EQ(run.session().BeginStep(run.UpdateOfStep()), absl::OkStatus());
    ASSERT_TRUE(run.RunPass().ok());
    run.session().Abandon();
    run.session().Abandon();
    ASSERT_EQ(run.RunStep(), absl::OkStatus());
  }
  EXPECT_EQ(run.Digest(), digest);
}

TEST(LayerSessionSteps, AStepThatIsSkippedIsCommittedAndChangesNothing) {
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), Settings());
  ASSERT_EQ(run.Open(), absl::OkStatus());
  ASSERT_EQ(run.RunStep(), absl::OkStatus());
  ASSERT_EQ(run.session().BeginStep(run.UpdateOfStep()), absl::OkStatus());
  ASSERT_TRUE(run.RunPass().ok());
  ASSERT_EQ(run.session().Skip({{"skipped", true}}, CommitWhen::kNow), absl::OkStatus());
  EXPECT_EQ(run.session().committed_step(), 2);
  EXPECT_EQ(run.session().store().committed().trainer, Json({{"skipped", true}}));
  ASSERT_EQ(run.RunStep(CommitWhen::kNow), absl::OkStatus());
  EXPECT_EQ(run.session().store().committed().trainer, Json({{"step", 3}}));
}

TEST(LayerSessionSteps, AGradientThatIsNotFiniteIsNoUpdate) {
  ModuleSettings settings = Settings();
  settings.adds_tensors = false;
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings);
  ASSERT_EQ(run.Open(), absl::OkStatus());
  LayerSession& session = run.session();
  ASSERT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
  for (int layer = 6; layer >= 0; --layer) {
    std::vector<float> gradient(
        static_cast<size_t>(session.store().inventory().layers()[layer].num_elems));
    if (layer == 3) gradient[0] = std::numeric_limits<float>::infinity();
    ASSERT_EQ(session.Hand(Fp32Gradient(layer, gradient)), absl::OkStatus());
  }
  const auto gradients = session.FinishBackward();
  ASSERT_TRUE(gradients.ok()) << gradients.status();
  EXPECT_EQ(gradients->first_nonfinite_layer, 3);
  EXPECT_THAT(MessageOf(session.Update({})), HasSubstr("'layer3' is not finite"));
  EXPECT_EQ(session.Skip({}), absl::OkStatus());
}

// A layer that no forward pass reads has its update applied before the next gradients come.
TEST(LayerSessionSteps, ALayerThatIsNotReadIsUpdatedAllTheSame) {
  for (const bool is_tight : {false, true}) {
    ModuleSettings settings = Settings(is_tight);
    settings.adds_tensors = false;
    const TemporaryFolder folder;
    const TemporaryFolder other_folder;
    ModuleRun reads(folder.path(), settings);
    ModuleRun skips(other_folder.path(), settings);
    for (ModuleRun* run : {&reads, &skips}) {
      ASSERT_EQ(run->Open(), absl::OkStatus());
      LayerSession& session = run->session();
      for (int step = 1; step <= 3; ++step) {
        ASSERT_EQ(session.BeginStep(run->UpdateOfStep()), absl::OkStatus());
        for (int layer = 0; layer < 7; ++layer) {
          if (run == &skips && (layer == 2 || layer == 6)) continue;
          session.Expect({&layer, 1});
          ASSERT_TRUE(session.Acquire(layer).ok());
        }
        for (int layer = 6; layer >= 0; --layer) {
          std::vector<float> gradient(
              static_cast<size_t>(session.store().inventory().layers()[layer].num_elems));
          gradient[0] = static_cast<float>(step);
          ASSERT_EQ(session.Hand(Fp32Gradient(layer, gradient)), absl::OkStatus());
        }
        ASSERT_TRUE(session.FinishBackward().ok());
        ASSERT_EQ(session.Update(run->KeptOfStep()), absl::OkStatus());
      }
    }
    EXPECT_EQ(skips.Digest(), reads.Digest());
  }
}

TEST(LayerSessionSteps, RawTensorsChangeInAStepOrBehindItUntilItsCommit) {
  ModuleSettings settings = Settings();
  settings.has_raw = true;
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings);
  ASSERT_EQ(run.Open(), absl::OkStatus());
  LayerSession& session = run.session();
  const int flag = static_cast<int>(session.store().inventory().tensors().size()) - 1;
  const auto bytes = session.RawTensor(flag);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  ASSERT_EQ(bytes->size(), 1u);
  EXPECT_EQ((*bytes)[0], std::byte{1});  // as the store was filled
  (*bytes)[0] = std::byte{9};
  EXPECT_THAT(MessageOf(session.BeginStep(run.UpdateOfStep())), HasSubstr("between steps"));
  session.Abandon();
  EXPECT_EQ((*bytes)[0], std::byte{1});
  ASSERT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
  (*bytes)[0] = std::byte{9};
  session.Abandon();
  EXPECT_EQ((*bytes)[0], std::byte{1});
  EXPECT_TRUE(IsUsage(session.AddGradient(flag, DType::kF32, {})));
  // The commit has them as the step left them.
  ASSERT_EQ(run.RunUntil(2), absl::OkStatus());
  ASSERT_EQ(session.Commit(), absl::OkStatus());
  std::byte committed[1] = {};
  const TensorSpec& spec = session.store().inventory().tensors()[flag];
  ASSERT_EQ(session.store().ReadRaw(spec, 0, committed), absl::OkStatus());
  EXPECT_EQ(committed[0], std::byte{(1 * 7 + 1) * 7 + 2});
  ASSERT_EQ(run.RunUntil(3), absl::OkStatus());
  (*bytes)[0] = std::byte{42};
  ASSERT_EQ(session.Commit(), absl::OkStatus());
  ASSERT_EQ(session.store().ReadRaw(spec, 0, committed), absl::OkStatus());
  EXPECT_EQ(committed[0], std::byte{42});
}

TEST(LayerSessionSteps, GradientsOfALayerThatIsClosedAreRefused) {
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), Settings());
  ASSERT_EQ(run.Open(), absl::OkStatus());
  LayerSession& session = run.session();
  const std::vector<float> zeros(
      static_cast<size_t>(session.store().inventory().layers()[6].num_elems));
  const std::byte one[4] = {};
  ASSERT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
  ASSERT_EQ(session.AddGradient(20, DType::kF32, one), absl::OkStatus());
  EXPECT_THAT(MessageOf(session.Hand(Fp32Gradient(6, zeros))),
              HasSubstr("Close the layer instead"));
  ASSERT_EQ(session.CloseLayer(6), absl::OkStatus());
  EXPECT_THAT(MessageOf(session.AddGradient(20, DType::kF32, one)), HasSubstr("was closed"));
  EXPECT_TRUE(IsUsage(session.CloseLayer(6)));
  EXPECT_TRUE(session.FinishBackward().ok());
}

TEST(LayerSessionSteps, WhatGoesWithAStepFitsItsCommit) {
  const TemporaryFolder folder;
  const std::string digest = DigestAfter(Settings(), 2);
  ModuleRun run(folder.path(), Settings());
  ASSERT_EQ(run.Open(), absl::OkStatus());
  for (int step = 1; step <= 2; ++step) {
    ASSERT_EQ(run.session().BeginStep(run.UpdateOfStep()), absl::OkStatus());
    ASSERT_TRUE(run.RunPass().ok());
    for (const Json& kept : {Json("a text"), Json::array(), Json{{"missed_updates", 3}},
                             Json{{"notes", std::string(4000, 'x')}}}) {
      EXPECT_TRUE(IsUsage(run.session().Update(kept, CommitWhen::kNow))) << kept;
      EXPECT_TRUE(IsUsage(run.session().Skip(kept, CommitWhen::kNow))) << kept;
    }
    EXPECT_EQ(run.session().released_step(), step - 1);
    ASSERT_EQ(run.session().Update(run.KeptOfStep(), CommitWhen::kNow), absl::OkStatus());
  }
  EXPECT_EQ(run.Digest(), digest);
}

// An update that cannot begin must not make the update before it one that is committed.
TEST(LayerSessionSteps, AnUpdateThatIsRefusedChangesNothing) {
  ModuleSettings settings = Settings();
  settings.offload.commit_every = 3;
  settings.offload.weights_tier = TierChoice::kHost;
  for (const TierChoice state_tier : {TierChoice::kHost, TierChoice::kNvme}) {
    settings.offload.state_tier = state_tier;
    const TemporaryFolder folder;
    const std::string digest = DigestAfter(settings, 4);
    ModuleRun run(folder.path(), settings);
    ASSERT_EQ(run.Open(), absl::OkStatus());
    for (int step = 1; step <= 4; ++step) {
      StepUpdate wrong = run.UpdateOfStep();
      wrong.scalars_of = [](double) { return UpdateScalars{.step = 0, .lr = 1e-3}; };
      ASSERT_EQ(run.session().BeginStep(wrong), absl::OkStatus());
      ASSERT_TRUE(run.RunPass().ok());
      EXPECT_TRUE(IsUsage(run.session().Update(run.KeptOfStep(), CommitWhen::kNow)));
      run.session().Abandon();
      ASSERT_EQ(run.RunStep(), absl::OkStatus());
    }
    EXPECT_EQ(run.Digest(), digest);
  }
}

TEST(LayerSessionSteps, ADelayedUpdateIsNotCompletedWhileALeaseIsOut) {
  ModuleSettings settings = SmallSettings();
  settings.offload.commit_every = 1000;
  settings.offload.delay_update_from = 2;
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings);
  ASSERT_EQ(run.Open(), absl::OkStatus());
  ASSERT_EQ(run.RunStep(), absl::OkStatus());
  LayerSession& session = run.session();
  ASSERT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
  const int layers[] = {3};
  session.Expect(layers);
  auto lease = session.Acquire(3);
  ASSERT_TRUE(lease.ok()) << lease.status();
  for (const int layer : run.plan().schedule.Handed()) {
    const std::vector<float> zeros(
        static_cast<size_t>(session.store().inventory().layers()[layer].num_elems));
    ASSERT_EQ(session.Hand(Fp32Gradient(layer, zeros)), absl::OkStatus());
  }
  EXPECT_TRUE(IsUsage(session.FinishBackward().status()));
  lease->Release();
  EXPECT_TRUE(session.FinishBackward().ok());
  EXPECT_EQ(session.Update(run.KeptOfStep()), absl::OkStatus());
}

// Every write of a step fails in turn. The session says so, ends without a word more, and the next
// one goes on from what is committed.
TEST(LayerSessionSteps, AWriteThatFailsIsAnErrorAndNotTheEndOfTheProcess) {
  ModuleSettings settings = SmallSettings();
  settings.is_uneven = settings.has_raw = true;
  const std::string digest = DigestAfter(settings, 4);
  int num_failed = 0;
  const Sample sample(14, 40);
  for (int64_t call = sample.first(); call < 400; call += sample.step()) {
    const TemporaryFolder folder;
    {
      ModuleRun made(folder.path(), settings);
      ASSERT_EQ(made.Open(), absl::OkStatus());
    }
    FaultyDisk disk({.fail_call = call});
    ModuleRun run(folder.path(), settings, [&] { return CreateThreadsEngine({}, &disk); });
    absl::Status status = run.Open();
    if (status.ok()) status = run.RunUntil(4);
    if (status.ok()) status = run.session().Commit();
    if (!status.ok()) ++num_failed;
    if (run.HasSession()) {
      run.session().Abandon();
      run.session().Commit().IgnoreError();
      run.session().BeginStep(run.UpdateOfStep()).IgnoreError();
    }
    run.Drop();
    ModuleRun again(folder.path(), settings);
    ASSERT_EQ(again.Open(), absl::OkStatus()) << call;
    ASSERT_EQ(again.RunUntil(4), absl::OkStatus()) << call;
    EXPECT_EQ(again.Digest(), digest) << call;
  }
  EXPECT_GT(num_failed, 2);
}

// Behind which the step goes on with one in RAM.
TEST(LayerSessionRanks, RefuseAGradientOnADeviceThatTheyDoNotHave) {
  const std::unique_ptr<Communicator> alone = Communicator::CreateAlone();
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), SmallSettings());
  run.ChangeOptions([&](LayerSessionOptions& options) { options.ranks = alone.get(); });
  ASSERT_EQ(run.Open(), absl::OkStatus());
  LayerSession& session = run.session();
  ASSERT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
  const std::vector<float> zeros(
      static_cast<size_t>(session.store().inventory().layers()[6].num_elems));
  LayerGradient elsewhere = Fp32Gradient(6, zeros);
  elsewhere.device = DeviceKind::kCuda;
  EXPECT_THAT(MessageOf(session.Hand(elsewhere)), HasSubstr("was made without one"));
  EXPECT_EQ(session.Hand(Fp32Gradient(6, zeros)), absl::OkStatus());
}

TEST(LayerSessionCreate, RefusesOptionsThatThePlanIsNotFor) {
  const TemporaryFolder folder;
  const std::unique_ptr<Communicator> alone = Communicator::CreateAlone();
  for (const int variant : {0, 1, 2, 3, 4, 5}) {
    ModuleSettings settings = SmallSettings();
    if (variant == 3) settings.offload.delay_update_from = 2;
    if (variant == 3) settings.offload.commit_every = 2;
    settings.state_on_device = variant == 4;
    settings.is_tight = true;
    settings.offload.gradients = GradientChoice::kHold;
    ModuleRun run(folder.path(), settings);
    run.ChangeOptions([&, variant](LayerSessionOptions& options) {
      if (variant == 0) options.offload.optimizer = OptimizerKind::kLion;
      if (variant == 1) options.offload.grad_dtype = DType::kF32;
      if (variant == 2) options.threads = 0;
      if (variant == 3) options.ranks = alone.get();
      if (variant == 4) options.device_budget = nullptr;
      if (variant == 5) {
        options.ranks = alone.get();
        options.parts = std::make_shared<InventoryParts>(ModuleInventory(), 2);
      }
    });
    EXPECT_TRUE(IsUsage(run.Open())) << variant;
  }
}

TEST(LayerSessionCreate, RefusesTheStoreOfAnotherPlan) {
  const TemporaryFolder folder;
  {
    ModuleRun run(folder.path(), Settings());
    ASSERT_EQ(run.Open(), absl::OkStatus());
  }
  ModuleSettings other = Settings();
  other.offload.tile_elems = 8192;
  ModuleRun run(folder.path(), other);
  EXPECT_TRUE(IsUsage(run.Open()));
}

}  // namespace
}  // namespace forebay
