#include "forebay/swap/tiles/tile_planes.h"

#include "forebay/aio/engine.h"
#include "forebay/base/check.h"
#include "forebay/base/round_up.h"

namespace forebay {

TilePlanes::TilePlanes(Layout layout, MomentSet moment_set, bool small)
    : moments_(small ? MomentFormat::kFp32 : MomentFormatOf(layout)) {
  const WeightFormat weights = WeightFormatOf(layout);
  Add(TilePlane::kWeight, kMomentBlockElems * WeightBytesPerElem(weights));
  if (weights == WeightFormat::kSplitBf16) Add(TilePlane::kRemainder, kMomentBlockElems * 2);
  if (weights == WeightFormat::kFp16) Add(TilePlane::kMaster, kMomentBlockElems * 4);
  const int64_t moment_bytes = kMomentBlockElems * MomentBytesPerElem(moments_);
  if (moment_set.m) Add(TilePlane::kM, moment_bytes);
  if (moment_set.v) Add(TilePlane::kV, moment_bytes);
  if (moments_ != MomentFormat::kInt8) return;
  if (moment_set.m) Add(TilePlane::kMScale, 2);
  if (moment_set.v) Add(TilePlane::kVScale, 2);
}

TilePlanes TilePlanes::OfRaw() {
  TilePlanes planes;
  planes.Add(TilePlane::kRaw, kMomentBlockElems);
  return planes;
}

void TilePlanes::Add(TilePlane kind, int64_t block_bytes) {
  planes_[size_++] = {kind, block_bytes};
}

int TilePlanes::Find(TilePlane kind) const {
  for (int plane = 0; plane < size_; ++plane) {
    if (planes_[plane].kind == kind) return plane;
  }
  return -1;
}

int64_t TilePlanes::Bytes(int plane, int64_t num_elems) const {
  FOREBAY_CHECK(plane >= 0 && plane < size_);
  const int64_t block_bytes = planes_[plane].block_bytes;
  FOREBAY_CHECK(num_elems * block_bytes % kMomentBlockElems == 0);
  return num_elems * block_bytes / kMomentBlockElems;
}

int64_t TilePlanes::OffsetBytes(int plane, int64_t num_elems) const {
  int64_t offset_bytes = 0;
  for (int before = 1; before < plane; ++before) offset_bytes += Bytes(before, num_elems);
  return offset_bytes;
}

int64_t TilePlanes::StateBytes(int64_t num_elems) const {
  return RoundUp(OffsetBytes(size_, num_elems), kIoAlignBytes);
}

}  // namespace forebay
