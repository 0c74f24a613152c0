// Long lines of points made short enough to draw, with their extremes. Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace forebay {

struct ChartPoint {
  double x = 0;
  double y = 0;  // not finite: the line has a gap here
};

// The indices, in order, of at most `most` of `values` (at least 6). All of them where they are no
// more. Otherwise values lie in buckets of equal length, and of each the least, the greatest and
// the first that is not finite stay; and the very first and last of all. So a single high step of
// many thousands is still to be seen.
std::vector<size_t> ThinnedRows(const std::vector<double>& values, size_t most);

}  // namespace forebay
