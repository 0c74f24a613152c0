#include "forebay/swap/tiles/inventory_parts.h"

#include <algorithm>
#include <utility>

#include "forebay/base/check.h"

namespace forebay {

InventoryParts::InventoryParts(Inventory whole, int num_parts)
    : whole_(std::move(whole)), num_parts_(num_parts) {
  FOREBAY_CHECK(num_parts > 0 && whole_.CheckRawLayersAreLast().ok());
  for (const LayerSpec& layer : whole_.layers()) {
    const int64_t num_blocks = layer.raw ? 0 : layer.num_elems / kLayerAlignElems;
    for (int64_t part = 0; part <= num_parts; ++part) {
      offsets_.push_back((num_blocks * part + num_parts - 1) / num_parts * kLayerAlignElems);
    }
  }
}

InventoryParts::Range InventoryParts::RangeOf(const TensorSpec& tensor, int part) const {
  if (tensor.raw) return {0, tensor.num_elems};
  const auto offsets = Offsets(tensor.layer);
  const int64_t begin = std::max(tensor.offset_elems, offsets[part]);
  const int64_t end = std::min(tensor.offset_elems + tensor.num_elems, offsets[part + 1]);
  if (begin >= end) return {};
  return {begin - tensor.offset_elems, end - tensor.offset_elems};
}

Inventory InventoryParts::Of(int part) const {
  Inventory result;
  for (const LayerSpec& layer : whole_.layers()) {
    if (layer.raw) {
      result.BeginRawLayer(layer.name);
    } else {
      result.BeginLayer(layer.name);
    }
    for (int i = layer.first_tensor; i < layer.first_tensor + layer.num_tensors; ++i) {
      const TensorSpec& tensor = whole_.tensors()[i];
      if (tensor.raw) {
        result.AddRaw(tensor.name, tensor.num_elems);
        continue;
      }
      const Range range = RangeOf(tensor, part);
      const int64_t count = range.end - range.first;
      result.Add(tensor.name, IsSmall(tensor.shape) ? Shape{count} : Shape{1, count}, tensor.role,
                 tensor.decay);
    }
  }
  // Cuts lie where the rules of the layout would begin a tensor anyway, so nothing has moved.
  for (size_t i = 0; i < whole_.tensors().size(); ++i) {
    const TensorSpec& tensor = whole_.tensors()[i];
    const TensorSpec& own = result.tensors()[i];
    const int64_t first = tensor.offset_elems + RangeOf(tensor, part).first;
    FOREBAY_CHECK(own.num_elems == 0 || own.offset_elems == first - Offsets(tensor.layer)[part]);
  }
  return result;
}

ElemPieces InventoryParts::PiecesOf(int tensor, int64_t first_elem, int64_t num_elems) const {
  FOREBAY_CHECK(!whole_.tensors()[tensor].raw);
  ElemPieces pieces;
  for (int part = 0; part < num_parts_; ++part) {
    const Range range = RangeOf(whole_.tensors()[tensor], part);
    const int64_t first = std::max(range.first, first_elem);
    const int64_t end = std::min(range.end, first_elem + num_elems);
    if (first < end) pieces.push_back({part, first, first - range.first, end - first});
  }
  return pieces;
}

int64_t InventoryParts::FirstElem(int tensor, int part) const {
  return RangeOf(whole_.tensors()[tensor], part).first;
}

}  // namespace forebay
