// Spilling and fetching allocate nothing after Create.
#include <memory>
#include <string>

#include "forebay/offload/spilled_activations.h"
#include "forebay/tests/allocation_counter.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr SpilledActivationsShape kShape = {
    .num_spilled = 4, .num_buffers = 3, .activation_bytes = 8 * 4096};

// As a walk over the layers does it.
bool RunPass(SpilledActivations& activations) {
  const int num_layers = kShape.num_spilled + kShape.num_buffers;
  bool ok = true;
  for (int layer = 0; layer < num_layers; ++layer) {
    ok = ok && activations.Await(layer - kShape.num_buffers).ok();
    if (layer < kShape.num_spilled) activations.StartWrite(layer);
  }
  for (int layer = num_layers - 1; layer >= 0; --layer) {
    ok = ok && activations.Await(layer).ok();
    if (layer >= kShape.num_buffers) activations.StartRead(layer - kShape.num_buffers);
  }
  return ok;
}

TEST(SpilledActivationsAllocation, APassAllocatesNothingOnAnyThread) {
  const TemporaryFolder folder;
  Inventory inventory;
  for (int layer = 0; layer < 4; ++layer) {
    inventory.BeginLayer("layer" + std::to_string(layer));
    inventory.Add("weight" + std::to_string(layer), {64, 64}, 0, true);
  }
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 2});
  StoreOptions options;
  options.directories = {folder.Path("a"), folder.Path("b")};
  options.stripe_weights = {2, 1};
  options.tile_elems = 2048;
  options.scratch_bytes = kShape.AreaBytes(options.stripe_weights);
  auto store = TensorStore::Create(options, inventory, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();
  MemoryBudget budget(0);
  ThreadPool pool(2);
  auto activations = SpilledActivations::Create(kShape, {0, 0}, store->get(), &budget, &pool);
  ASSERT_TRUE(activations.ok()) << activations.status();
  ASSERT_TRUE(RunPass(**activations));

  const int64_t before = num_allocations.load();
  const bool ok = RunPass(**activations);
  EXPECT_EQ(num_allocations.load(), before);
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace forebay
