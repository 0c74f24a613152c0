#include "forebay/model/cpu/native_products.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "forebay/base/check.h"
#include "forebay/model/cpu/equal_blocks.h"
#include "forebay/model/cpu/kernels.h"

namespace forebay::cpu {
namespace {

// Each task packs its part of B. Where rows of C are this wide, tasks of whole rows pack too much.
constexpr int64_t kWideRow = 2048;
// With fewer rows, tasks of whole rows are too few.
constexpr int64_t kManyRows = 512;
// The shortest k that is worth slices, and their length.
constexpr int64_t kLongK = 16384;
constexpr int64_t kSliceK = 4096;

struct BlockSize {
  int64_t m, n;
};

NativePlan Cut(int64_t m, int64_t n, int64_t k, BlockSize largest, int64_t largest_slice) {
  NativePlan plan;
  plan.block_m = EqualBlocks(m, largest.m, 8);
  plan.block_n = EqualBlocks(n, largest.n, 16);
  plan.slice_k = EqualBlocks(k, largest_slice, 32);
  plan.num_m = DivideRoundingUp(m, plan.block_m);
  plan.num_n = DivideRoundingUp(n, plan.block_n);
  plan.num_k = DivideRoundingUp(k, plan.slice_k);
  return plan;
}

// The first of `sizes`, largest first, that makes enough tasks; else the last.
NativePlan FirstWithEnoughTasks(int64_t m, int64_t n, int64_t k, std::span<const BlockSize> sizes) {
  for (const BlockSize& size : sizes) {
    const NativePlan plan = Cut(m, n, k, size, k);
    if (plan.num_tasks() >= kEnoughTasks) return plan;
  }
  return Cut(m, n, k, sizes.back(), k);
}

// One task: block (m, n) of C from slice k.
struct Part {
  int64_t m_begin, m_size, n_begin, n_size, k_begin, k_size;
};
Part PartOf(const NativePlan& plan, const NativeProduct& p, int64_t task) {
  const int64_t m = task % plan.num_m * plan.block_m;
  const int64_t n = task / plan.num_m % plan.num_n * plan.block_n;
  const int64_t k = task / plan.num_m / plan.num_n * plan.slice_k;
  return {m, std::min(plan.block_m, p.m - m), n, std::min(plan.block_n, p.n - n),
          k, std::min(plan.slice_k, p.k - k)};
}

// Where the parts of a product go: C, or a matrix for each slice.
struct PartTarget {
  float* data;
  int64_t ldc;
  int64_t slice_elems;  // from one slice's to the next's
  bool accumulate;
};

class NativeTasks {
 public:
  NativeTasks(Context::Impl& impl, const NativeProduct& product, const NativePlan& plan,
              const PartTarget& target)
      : impl_(impl), product_(product), plan_(plan), target_(target) {
    // The cache belongs to this thread: all of it that tasks need is made before they start.
    const MatmulShape usual = ShapeOf(PartOf(plan, product, 0));
    MatmulCache::Primitive& of_usual = impl.matmuls.Get(usual);
    for (const bool m_is_last : {false, true}) {
      for (const bool n_is_last : {false, true}) {
        for (const bool k_is_last : {false, true}) {
          const int64_t task = (m_is_last ? plan.num_m - 1 : 0) +
                               plan.num_m * ((n_is_last ? plan.num_n - 1 : 0) +
                                             plan.num_n * (k_is_last ? plan.num_k - 1 : 0));
          const MatmulShape shape = ShapeOf(PartOf(plan, product, task));
          primitives_[m_is_last][n_is_last][k_is_last] =
              shape == usual ? &of_usual : &impl.matmuls.Get(shape);
        }
      }
    }
  }

  void Run(int64_t task, int thread) const {
    const Part part = PartOf(plan_, product_, task);
    MatmulCache::Primitive& primitive = *primitives_[part.m_begin + part.m_size == product_.m]
                                                    [part.n_begin + part.n_size == product_.n]
                                                    [part.k_begin + part.k_size == product_.k];
    const auto [a_row, a_column] = AStrides();
    float* const c = target_.data + part.k_begin / plan_.slice_k * target_.slice_elems +
                     part.m_begin * target_.ldc + part.n_begin;
    MatmulCache::Run(
        primitive, thread, impl_.thread_scratch(thread),
        product_.a + part.m_begin * a_row + part.k_begin * a_column,
        product_.b + part.k_begin * product_.b_row_stride + part.n_begin * product_.b_column_stride,
        c);
    if (product_.bias == nullptr) return;
    for (int64_t row = 0; row < part.m_size; ++row) {
      kernels::AddWeights(product_.bias + part.n_begin, DType::kBF16, part.n_size,
                          c + row * target_.ldc);
    }
  }

 private:
  struct Strides {
    int64_t row, column;
  };
  Strides AStrides() const {
    return product_.a_transposed ? Strides{1, product_.m} : Strides{product_.k, 1};
  }
  MatmulShape ShapeOf(const Part& part) const {
    const auto [a_row, a_column] = AStrides();
    return {.m = part.m_size,
            .n = part.n_size,
            .k = part.k_size,
            .a_row_stride = a_row,
            .a_column_stride = a_column,
            .b_row_stride = product_.b_row_stride,
            .b_column_stride = product_.b_column_stride,
            .ldc = target_.ldc,
            .accumulate = target_.accumulate};
  }

  Context::Impl& impl_;
  const NativeProduct& product_;
  const NativePlan& plan_;
  const PartTarget target_;
  // By whether a part is the last of its rows, columns and slice: only that may be smaller.
  MatmulCache::Primitive* primitives_[2][2][2];
};

// c (+)= the slices' products, in order.
void AddSlices(Context::Impl& impl, const NativeProduct& p, const float* slices,
               int64_t num_slices) {
  impl.ParallelBlocks(p.m, 8, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const to = p.c + row * p.ldc;
      for (int64_t slice = 0; slice < num_slices; ++slice) {
        const float* const from = slices + (slice * p.m + row) * p.n;
        if (slice == 0 && !p.accumulate) {
          std::memcpy(to, from, static_cast<size_t>(p.n) * sizeof(float));
        } else {
          kernels::Add(from, p.n, to);
        }
      }
    }
  });
}

}  // namespace

// All sizes as measured on AVX-512 bf16 (docs/performance.md, "Products in bf16"). Where C is cut
// by rows alone, all operands are dense, and oneDNN takes its brgemm; else its packing gemm.
NativePlan PlanNativeProduct(int64_t m, int64_t n, int64_t k, bool a_transposed) {
  if (a_transposed) {
    static constexpr BlockSize kSizes[] = {{256, 1024}, {128, 576}, {128, 288}, {64, 288}};
    return FirstWithEnoughTasks(m, n, k, kSizes);
  }
  if (n >= kWideRow) {
    static constexpr BlockSize kSizes[] = {{1024, 1024}, {512, 1024}, {256, 1024}, {256, 512},
                                           {256, 256},   {128, 256},  {64, 96}};
    return FirstWithEnoughTasks(m, n, k, kSizes);
  }
  if (k >= kLongK) {
    // One matrix for each slice: as many as there is room for.
    const int64_t most = std::max<int64_t>(1, kMaxSlicedElems / (m * n));
    return Cut(m, n, k, {256, 768}, std::max(kSliceK, DivideRoundingUp(k, most)));
  }
  if (m >= kManyRows) return Cut(m, n, k, {m >= 2048 ? 256 : 128, n}, k);
  static constexpr BlockSize kSizes[] = {{256, 384}, {128, 288}, {128, 192}, {128, 96}, {64, 96}};
  return FirstWithEnoughTasks(m, n, k, kSizes);
}

void MultiplyNative(Context::Impl& impl, const NativeProduct& product) {
  const OneThreadOpenMp confined;  // primitives are made for one thread
  const NativePlan plan = PlanNativeProduct(product.m, product.n, product.k, product.a_transposed);
  const bool is_sliced = plan.num_k > 1;
  FOREBAY_CHECK(!is_sliced || product.bias == nullptr);
  const PartTarget target =
      is_sliced
          ? PartTarget{impl.shared.Get<float>(Slot::kSlices, plan.num_k * product.m * product.n),
                       product.n, product.m * product.n, false}
          : PartTarget{product.c, product.ldc, 0, product.accumulate};
  const NativeTasks tasks(impl, product, plan, target);
  impl.Parallel(plan.num_tasks(), [&](int64_t task, int thread) { tasks.Run(task, thread); });
  if (is_sliced) AddSlices(impl, product, target.data, plan.num_k);
}

}  // namespace forebay::cpu
