// The context of the operators, its name, and the bound of its memory.
#include <dnnl.h>
#include <dnnl_debug.h>

#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/model/cpu/attention_blocks.h"
#include "forebay/model/cpu/context_impl.h"
#include "forebay/model/cpu/gemm.h"
#include "forebay/model/cpu/loss.h"
#include "forebay/model/cpu/native_products.h"
#include "forebay/model/cpu/partial_sums.h"

namespace forebay::cpu {
namespace {

// oneDNN's working memory of one thread: an allowance above what was measured, not a bound that it
// promises.
constexpr int64_t kOneDnnBytesPerThread = int64_t{8} << 20;

// With a number of its own for each way in which products were cut, as another adds in another
// order.
constexpr const char* kNativeProducts = "bf16-2";

}  // namespace

Context::Impl::Impl(int num_threads, Precision requested)
    : precision(requested),
      native_bf16(requested == Precision::kBf16 && CpuHasNativeBf16()),
      rounds_to_fp16(requested == Precision::kFp16),
      per_thread(static_cast<size_t>(num_threads)),
      matmuls(num_threads),
      pool(num_threads, "compute", ConfineOpenMpToThisThread) {}

Context::Context(int num_threads, Precision precision)
    : impl_(std::make_unique<Impl>(num_threads, precision)) {
  FOREBAY_CHECK(num_threads >= 1);
}
Context::~Context() = default;

ThreadPool& Context::pool() {
  return impl_->pool;
}
Precision Context::precision() const {
  return impl_->precision;
}
bool Context::native_bf16() const {
  return impl_->native_bf16;
}

std::string Context::kernel_identity() const {
  const dnnl_version_t* version = dnnl_version();
  std::string isa = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());
  if (isa.starts_with("cpu_isa_")) isa.erase(0, 8);
  const char* products = impl_->precision == Precision::kFp32 ? "fp32"
                         : impl_->rounds_to_fp16              ? "fp32-rounded-to-fp16"
                         : impl_->native_bf16                 ? kNativeProducts
                                                              : "fp32-widened";
  return fmt::format("onednn {}.{}.{} {} {}", version->major, version->minor, version->patch, isa,
                     products);
}

int64_t Context::scratch_bytes() const {
  int64_t total = impl_->shared.allocated_bytes();
  for (const Scratch& scratch : impl_->per_thread) total += scratch.allocated_bytes();
  return total;
}

int64_t ScratchBytes(int num_threads, Precision precision, int64_t max_tokens, int64_t hidden,
                     int64_t intermediate, int64_t vocab, int64_t head_dim,
                     int64_t attention_width) {
  constexpr int64_t kFloat = sizeof(float);
  const LossChunks chunks;
  const int64_t vocab_chunk = chunks.cut.PartRows(vocab);
  const int64_t norm_width = std::max(hidden, head_dim);
  int64_t total = 0;
  const auto add = [&](int64_t bytes) { total += ScratchAllocationBytes(bytes); };
  add(2 * norm_width * kFloat);
  add(kMaxPartialSums * static_cast<int64_t>(kMaxSummedVectors) * norm_width * kFloat);
  add(chunks.max_tokens * kLossRowBytes);
  add(chunks.max_tokens * hidden * kFloat);
  add(chunks.max_tokens * hidden * kFloat);
  add(chunks.max_tokens * vocab_chunk * kFloat);
  int64_t per_thread = 0;
  const bool is_native = precision == Precision::kBf16 && CpuHasNativeBf16();
  const bool rounds_to_fp16 = precision == Precision::kFp16;
  if (is_native || rounds_to_fp16) {
    const int64_t operand_bytes = rounds_to_fp16 ? kFloat : static_cast<int64_t>(sizeof(Bf16));
    const int64_t width = std::max({hidden, intermediate, attention_width});
    const int64_t activation = std::max(max_tokens * width, chunks.max_tokens * vocab_chunk);
    add(activation * operand_bytes);
    add(std::max(max_tokens * width, chunks.max_tokens * hidden) * operand_bytes);
  }
  if (is_native) add(kMaxSlicedElems * kFloat);
  if (is_native) per_thread += kOneDnnBytesPerThread;  // the scratchpads that primitives ask for
  if (rounds_to_fp16) per_thread += ScratchAllocationBytes(kWeightPanelElems * kFloat);
  for (const int64_t elems : {kWeightPanelElems, kScoreElems, kScoreElems}) {
    per_thread += ScratchAllocationBytes(elems * kFloat);
  }
  return total + num_threads * (per_thread + kOneDnnBytesPerThread);
}

}  // namespace forebay::cpu
