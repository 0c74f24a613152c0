// The layers that stay in the faster memory, where not all of them can.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace forebay {

// So many of `layers`, all where there are fewer, spread evenly: so that computing with them covers
// bringing the others.
inline std::vector<int> SpreadEvenly(std::span<const int> layers, int64_t count) {
  const int64_t all = std::ssize(layers);
  count = std::min(count, all);
  std::vector<int> spread;
  for (int64_t i = 0; i < all; ++i) {
    if ((i + 1) * count / all > i * count / all) spread.push_back(layers[static_cast<size_t>(i)]);
  }
  return spread;
}

}  // namespace forebay
