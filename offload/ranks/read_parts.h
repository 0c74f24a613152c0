// Values of whole tensors where each rank has a part of every layer: each gives its part to all.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "forebay/base/errors.h"
#include "forebay/collective/communicator.h"
#include "forebay/swap/tiles/inventory_parts.h"

namespace forebay {

// Elements [first_elem, first_elem + out.size()) of a tensor (by its index in the whole inventory),
// on every rank. read(first_in_part, values) reads those that this rank has. Every rank makes the
// same calls in the same order. EnvironmentError of the ranks, and that of `read`, behind which the
// others wait for this rank until it says so (Communicator::Abort).
template <typename T, typename Read>
absl::Status ReadOfAllParts(const InventoryParts& parts, Communicator& ranks, int tensor,
                            int64_t first_elem, std::span<T> out, const Read& read) {
  for (const ElemPiece& piece : parts.PiecesOf(tensor, first_elem, std::ssize(out))) {
    const std::span<T> values = out.subspan(piece.first - first_elem, piece.num_elems);
    if (piece.part == ranks.rank()) {
      FOREBAY_RETURN_IF_ERROR(read(piece.first_in_part, values));
    }
    FOREBAY_RETURN_IF_ERROR(ranks.Broadcast(std::as_writable_bytes(values), piece.part));
  }
  return absl::OkStatus();
}

}  // namespace forebay
