// Elementwise operators, embeddings and RoPE, cut into tasks.
#include <algorithm>
#include <limits>

#include "forebay/base/check.h"
#include "forebay/model/cpu/context_impl.h"
#include "forebay/model/cpu/gemm.h"
#include "forebay/model/cpu/kernels.h"

namespace forebay::cpu {
namespace {

constexpr int64_t kBlockElems =
    16 * 1024;  // a few microseconds of work; inputs and output fit the second-level cache
constexpr int64_t kBlockTokens = 32;

}  // namespace

void SwiGluForward(Context& context, const float* gate, const float* up, int64_t count,
                   float* out) {
  context.impl().ParallelBlocks(count, kBlockElems, [&](int64_t begin, int64_t end) {
    kernels::SwiGlu(gate + begin, up + begin, end - begin, out + begin);
  });
}

void SwiGluBackward(Context& context, const float* gate, const float* up, const float* dout,
                    int64_t count, float* dgate, float* dup) {
  context.impl().ParallelBlocks(count, kBlockElems, [&](int64_t begin, int64_t end) {
    kernels::SwiGluGradient(gate + begin, up + begin, dout + begin, end - begin, dgate + begin,
                            dup + begin);
  });
}

void GeluTanhForward(Context& context, const float* x, int64_t count, float* out) {
  context.impl().ParallelBlocks(count, kBlockElems, [&](int64_t begin, int64_t end) {
    kernels::GeluTanh(x + begin, end - begin, out + begin);
  });
}

void GeluTanhBackward(Context& context, const float* x, const float* dout, int64_t count,
                      float* dx) {
  context.impl().ParallelBlocks(count, kBlockElems, [&](int64_t begin, int64_t end) {
    kernels::GeluTanhGradient(x + begin, dout + begin, end - begin, dx + begin);
  });
}

void Add(Context& context, const float* x, int64_t count, float* y) {
  context.impl().ParallelBlocks(count, kBlockElems, [&](int64_t begin, int64_t end) {
    kernels::Add(x + begin, end - begin, y + begin);
  });
}

void Rope(Context& context, const RopeTable& table, std::span<const int32_t> positions,
          int64_t heads, float* x, bool inverse) {
  const int64_t half = table.head_dim / 2;
  const int64_t num_positions = static_cast<int64_t>(table.cos.size()) / half;
  const int64_t tokens = static_cast<int64_t>(positions.size());
  context.impl().ParallelBlocks(tokens, kBlockTokens, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const int64_t position = positions[static_cast<size_t>(token)];
      FOREBAY_CHECK(position >= 0 && position < num_positions);
      kernels::RotateHeads(table.cos.data() + position * half, table.sin.data() + position * half,
                           inverse ? -1.0f : 1.0f, half, heads, x + token * heads * table.head_dim);
    }
  });
}

void EmbeddingForward(Context& context, const void* table, DType dtype,
                      std::span<const int32_t> tokens, int64_t hidden, float* out,
                      bool accumulate) {
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  context.impl().ParallelBlocks(num_tokens, kBlockTokens, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const void* row = ElementAt(table, dtype, tokens[static_cast<size_t>(i)] * hidden);
      if (accumulate) {
        kernels::AddWeights(row, dtype, hidden, out + i * hidden);
      } else {
        kernels::Widen(row, dtype, hidden, out + i * hidden);
      }
    }
  });
}

void EmbeddingForwardOfRows(Context& context, const void* rows, DType dtype,
                            std::span<const int32_t> tokens, int64_t hidden, int64_t first_row,
                            int64_t num_rows, float* out) {
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  context.impl().ParallelBlocks(num_tokens, kBlockTokens, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = tokens[static_cast<size_t>(i)] - first_row;
      if (row < 0 || row >= num_rows) continue;
      kernels::Widen(ElementAt(rows, dtype, row * hidden), dtype, hidden, out + i * hidden);
    }
  });
}

// Tasks are strips of columns, so that each sees all tokens in order and none writes where another
// does.
void EmbeddingBackwardOfRows(Context& context, std::span<const int32_t> tokens, int64_t hidden,
                             const float* dout, int64_t first_row, int64_t num_rows,
                             float* dtable) {
  constexpr int64_t kStrip = 64;
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  context.impl().ParallelBlocks(hidden, kStrip, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < num_tokens; ++i) {
      const int64_t row = tokens[static_cast<size_t>(i)] - first_row;
      if (row < 0 || row >= num_rows) continue;
      kernels::Add(dout + i * hidden + begin, end - begin, dtable + row * hidden + begin);
    }
  });
}

void EmbeddingBackward(Context& context, std::span<const int32_t> tokens, int64_t hidden,
                       const float* dout, float* dtable) {
  EmbeddingBackwardOfRows(context, tokens, hidden, dout, /*first_row=*/0,
                          std::numeric_limits<int64_t>::max(), dtable);
}

}  // namespace forebay::cpu
