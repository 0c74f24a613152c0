// How the layers of a model are divided among the ranks of a run: each rank has one part of every
// layer's flat vector, and its store holds the parts as if they were smaller layers. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "forebay/base/tensor_spec.h"

namespace forebay {

// So many elements of a tensor, from `first` of the whole one on: in that part from `first_in_part`
// on of what it has of the tensor.
struct ElemPiece {
  int part = 0;
  int64_t first = 0;
  int64_t first_in_part = 0;
  int64_t num_elems = 0;
};
using ElemPieces = std::vector<ElemPiece>;

// Parts are cut between blocks of kLayerAlignElems, and differ by one block at most: no other part
// of a layer is larger than the first. So a part is whole blocks on disk, a norm is summed in the
// same blocks however many parts there are, and a layer of fewer blocks than parts has empty ones.
// Raw layers are not divided: each part has them whole, with bytes of its own.
class InventoryParts {
 public:
  // Requires: num_parts > 0; raw layers are the last.
  InventoryParts(Inventory whole, int num_parts);

  const Inventory& whole() const { return whole_; }
  int num_parts() const { return num_parts_; }
  // [num_parts + 1], in elements of the layer's flat vector: where its parts begin, and its end.
  // Zeros for a raw layer.
  std::span<const int64_t> Offsets(int layer) const {
    const auto num_offsets = static_cast<size_t>(num_parts_) + 1;
    return std::span(offsets_).subspan(static_cast<size_t>(layer) * num_offsets, num_offsets);
  }
  // The part `part` as an inventory: the same layers and tensors, in the same order, each
  // tensor with its elements that lie there ([1, n], or [n] of a small one), which may be none.
  Inventory Of(int part) const;
  // Where those of a tensor (by its index) begin in it.
  int64_t FirstElem(int tensor, int part) const;
  // Elements [first_elem, first_elem + num_elems) of a tensor, in order. Requires: it is not raw.
  ElemPieces PiecesOf(int tensor, int64_t first_elem, int64_t num_elems) const;

 private:
  // [first, end) of the tensor's elements that lie in the part.
  struct Range {
    int64_t first = 0;
    int64_t end = 0;
  };
  Range RangeOf(const TensorSpec& tensor, int part) const;

  const Inventory whole_;
  const int num_parts_;
  std::vector<int64_t> offsets_;  // [layers, num_parts + 1]
};

}  // namespace forebay
