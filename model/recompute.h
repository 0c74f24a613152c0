// Recomputation: the blocks of a decoder compute some of their forward pass again in their backward
// pass. The rest that it needs is saved in RAM. Every choice gives the same bits.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace forebay {

enum class Recompute : uint8_t {
  kAll,        // all: a block keeps its input alone
  kAttention,  // the projections before attention and attention: what the MLP makes is saved
  kNone,       // no matrix product
};
constexpr std::string_view NameOf(Recompute recompute) {
  return recompute == Recompute::kAll         ? "all"
         : recompute == Recompute::kAttention ? "attention"
                                              : "none";
}

// The first `num_blocks` blocks compute again what `recompute` says, the others nothing.
struct BlockRecompute {
  Recompute recompute = Recompute::kAll;
  int num_blocks = std::numeric_limits<int>::max();
  // Blocks of a segment (Chain::segment_layers); 1 unless all blocks compute all again.
  int segment_blocks = 1;
  // The output layer computes logits once more, so that the gradients of the embedding and of the
  // output projection are made and handed over in parts. Only of a model that MayCutVocabulary.
  bool vocabulary_in_parts = false;
  // Besides, the weights of both are lent in pieces, each of one part (WeightPieces), unless they
  // live in RAM. Only with vocabulary_in_parts.
  bool vocabulary_in_pieces = false;

  Recompute Of(int block) const { return block < num_blocks ? recompute : Recompute::kNone; }
  // Whether the block, one of so many, goes forward twice, so that those behind it have inputs.
  bool GoesForwardTwice(int block, int num_of_model) const {
    const int last_segment = (num_of_model - 1) / segment_blocks;
    return block / segment_blocks < last_segment && (block + 1) % segment_blocks != 0;
  }

  friend bool operator==(const BlockRecompute&, const BlockRecompute&) = default;
};

}  // namespace forebay
