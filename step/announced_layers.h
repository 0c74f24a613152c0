// The layers that were announced to a source of weights (ParamSource::Expect) and not acquired yet.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {

class AnnouncedLayers {
 public:
  void Add(std::span<const int> layers) {
    if (empty()) Clear();  // which keeps its memory
    layers_.insert(layers_.end(), layers.begin(), layers.end());
  }
  void Clear() {
    layers_.clear();
    next_ = 0;
  }
  bool empty() const { return next_ == layers_.size(); }
  int64_t size() const { return static_cast<int64_t>(layers_.size() - next_); }
  // Requires: not empty().
  int next() const { return layers_[next_]; }
  void TakeNext() { ++next_; }

  // UsageError where another layer is acquired.
  absl::Status CheckIsNext(int layer) const {
    if (!empty() && next() == layer) return absl::OkStatus();
    return UsageError(
        fmt::format("layer {} is acquired, and {}", layer,
                    empty() ? "none was announced" : fmt::format("{} was announced", next())));
  }

 private:
  std::vector<int> layers_;  // those before next_ were acquired
  size_t next_ = 0;
};

}  // namespace forebay
