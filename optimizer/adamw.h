// AdamW with decoupled weight decay: the mathematics on one tile. The scalar reference defines the
// bits; the vector kernels (kernels/adamw_simd.cc) must produce the same ones. Source: Loshchilov &
// Hutter 2019, Algorithm 2; the arithmetic order is torch.optim.AdamW's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "forebay/base/bfloat16.h"
#include "forebay/swap/layout.h"

namespace forebay {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

// The scalars of one step, the same for every tile.
struct AdamWStep {
  int64_t step = 1;  // from 1; for the bias corrections
  double lr = 0;
  double gradient_scale = 1;  // multiplies every gradient (clipping)
  // In place of the configuration's, where a schedule moves them.
  std::optional<double> beta1 = std::nullopt;
  std::optional<double> beta2 = std::nullopt;
};

// One tile, or a run of it with one decay setting. The planes are updated in place.
struct AdamWTile {
  Layout layout = Layout::kBf16;
  int64_t num_elems = 0;
  void* weight = nullptr;        // bf16 (kBf16) or fp32 (kFp32)
  int16_t* remainder = nullptr;  // kBf16 only
  float* m = nullptr;
  float* v = nullptr;
  const void* gradient = nullptr;  // bf16 or fp32
  bool gradient_is_bf16 = true;
  bool decay = true;
};

// Elements [first_elem, first_elem + num_elems) of `tile`.
AdamWTile Part(const AdamWTile& tile, int64_t first_elem, int64_t num_elems, bool decay);

// Never fail; gradients that are not finite are the caller's to reject. No alignment is required;
// buffers must not overlap. Thread-compatible: disjoint tiles may run in parallel. Requires:
// config.eps > 0.
void AdamWRef(const AdamWConfig& config, const AdamWStep& step, const AdamWTile& tile);
// The fastest kernel for this CPU; same bits as AdamWRef.
void AdamWSimd(const AdamWConfig& config, const AdamWStep& step, const AdamWTile& tile);

}  // namespace forebay
