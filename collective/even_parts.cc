#include <algorithm>
#include <vector>

#include "forebay/collective/communicator.h"

namespace forebay {

void CutEvenly(int64_t num_elems, std::span<int64_t> offsets) {
  const int64_t num_parts = std::ssize(offsets) - 1;
  for (int64_t r = 0; r <= num_parts; ++r) {
    offsets[static_cast<size_t>(r)] =
        num_elems / num_parts * r + std::min(r, num_elems % num_parts);
  }
}

std::vector<int64_t> EvenParts(int64_t num_elems, int num_ranks) {
  std::vector<int64_t> offsets(static_cast<size_t>(num_ranks) + 1);
  CutEvenly(num_elems, offsets);
  return offsets;
}

}  // namespace forebay
