// The planes of a tile: one array for each thing that is stored of its elements. Plane 0 is the
// weights'; the others make up the state, one after another in their order. A tile of a raw layer
// (base/tensor_spec.h) has plane 0 alone, its bytes. Pure.
//
// Not for: what these amount to for the user of a tensor (TensorPlane in tile_values.h).
#pragma once

#include <array>
#include <cstdint>

#include "forebay/swap/tiles/layout.h"

namespace forebay {

enum class TilePlane : uint8_t {
  kWeight,     // w16, fp16 or fp32
  kRemainder,  // r16: int16, where the weight is a split bf16
  kMaster,     // fp32, where the weight is fp16
  kM,          // fp32, bf16 or int8
  kV,          // fp32, bf16 or uint8
  kMScale,     // bf16, one for each kMomentBlockElems; with int8 alone
  kVScale,
  kRaw,  // a byte for each element; in raw tiles alone
};

class TilePlanes {
 public:
  // `small`: of a tile of small tensors, whose moments are fp32.
  TilePlanes(Layout layout, MomentSet moment_set, bool small);
  // The one plane of a raw tile, whatever the layout.
  static TilePlanes OfRaw();

  int size() const { return size_; }
  TilePlane kind(int plane) const { return planes_[plane].kind; }
  bool IsScale(int plane) const {
    return kind(plane) == TilePlane::kMScale || kind(plane) == TilePlane::kVScale;
  }
  // Of which format kM and kV are.
  MomentFormat moments() const { return moments_; }
  // Its number; -1: there is none.
  int Find(TilePlane kind) const;
  // Of `num_elems` elements. Requires: a multiple of kMomentBlockElems, or no plane of scales.
  int64_t Bytes(int plane, int64_t num_elems) const;
  // Where it begins within the weights, or the state, of a tile of `num_elems`.
  int64_t OffsetBytes(int plane, int64_t num_elems) const;
  // The size of all planes but 0, in whole blocks of kIoAlignBytes; the end of the last is zero.
  int64_t StateBytes(int64_t num_elems) const;

 private:
  struct Plane {
    TilePlane kind = TilePlane::kWeight;
    int64_t block_bytes = 0;  // of kMomentBlockElems elements
  };
  TilePlanes() = default;
  void Add(TilePlane kind, int64_t block_bytes);

  static constexpr int kMostPlanes = 6;
  std::array<Plane, kMostPlanes> planes_;
  int size_ = 0;
  MomentFormat moments_ = MomentFormat::kFp32;
};

}  // namespace forebay
