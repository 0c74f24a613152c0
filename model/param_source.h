// Where a model gets its weights from. The model asks for "the weights of layer l" and holds a
// lease while it computes with them; whether they came from RAM, NVMe or a checkpoint folder is not
// its business.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"

namespace forebay {

// The flat vector of one layer (base/tensor_spec.h): tensors lie at their TensorSpec::offset_elems.
struct LayerWeights {
  DType dtype = DType::kBF16;
  std::span<const std::byte> data;  // num_elems * SizeOf(dtype) bytes, 64-byte aligned
};

class ParamSource;

// The right to read the weights of a layer. Move-only; the destructor releases it.
class WeightsLease {
 public:
  WeightsLease() = default;
  WeightsLease(ParamSource* source, int layer, LayerWeights weights)
      : source_(source), layer_(layer), weights_(weights) {}
  ~WeightsLease() { Reset(); }
  WeightsLease(WeightsLease&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)),
        layer_(other.layer_),
        weights_(other.weights_) {}
  WeightsLease& operator=(WeightsLease&& other) noexcept {
    if (this != &other) {
      Reset();
      source_ = std::exchange(other.source_, nullptr);
      layer_ = other.layer_;
      weights_ = other.weights_;
    }
    return *this;
  }
  void Reset();
  int layer() const { return layer_; }
  const LayerWeights& weights() const { return weights_; }

 private:
  ParamSource* source_ = nullptr;
  int layer_ = -1;
  LayerWeights weights_;
};

// Used by one thread at a time.
class ParamSource {
 public:
  virtual ~ParamSource() = default;

  // Announces the layers that will be acquired next, in order, behind those already announced, so
  // that the source can read ahead. Every Acquire must follow the announced order.
  virtual void Expect(std::span<const int> layers) = 0;

  // Waits for the weights of `layer`. At most two leases are held at a time (the tied output layer
  // needs the final norm and the embedding). StorageError, CorruptError.
  virtual absl::StatusOr<WeightsLease> Acquire(int layer) = 0;

 protected:
  friend class WeightsLease;
  virtual void Release(int layer) = 0;
};

inline void WeightsLease::Reset() {
  if (source_ != nullptr) std::exchange(source_, nullptr)->Release(layer_);
}

}  // namespace forebay
