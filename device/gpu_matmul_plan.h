// How GpuMatmul describes a product to the library. Private to its files.
#pragma once

#include <cstdint>
#include <utility>

#include "forebay/device/gpu_matmul.h"

namespace forebay {

// The stored rows of a matrix, and the elements from one to the next.
struct Rows {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
};
inline Rows RowsOf(int64_t rows, int64_t columns, bool transposed, int64_t stride) {
  if (transposed) std::swap(rows, columns);
  return {rows, columns, stride == 0 ? columns : stride};
}
inline Rows RowsOfA(const MatmulShape& shape) {
  return RowsOf(shape.m, shape.k, shape.transpose_a, shape.lda);
}
inline Rows RowsOfB(const MatmulShape& shape) {
  return RowsOf(shape.k, shape.n, shape.transpose_b, shape.ldb);
}
inline Rows RowsOfD(const MatmulShape& shape) {
  return RowsOf(shape.m, shape.n, false, shape.ldd);
}

// The library's matrices are column-major: a row-major [rows, columns] is its [columns, rows]. So
// d = op(a) op(b) is, to it, d' = op(b)' op(a)': b comes first.
struct ProductPlan {
  explicit ProductPlan(const CublasLt* of) : library(of) {}
  ~ProductPlan() {
    if (preference != nullptr) library->MatmulPreferenceDestroy(preference);
    if (desc != nullptr) library->MatmulDescDestroy(desc);
    for (const CublasLt::Layout layout : {first, second, result}) {
      if (layout != nullptr) library->MatrixLayoutDestroy(layout);
    }
  }
  ProductPlan(const ProductPlan&) = delete;
  ProductPlan& operator=(const ProductPlan&) = delete;

  const CublasLt* const library;
  CublasLt::MatmulDesc desc = nullptr;
  CublasLt::Preference preference = nullptr;
  CublasLt::Layout first = nullptr;
  CublasLt::Layout second = nullptr;
  CublasLt::Layout result = nullptr;
  CublasLt::Algorithm algorithm = {};
};

struct GpuMatmul::Plan : ProductPlan {
  using ProductPlan::ProductPlan;
};

// The error of a call for a product.
absl::Status CheckCublasLt(int status, const char* call, const MatmulShape& shape);

// Fills an empty plan, but for the algorithm. Needs no GPU. `bias`: an address that is aligned as
// the product's, whose memory is not touched. The errors of GpuMatmul::Multiply.
absl::Status DescribeProduct(const MatmulProduct& product, int64_t workspace_bytes,
                             const void* bias, ProductPlan& plan);

}  // namespace forebay
