// Where a pass over the layers gets their weights from. It asks for the weights of layer l and
// holds a lease while they are computed with. Whether they came from RAM, NVMe or a checkpoint
// folder is not its business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/device/device.h"

namespace forebay {

class WeightPieces;

// The flat vector of one layer (base/tensor_spec.h): tensors lie at their TensorSpec::offset_elems.
struct LayerWeights {
  DType dtype = DType::kBF16;
  // num_elems * SizeOf(dtype) bytes, 64-byte aligned; those of a checkpoint to their elements
  // alone.
  std::span<const std::byte> data;
  DeviceKind device = DeviceKind::kHost;  // where `data` lies
  Event* ready = nullptr;                 // when it is there; nullptr: now
  // The layer's element that `data` begins with: other than 0 of a piece.
  int64_t first_elem = 0;
  // Not nullptr: memory has no room for all of the layer. `data` is empty, and these have it.
  WeightPieces* pieces = nullptr;
};

// The weights of a layer piece by piece, as long as its lease lasts. Used by the lease's holder.
class WeightPieces {
 public:
  virtual ~WeightPieces() = default;
  // All pieces have `piece_elems` elements but the last, which may have fewer. The layer's small
  // tensors are at the end of that.
  virtual int num_pieces() const = 0;
  virtual int64_t piece_elems() const = 0;
  virtual int64_t num_elems() const = 0;  // of the layer
  // Waits for a piece. It stays in host memory until the next call, before which the caller has
  // ended all work that reads it. Cheap when pieces are asked for in their order, and correct in
  // any. The errors of ParamSource::Acquire; the source fails for good then.
  virtual absl::StatusOr<LayerWeights> Get(int piece) = 0;
};

inline int64_t BytesOf(const LayerWeights& weights) {
  return weights.pieces == nullptr ? std::ssize(weights.data)
                                   : weights.pieces->num_elems() * SizeOf(weights.dtype);
}

// Calls `copy(bytes, offset)` for all bytes of a layer in host memory, part by part: each is there
// until `copy` returns. `offset`: of the part, in the layer's bytes. The first error.
template <typename Copy>
absl::Status CopyWhole(const LayerWeights& weights, const Copy& copy) {
  if (weights.pieces == nullptr) return copy(weights.data, int64_t{0});
  for (int piece = 0; piece < weights.pieces->num_pieces(); ++piece) {
    const absl::StatusOr<LayerWeights> part = weights.pieces->Get(piece);
    if (!part.ok()) return part.status();
    const absl::Status status = copy(part->data, part->first_elem * SizeOf(part->dtype));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

class ParamSource;

// The right to read the weights of a layer. Move-only; the destructor releases it at once.
class WeightsLease {
 public:
  WeightsLease() = default;
  // `keeper` (may be empty) lives as long as the lease: where the source might not.
  WeightsLease(ParamSource* source, int layer, LayerWeights weights,
               std::shared_ptr<void> keeper = nullptr)
      : source_(source), layer_(layer), weights_(weights), keeper_(std::move(keeper)) {}
  ~WeightsLease() { Release(); }
  WeightsLease(WeightsLease&& other) noexcept
      : source_(std::exchange(other.source_, nullptr)),
        layer_(other.layer_),
        weights_(other.weights_),
        keeper_(std::move(other.keeper_)) {}
  WeightsLease& operator=(WeightsLease&& other) noexcept {
    if (this != &other) {
      Release();
      source_ = std::exchange(other.source_, nullptr);
      layer_ = other.layer_;
      weights_ = other.weights_;
      keeper_ = std::move(other.keeper_);
    }
    return *this;
  }
  // `done`: when work that is under way no longer reads them, nullptr: now. The source waits for it
  // before it puts other bytes there or frees the memory, and forgets an earlier one of the same
  // layer: those of a layer are of one stream. The event must outlive the source, and may be
  // recorded again behind it in that stream, on another thread than waits for it.
  void Release(Event* done = nullptr);
  int layer() const { return layer_; }
  const LayerWeights& weights() const { return weights_; }

 private:
  ParamSource* source_ = nullptr;
  int layer_ = -1;
  LayerWeights weights_;
  std::shared_ptr<void> keeper_;
};

// Used by one thread at a time.
class ParamSource {
 public:
  virtual ~ParamSource() = default;

  // Announces the layers that will be acquired next, in order, behind those already announced, so
  // that the source can read ahead. Every Acquire must follow the announced order.
  virtual void Expect(std::span<const int> layers) = 0;

  // Waits for the weights of `layer`. A source says how many leases may be held at a time: two at
  // least (the tied output layer needs the final norm and the embedding). StorageError,
  // CorruptError, and the error of work on a device that had the weights before. UsageError, with
  // nothing changed, for another layer than the next that was announced, or where the caller holds
  // too many.
  virtual absl::StatusOr<WeightsLease> Acquire(int layer) = 0;

 protected:
  friend class WeightsLease;
  virtual void Release(int layer, Event* done) = 0;
};

inline void WeightsLease::Release(Event* done) {
  if (source_ != nullptr) std::exchange(source_, nullptr)->Release(layer_, done);
  keeper_.reset();
}

}  // namespace forebay
