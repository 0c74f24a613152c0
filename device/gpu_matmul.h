// Matrix products on a GPU, by cuBLASLt: row-major, bf16, fp16 or fp32, with fp32 sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

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

  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 means the comparison it generates.
  auto operator<=>(const MatmulShape&) const = default;
};

// What an algorithm is for: a shape (which `accumulate` is no part of), and what operands are
// aligned to. Alignments are bytes, 16 at most: so the bits of a product do not depend on where its
// operands happen to lie, as long as all are aligned.
struct MatmulProduct {
  MatmulShape shape;
  uint32_t a_alignment = 16;
  uint32_t b_alignment = 16;
  uint32_t d_alignment = 16;
  uint32_t bias_alignment = 0;  // 0: it has none

  // NOLINTNEXTLINE(modernize-use-nullptr)
  auto operator<=>(const MatmulProduct&) const = default;
};
MatmulProduct ProductOf(const MatmulShape& shape, const void* a, const void* b, const void* d,
                        const void* bias);

// Of all algorithms that the library has for a product, those alone are taken that add in one
// order: so a product has the same bits each time on one card and library. Which of them it is,
// Tune finds by time, and Use knows from then; the library guesses it of all other products.
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

  // Has `product` computed by this algorithm, before it is multiplied first; false: the library
  // does not take it, and nothing is changed. The errors of Multiply.
  absl::StatusOr<bool> Use(const MatmulProduct& product, const CublasLt::Algorithm& algorithm);
  // Measures the algorithms of `product`, before it is multiplied first, and has it computed by the
  // one that it gives. `memory`: the device's, OperandBytes(product) of any contents, which are
  // overwritten. Waits for `stream`. The errors of Multiply.
  absl::StatusOr<CublasLt::Algorithm> Tune(const MatmulProduct& product, std::byte* memory,
                                           Stream& stream);
  static int64_t OperandBytes(const MatmulProduct& product);
  // "13.0.1"
  std::string LibraryVersion() const;

 private:
  struct Plan;
  // The addresses of one call.
  struct Operands {
    const void* a = nullptr;
    const void* b = nullptr;
    void* d = nullptr;
    const void* bias = nullptr;
  };
  GpuMatmul(Device* device, const CublasLt* library, CublasLt::Handle handle,
            DeviceBuffer workspace);
  absl::StatusOr<std::unique_ptr<Plan>> Describe(const MatmulProduct& product) const;
  // The library's guesses, `most` at most, the best first; one at least.
  absl::StatusOr<std::vector<CublasLt::Heuristic>> Guess(const MatmulProduct& product,
                                                         const Plan& plan, int most) const;
  absl::StatusOr<Plan*> PlanFor(const MatmulProduct& product);
  absl::Status Enqueue(const MatmulShape& shape, Plan& plan, const Operands& operands,
                       Stream& stream, void* native_stream) const;
  // The median of a few runs, behind one that is not counted.
  absl::StatusOr<double> SecondsOf(const MatmulProduct& product, Plan& plan,
                                   const Operands& operands, Stream& stream) const;

  Device* const device_;
  const CublasLt* const library_;
  const CublasLt::Handle handle_;
  const DeviceBuffer workspace_;
  std::mutex mutex_;
  std::map<MatmulProduct, std::unique_ptr<Plan>> plans_;
};

}  // namespace forebay
