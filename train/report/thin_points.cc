#include "forebay/train/report/thin_points.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "forebay/base/check.h"

namespace forebay {
namespace {

void AddExtremes(const std::vector<double>& values, size_t begin, size_t end,
                 std::set<size_t>& kept) {
  size_t least = end;
  size_t greatest = end;
  size_t gap = end;
  for (size_t i = begin; i < end; ++i) {
    if (!std::isfinite(values[i])) {
      gap = std::min(gap, i);
      continue;
    }
    if (least == end || values[i] < values[least]) least = i;
    if (greatest == end || values[i] > values[greatest]) greatest = i;
  }
  for (const size_t row : {least, greatest, gap}) {
    if (row != end) kept.insert(row);
  }
}

}  // namespace

std::vector<size_t> ThinnedRows(const std::vector<double>& values, size_t most) {
  FOREBAY_CHECK(most >= 6);
  const size_t count = values.size();
  std::set<size_t> kept;
  if (count <= most) {
    for (size_t i = 0; i < count; ++i) kept.insert(kept.end(), i);
  } else {
    // Three of each bucket at most, and two ends.
    const bool has_gaps = !std::ranges::all_of(values, [](double y) { return std::isfinite(y); });
    const size_t num_buckets = (most - 2) / (has_gaps ? 3 : 2);
    for (size_t i = 0; i < num_buckets; ++i) {
      AddExtremes(values, count * i / num_buckets, count * (i + 1) / num_buckets, kept);
    }
    kept.insert(0);
    kept.insert(count - 1);
  }
  return {kept.begin(), kept.end()};
}

}  // namespace forebay
