// Nothing is allocated on the step path: the program's operator new is counted. What oneDNN
// allocates within a call, small blocks that it frees before it returns, is its own affair and not
// counted.
#include <dlfcn.h>
#include <dnnl.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "forebay/model/decoder_compute.h"
#include "forebay/step/layer_walk.h"
#include "forebay/step/step_schedule.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "gtest/gtest.h"

namespace {

std::atomic<int64_t> num_allocations{0};
thread_local bool within_onednn = false;

void* CountedAllocation(size_t size, size_t alignment) {
  if (!within_onednn) num_allocations.fetch_add(1, std::memory_order_relaxed);
  void* const memory =
      alignment <= alignof(std::max_align_t)
          ? std::malloc(size)
          : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(size_t size) {
  return CountedAllocation(size, 1);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return CountedAllocation(size, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

// Stands before oneDNN's, which every product in native bf16 goes through.
dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream,
                                     int num_args, const dnnl_exec_arg_t* args) {
  static const auto real = reinterpret_cast<decltype(&dnnl_primitive_execute)>(
      dlsym(RTLD_NEXT, "dnnl_primitive_execute"));
  within_onednn = true;
  const dnnl_status_t status = real(primitive, stream, num_args, args);
  within_onednn = false;
  return status;
}

namespace forebay::testing {
namespace {

class DecoderAllocation : public ::testing::TestWithParam<cpu::Precision> {};

TEST_P(DecoderAllocation, StepPathAllocatesNothingAfterWarmUp) {
  const DType dtype = GetParam() == cpu::Precision::kFp32 ? DType::kF32 : DType::kBF16;
  for (const std::string& name : TinyModelNames()) {
    const TinyModel model = MakeTinyModel(name, dtype);
    const MicroBatch batch = MakeBatch(model, {{30, 9}}, 40);
    Runner runner(model, {2, GetParam(), 40, true}, dtype);
    runner.LossAndGradients(batch, 1.0);
    const int64_t before = num_allocations.load();
    runner.LossAndGradients(batch, 1.0);
    EXPECT_EQ(num_allocations.load() - before, 0) << name;
  }
}

TEST(DecoderComputeAllocation, AStepAllocatesNothingAfterWarmUpWhateverTheActivationsAre) {
  for (const DType activations : {DType::kF32, DType::kBF16}) {
    const TinyModel model = MakeTinyModel("LlamaGroupedTied", DType::kF32);
    const std::vector<MicroBatch> batches = {MakeBatch(model, {{30, 9}}, 40)};
    Runner runner(model, {2, cpu::Precision::kFp32, 40, true});
    MemoryBudget budget(0);
    const auto compute = DecoderCompute::CreateForTraining(
        &runner.decoder(), 40, &budget, /*storage=*/nullptr, /*recompute=*/{}, activations);
    ASSERT_TRUE(compute.ok()) << compute.status();
    LayerWalk walk(ChainSchedule(ChainOf(model.config)).operations);
    WalkHooks hooks;
    hooks.hand = [](const LayerGradient&) { return absl::OkStatus(); };
    int64_t before = 0;
    for (int pass = 0; pass < 2; ++pass) {
      walk.Announce(runner.source());
      before = num_allocations.load();
      ASSERT_TRUE((*compute)->BeginPass(batches, 1.0).ok());
      ASSERT_TRUE(walk.Run(runner.source(), **compute, hooks).ok());
    }
    EXPECT_EQ(num_allocations.load() - before, 0) << NameOf(activations);
  }
}

TEST(ExtendAllocation, ANewTokenAllocatesNothingAfterWarmUp) {
  for (const std::string& name : TinyModelNames()) {
    const TinyModel model = MakeTinyModel(name);
    Runner runner(model, {2, cpu::Precision::kFp32, 8, false});
    KvCache cache = *KvCache::Create(&runner.budget(), model.config, 30);
    const std::vector<int32_t> tokens = MakeBatch(model, {{20}}, 20).tokens;
    std::vector<float> logits(model.config.vocab_size);
    ASSERT_TRUE(runner.decoder().Extend(runner.source(), tokens, cache, logits).ok());
    const int32_t token = 1;
    const auto extend = [&] {
      return runner.decoder().Extend(runner.source(), {&token, 1}, cache, logits).ok();
    };
    ASSERT_TRUE(extend());
    const int64_t before = num_allocations.load();
    ASSERT_TRUE(extend());
    EXPECT_EQ(num_allocations.load() - before, 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, DecoderAllocation,
                         ::testing::Values(cpu::Precision::kFp32, cpu::Precision::kBf16),
                         [](const auto& test) {
                           return test.param == cpu::Precision::kFp32 ? "Fp32" : "Bf16";
                         });

}  // namespace
}  // namespace forebay::testing
