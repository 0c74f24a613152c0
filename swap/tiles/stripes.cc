#include "forebay/swap/tiles/stripes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "forebay/base/check.h"

namespace forebay {
namespace {

constexpr double kRoundToPercent = 5;

}  // namespace

int64_t Total(std::span<const int64_t> bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

StripeWeights WeightsInProportion(std::span<const double> weights) {
  FOREBAY_CHECK(!weights.empty() && weights.size() <= static_cast<size_t>(kMaxStripes));
  StripeWeights whole;
  int64_t common = 0;
  for (const double weight : weights) {
    FOREBAY_CHECK(weight >= 0.001 && weight <= 1e6);
    whole.push_back(std::llround(weight * 1000));
    common = std::gcd(common, whole.back());
  }
  for (int64_t& weight : whole) weight /= common;
  return whole;
}

StripeWeights WeightsOfSpeeds(std::vector<double> bytes_per_s,
                              std::span<const uint64_t> file_systems) {
  FOREBAY_CHECK(bytes_per_s.size() == file_systems.size());
  for (size_t i = 0; i < bytes_per_s.size(); ++i) {
    bytes_per_s[i] /= static_cast<double>(std::ranges::count(file_systems, file_systems[i]));
  }
  const double fastest = *std::ranges::max_element(bytes_per_s);
  std::vector<double> percent;
  for (const double speed : bytes_per_s) {
    const double exact = 100 * speed / fastest;
    percent.push_back(exact > 2 * kRoundToPercent
                          ? kRoundToPercent * std::round(exact / kRoundToPercent)
                          : std::max(1.0, std::round(exact)));
  }
  return WeightsInProportion(percent);
}

StripeDealer::StripeDealer(StripeWeights weights)
    : weights_(std::move(weights)), total_weight_(Total(weights_)), dealt_(weights_.size()) {
  FOREBAY_CHECK(!weights_.empty() && weights_.size() <= static_cast<size_t>(kMaxStripes));
  for (const int64_t weight : weights_) FOREBAY_CHECK(weight >= 1 && weight <= kMaxStripeWeight);
}

int StripeDealer::Next(int64_t size) {
  FOREBAY_CHECK(size > 0);
  all_dealt_ += size;
  // What it has beyond its share, times the sum of weights: in integers, as every machine must find
  // the same place.
  const auto lead = [&](size_t stripe) {
    return static_cast<__int128>(dealt_[stripe]) * total_weight_ -
           static_cast<__int128>(all_dealt_) * weights_[stripe];
  };
  // Of equals the first.
  size_t chosen = 0;
  for (size_t i = 1; i < weights_.size(); ++i) {
    if (lead(i) < lead(chosen)) chosen = i;
  }
  dealt_[chosen] += size;
  return static_cast<int>(chosen);
}

}  // namespace forebay
