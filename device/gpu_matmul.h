// Matrix products on a GPU, by cuBLASLt: row-major, bf16, fp16 or fp32, with fp32 sums.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/device/cublaslt.h"
#include "forebay/device/device.h"

namespace forebay {

// d[m, n] = op(a) op(b), or d += op(a) op(b). All are row-major: op(a) is [m, k], stored as that
// or, transposed, as [k, m]; op(b) is [k, n], stored as that or as [n, k].
struct MatmulShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  // Elements between rows as stored; 0: rows without gaps.
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldd = 0;
  DType inputs = DType::kBF16;
  DType output = DType::kBF16;  // or fp32
  bool accumulate = false;
  bool tf32 = false;  // inputs of fp32 are rounded to 10 bits of mantissa: several times faster

  auto operator<=>(const MatmulShape&) const = default;
};

// The library chooses an algorithm when a shape is first seen, from those that add in one order: so
// a product has the same bits each time on one card and library.
//
// Thread-safe; products of one object go to one stream at a time, as they share a workspace.
class GpuMatmul {
 public:
  // `device`: a CUDA device, which must outlive it. EnvironmentError: no library, or it refuses.
  // OutOfMemoryError: the workspace.
  static absl::StatusOr<std::unique_ptr<GpuMatmul>> Create(Device* device,
                                                           int64_t workspace_bytes = int64_t{32}
                                                                                     << 20);
  ~GpuMatmul();
  GpuMatmul(const GpuMatmul&) = delete;
  GpuMatmul& operator=(const GpuMatmul&) = delete;

  // Enqueues the product on `stream`. `bias` (nullptr: none) is added to every row of d: [n], of
  // the output's type. Addresses are the device's, and borrowed until the stream is through; where
  // they or distances between rows are no multiples of 16 bytes the product is right, and slower.
  // UsageError: a size that is not above 0, rows that overlap, or a type that is not one of them.
  // EnvironmentError: the library has no algorithm for it, or it fails.
  absl::Status Multiply(const MatmulShape& shape, const void* a, const void* b, void* d,
                        Stream& stream, const void* bias = nullptr);

 private:
  struct Plan;
  // An algorithm is chosen for each. Alignments are bytes, 16 at most: so the bits of a product do
  // not depend on where its operands happen to lie, as long as all are aligned.
  struct PlanKey {
    MatmulShape shape;
    uint32_t a_alignment;
    uint32_t b_alignment;
    uint32_t d_alignment;
    bool has_bias;

    auto operator<=>(const PlanKey&) const = default;
  };
  GpuMatmul(const CublasLt* library, CublasLt::Handle handle, DeviceBuffer workspace);
  absl::StatusOr<Plan*> PlanFor(const PlanKey& key, const void* bias);
  absl::Status Describe(const PlanKey& key, const void* bias, Plan& plan) const;
  absl::Status Choose(const PlanKey& key, Plan& plan) const;

  const CublasLt* const library_;
  const CublasLt::Handle handle_;
  const DeviceBuffer workspace_;
  std::mutex mutex_;
  std::map<PlanKey, std::unique_ptr<Plan>> plans_;
};

}  // namespace forebay
