// How GpuMatmul describes a product to the library. Private to its two files.
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
struct GpuMatmul::Plan {
  explicit Plan(const CublasLt* of) : library(of) {}
  ~Plan() {
    if (desc != nullptr) library->MatmulDescDestroy(desc);
    for (const CublasLt::Layout layout : {first, second, result}) {
      if (layout != nullptr) library->MatrixLayoutDestroy(layout);
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const CublasLt* const library;
  CublasLt::MatmulDesc desc = nullptr;
  CublasLt::Layout first = nullptr;
  CublasLt::Layout second = nullptr;
  CublasLt::Layout result = nullptr;
  CublasLt::Algorithm algorithm = {};
};

}  // namespace forebay
