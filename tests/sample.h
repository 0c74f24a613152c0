// A share of the cases of a test that goes through all of a kind: calls that fail, blocks that are
// lost, bits that flip. They are other ones in each run of the tests, and all with FOREBAY_FULL=1
// (scripts/test --full). A failure names its case.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace forebay {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

class Sample {
 public:
  // One in `one_in` cases; with a sanitizer, which makes each several times slower, one in
  // `sanitized`. Requires: both are positive.
  Sample(int64_t one_in, int64_t sanitized)
      : step_(std::getenv("FOREBAY_FULL") != nullptr ? 1
              : kIsSanitized                         ? sanitized
                                                     : one_in),
        first_(static_cast<int64_t>(std::random_device()()) % step_) {}

  int64_t first() const { return first_; }
  int64_t step() const { return step_; }
  bool Has(int64_t number) const { return number % step_ == first_; }

 private:
  int64_t step_;
  int64_t first_;
};

}  // namespace forebay
