// The committed state of a run that one store has, or several, each a part of every layer; and how
// another store, of whichever part, takes it over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "forebay/base/errors.h"
#include "forebay/offload/create_store.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/inventory_parts.h"

namespace forebay {

// Used by one thread.
class DividedState {
 public:
  // `stores`: by part, all of them open; their inventories are those of the parts.
  DividedState(std::shared_ptr<const InventoryParts> parts,
               std::vector<std::unique_ptr<TensorStore>> stores)
      : parts_(std::move(parts)), stores_(std::move(stores)) {}

  const Inventory& inventory() const { return parts_->whole(); }
  int num_parts() const { return parts_->num_parts(); }
  TensorStore& store(int part) const { return *stores_[static_cast<size_t>(part)]; }

  // read(store, its tensor, first element in that, values) for each piece of the elements
  // [first_elem, first_elem + out.size()) of a tensor of inventory().
  template <typename T, typename Read>
  absl::Status ReadPieces(const TensorSpec& tensor, int64_t first_elem, std::span<T> out,
                          const Read& read) const {
    const auto index = static_cast<int>(&tensor - inventory().tensors().data());
    for (const ElemPiece& piece : parts_->PiecesOf(index, first_elem, std::ssize(out))) {
      TensorStore& of_part = store(piece.part);
      FOREBAY_RETURN_IF_ERROR(read(of_part, of_part.inventory().tensors()[index],
                                   piece.first_in_part,
                                   out.subspan(piece.first - first_elem, piece.num_elems)));
    }
    return absl::OkStatus();
  }
  // The stored bytes of a plane that belong to so many elements of a tensor, as
  // TensorStore::ReadTilePlane has them. Requires: its requirements; of `first_elem` too, of
  // scales.
  absl::Status ReadPlane(const TensorSpec& tensor, TilePlane kind, int64_t first_elem,
                         int64_t num_elems, std::span<std::byte> out) const;

 private:
  std::shared_ptr<const InventoryParts> parts_;       // one part: a store with the whole
  std::vector<std::unique_ptr<TensorStore>> stores_;  // by part
};

// Fills the tiles of a store with `own`, the inventory of part `part` of that state's layers (of
// all of them, where `parts` is nullptr): weights and moments to the bit. What is pointed to
// outlives the filler. Requires: the layouts and moments of both are the same.
TileFiller CopyOf(const DividedState* state, const Inventory* own, const InventoryParts* parts,
                  int part, const TileMap* tiles);

}  // namespace forebay
