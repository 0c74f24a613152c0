// How a large vocabulary is cut into parts: logits, and the gradients of the output projection and
// of the embedding, are made part by part. Every backend cuts it like this whatever memory there
// is, so that the products, and so the bits, are the same.
#pragma once

#include <cstdint>

namespace forebay {

struct VocabularyCut {
  int64_t most_at_once = 65536;  // entries of a vocabulary that is one part
  int64_t part_rows = 16384;     // of the others' parts, but for the last, which may have fewer

  bool Cuts(int64_t vocab) const { return vocab > most_at_once; }
  int64_t PartRows(int64_t vocab) const { return Cuts(vocab) ? part_rows : vocab; }
};

}  // namespace forebay
