// The step path allocates nothing after Create.
#include <memory>
#include <vector>

#include "forebay/tests/allocation_counter.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"
#include "forebay/tests/optimizer/windowed_run.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(OffloadedOptimizerAllocation, AStepAllocatesNothingOnAnyThread) {
  const TemporaryFolder folder;
  OffloadedRun::Options options;
  options.state = Tiers::kMixed;
  options.gradients = Tiers::kMixed;
  options.num_threads = 2;
  options.num_io_threads = 2;
  const auto run = OffloadedRun::Start(options, folder.path());
  ASSERT_TRUE(run.ok()) << run.status();
  OffloadedOptimizer& optimizer = (*run)->optimizer();
  const TileMap& tiles = (*run)->store().tiles();
  std::vector<std::vector<float>> gradients;
  std::vector<HostBuffer> weights;
  for (int layer = 0; layer < (*run)->num_layers(); ++layer) {
    gradients.push_back(GradientOf((*run)->store().inventory(), layer, 1));
    auto buffer = HostBuffer::Create(&(*run)->budget(), "test", tiles.layer_elems(layer) * 2);
    ASSERT_TRUE(buffer.ok());
    weights.push_back(*std::move(buffer));
  }

  const int64_t before = num_allocations.load();
  bool ok = true;
  for (int layer = (*run)->num_layers() - 1; layer >= 0; --layer) {
    ok = ok && optimizer.Hand(Fp32Gradient(layer, gradients[layer]), (*run)->pool()).ok();
  }
  ok = ok && optimizer.FinishBackward().ok();
  ok = ok && optimizer.BeginUpdate(ScalarsOfStep(1, 1.0)).ok();
  for (int layer = 0; layer < (*run)->num_layers(); ++layer) {
    ok = ok && optimizer.UpdateLayer(layer, weights[layer].bytes()).ok();
    ok = ok && optimizer.AwaitWriteBack(layer).ok();
  }
  ok = ok && optimizer.AwaitAllWrites().ok();
  EXPECT_EQ(num_allocations.load(), before);
  EXPECT_TRUE(ok);
}

// Nor does one whose settings change, with frozen tensors and others without a gradient.
TEST(OffloadedOptimizerAllocation, AStepThatLeavesTensorsAloneAllocatesNothingOnAnyThread) {
  const TemporaryFolder folder;
  StepSettings settings;
  settings.of_tensor = {0, 0, 1, 0, 1, 0, 0, 0, 0, 1};
  settings.groups = [](int64_t) {
    return std::vector<ParameterGroup>{{.weight_decay = 0.1}, {.beta1 = 0.5, .frozen = true}};
  };
  settings.without_gradient = [](int64_t) { return std::vector<int>{0, 6, 8}; };
  OffloadedRun::Options options;
  options.state = options.gradients = Tiers::kMixed;
  options.num_threads = options.num_io_threads = 2;
  options.settings = &settings;
  const auto run = OffloadedRun::Start(options, folder.path());
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE((*run)->Step(1).ok());
  OffloadedOptimizer& optimizer = (*run)->optimizer();
  const Inventory& inventory = (*run)->store().inventory();
  std::vector<std::vector<float>> gradients;
  std::vector<std::vector<int>> without = {{0}, {}, {6, 8}, {}};
  std::vector<HostBuffer> weights;
  for (int layer = 0; layer < (*run)->num_layers(); ++layer) {
    gradients.push_back(GradientOf(inventory, layer, 2));
    auto buffer =
        HostBuffer::Create(&(*run)->budget(), "test", inventory.layers()[layer].num_elems * 2);
    ASSERT_TRUE(buffer.ok());
    weights.push_back(*std::move(buffer));
  }
  std::vector<ParameterGroup> groups = settings.groups(2);
  groups[0].eps = 1e-5;

  const int64_t before = num_allocations.load();
  bool ok = optimizer.SetGroups(groups).ok();
  for (int layer = (*run)->num_layers() - 1; layer >= 0; --layer) {
    ok = ok &&
         optimizer.Hand(Fp32Gradient(layer, gradients[layer], 0, without[layer]), (*run)->pool())
             .ok();
  }
  ok = ok && optimizer.FinishBackward().ok();
  ok = ok && optimizer.BeginUpdate(ScalarsOfStep(2, 1.0)).ok();
  for (int layer = 0; layer < (*run)->num_layers(); ++layer) {
    ok = ok && optimizer.UpdateLayer(layer, weights[layer].bytes()).ok();
    ok = ok && optimizer.AwaitWriteBack(layer).ok();
  }
  ok = ok && optimizer.AwaitAllWrites().ok();
  EXPECT_EQ(num_allocations.load(), before);
  EXPECT_TRUE(ok);
  EXPECT_EQ(optimizer.missed_updates()[6], 2);
}

class WindowedStepAllocation : public testing::TestWithParam<bool> {};

TEST_P(WindowedStepAllocation, AStepThroughTheWindowAllocatesNothingOnAnyThread) {
  const TemporaryFolder folder;
  auto run = WindowedRun::Start(/*io_uring=*/GetParam(), folder.path());
  if (ExitCodeOf(run.status()) == ExitCode::kEnvironment) GTEST_SKIP() << run.status();
  ASSERT_TRUE(run.ok()) << run.status();
  // Queues grow to their longest in the first step.
  ASSERT_TRUE((*run)->Step(1) && (*run)->Commit(1) && (*run)->Step(2));
  const int64_t before = num_allocations.load();
  const bool ok = (*run)->Step(3);  // with the updates of the second
  EXPECT_EQ(num_allocations.load(), before);
  EXPECT_TRUE(ok);
}

INSTANTIATE_TEST_SUITE_P(Engines, WindowedStepAllocation, testing::Bool(),
                         [](const auto& c) { return c.param ? "IoUring" : "Threads"; });

TEST(OffloadedOptimizerAllocation, TheCounterCounts) {
  const int64_t before = num_allocations.load();
  const auto memory = std::make_unique<std::vector<float>>(100);
  EXPECT_EQ(num_allocations.load(), before + 2);
  EXPECT_EQ(memory->size(), 100u);
}

}  // namespace
}  // namespace forebay
