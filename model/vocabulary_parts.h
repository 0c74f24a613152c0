// How a decoder's large vocabulary goes in parts: gradients of the embedding and of the output
// projection, and their weights. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "forebay/base/tensor_spec.h"
#include "forebay/model/decoder_config.h"

namespace forebay {

// Whether BlockRecompute::vocabulary_in_parts is for the model, and the elements of its largest
// part, with the padding behind the last row.
bool MayCutVocabulary(const DecoderConfig& config);
int64_t MostElemsOfVocabularyPart(const DecoderConfig& config);
// The same of vocabulary_in_pieces in a store with such tiles, and the elements of a piece.
bool MayLendInPieces(const DecoderConfig& config, const Inventory& inventory, int64_t tile_elems);
int64_t PieceElemsOf(const DecoderConfig& config);
// A part of the gradient of the layer of the embedding or of the head: rows of the table that
// begins it, with the padding behind the last of them; or the small tensors.
struct VocabularyPart {
  int64_t first_row = 0;
  int64_t num_rows = 0;  // 0: the small tensors
  int64_t num_elems = 0;

  bool IsOfSmallTensors() const { return num_rows == 0; }
};
// That which begins with `first_elem` of the layer's; nullopt at its end. Requires: a part, or the
// small tensors, or nothing begins there; MayCutVocabulary.
std::optional<VocabularyPart> VocabularyPartAt(const DecoderConfig& config, const LayerSpec& layer,
                                               int64_t first_elem);

}  // namespace forebay
