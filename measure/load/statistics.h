// The few statistics of repeated measurements. Pure.
#pragma once

#include <span>
#include <vector>

namespace forebay {

// Of repeats: identical runs on shared machines differ by tens of percent, so one number is none.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
  int num_values = 0;  // 0: not known

  // Says something of how much the values differ: a rationed disk may give the same figure twice.
  bool is_of_several() const { return num_values > 1 || min < max; }
};

// Of an even number of values the median is the mean of the two in the middle. Zeros for none.
Spread SpreadOf(std::vector<double> values);
// Index of the value that is the median (the lower one of two). Requires: not empty.
size_t MedianIndex(std::span<const double> values);

// By how much the least-squares line through equally spaced `values` rises over all of them, as a
// share of their mean (0.02: by 2 %). 0 for fewer than two values or a mean of 0.
double RelativeTrend(std::span<const double> values);

}  // namespace forebay
