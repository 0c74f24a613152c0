#include "forebay/measure/load/statistics.h"

#include <algorithm>
#include <numeric>

#include "forebay/base/check.h"

namespace forebay {

Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back(), static_cast<int>(values.size())};
}

size_t MedianIndex(std::span<const double> values) {
  FOREBAY_CHECK(!values.empty());
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return values[i]; });
  return order[(order.size() - 1) / 2];
}

double RelativeTrend(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / std::max(n, 1.0);
  if (values.size() < 2 || mean == 0) return 0;
  double covariance = 0;
  double variance = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(i) - (n - 1) / 2;
    covariance += x * (values[i] - mean);
    variance += x * x;
  }
  return covariance / variance * (n - 1) / mean;
}

}  // namespace forebay
