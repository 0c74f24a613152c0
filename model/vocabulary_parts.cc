#include "forebay/model/vocabulary_parts.h"

#include <algorithm>

#include "forebay/base/check.h"
#include "forebay/base/round_up.h"
#include "forebay/model/operands/vocabulary_cut.h"

namespace forebay {

bool MayCutVocabulary(const DecoderConfig& config) {
  return VocabularyCut().Cuts(config.vocab_size) && config.positions == PositionKind::kRope;
}

int64_t MostElemsOfVocabularyPart(const DecoderConfig& config) {
  return RoundUp(VocabularyCut().part_rows * config.hidden_size, kLayerAlignElems);
}

int64_t PieceElemsOf(const DecoderConfig& config) {
  return VocabularyCut().part_rows * config.hidden_size;
}

bool MayLendInPieces(const DecoderConfig& config, const Inventory& inventory, int64_t tile_elems) {
  if (!MayCutVocabulary(config) || PieceElemsOf(config) % tile_elems != 0) return false;
  // One piece has all small tensors.
  const LayerSpec& head = inventory.layers()[HeadLayer(config)];
  return config.tied_embeddings ||
         head.small_begin / PieceElemsOf(config) == (head.num_elems - 1) / PieceElemsOf(config);
}

std::optional<VocabularyPart> VocabularyPartAt(const DecoderConfig& config, const LayerSpec& layer,
                                               int64_t first_elem) {
  if (first_elem == layer.num_elems) return std::nullopt;
  VocabularyPart part;
  if (first_elem == layer.small_begin) {
    part.num_elems = layer.num_elems - first_elem;
    return part;
  }
  const int64_t part_rows = VocabularyCut().part_rows;
  FOREBAY_CHECK(first_elem % (part_rows * config.hidden_size) == 0);
  // The table is the only large tensor.
  FOREBAY_CHECK(layer.small_begin ==
                RoundUp(config.vocab_size * config.hidden_size, kLayerAlignElems));
  part.first_row = first_elem / config.hidden_size;
  const int64_t rows_left = config.vocab_size - part.first_row;
  part.num_rows = std::min(part_rows, rows_left);
  const bool is_last = part.num_rows == rows_left;
  part.num_elems = is_last ? layer.small_begin - first_elem : part.num_rows * config.hidden_size;
  return part;
}

}  // namespace forebay
