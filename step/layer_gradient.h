// A gradient on its way from whoever computes it to its update: all of a layer's, or a part of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "forebay/base/check.h"
#include "forebay/base/dtype.h"
#include "forebay/device/device.h"

namespace forebay {

// Elements [first_elem, end_elem()) of the layer's flat vector (base/tensor_spec.h). The parts of a
// layer come from the first to the last.
struct LayerGradient {
  int layer = -1;
  std::span<const std::byte> bytes = {};  // of the elements; addresses on `device`
  DType dtype = DType::kF32;  // kF32, or the type in which gradients are held (then in RAM)
  int64_t first_elem = 0;
  // The layer's tensors that got no gradient, by their index in the inventory. They are left alone,
  // and what `bytes` has in their places does not matter. The same with each part of a layer.
  std::span<const int> missing = {};
  DeviceKind device = DeviceKind::kHost;
  Event* ready = nullptr;  // when the elements are complete; nullptr: now
  // Who takes gradients on a device, and returns before it has read them, records here when it has:
  // they are not overwritten before. nullptr: they may be when it returns.
  Event* taken = nullptr;
  // If the elements were rounded to the type in which they are held: the sum of squares of each
  // kNormBlockElems. Empty: these are summed as the gradient is taken.
  std::span<const double> block_squares = {};

  int64_t num_elems() const { return std::ssize(bytes) / SizeOf(dtype); }
  int64_t end_elem() const { return first_elem + num_elems(); }
  // Requires: dtype is kF32.
  std::span<const float> floats() const {
    FOREBAY_CHECK(dtype == DType::kF32);
    return {reinterpret_cast<const float*>(bytes.data()), static_cast<size_t>(num_elems())};
  }
};

// In RAM, and complete.
inline LayerGradient Fp32Gradient(int layer, std::span<const float> elems, int64_t first_elem = 0,
                                  std::span<const int> missing = {}) {
  return {
      .layer = layer, .bytes = std::as_bytes(elems), .first_elem = first_elem, .missing = missing};
}

}  // namespace forebay
