// Where finished gradients wait until the global norm is known: in host memory, or in the store's
// gradient area.
//
// Not for: deciding which (swap/placement.h), or what the norm is used for (train/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/parallel.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/optimizer/decay_runs.h"
#include "forebay/optimizer/tile_arithmetic.h"
#include "forebay/swap/placement.h"
#include "forebay/swap/tensor_store.h"

namespace forebay {

// Where every tile's gradient lies: those that stay in host memory one after another there, the
// others one after another in the store's gradient area, in the part of their tile's stripe. All
// offsets are multiples of kIoAlignBytes, because tiles are multiples of kLayerAlignElems. Pure;
// planner, store and HeldGradients all take it from here.
struct GradientPlaces {
  std::vector<int64_t> offset_bytes;  // by tile, of its first element
  int64_t host_bytes = 0;
  StripeBytes area_bytes;
};
GradientPlaces PlaceGradients(const Placement& placement, const TileMap& tiles,
                              int64_t bytes_per_elem);

// Owned by one thread, but for StartReadTile and HostTile.
class HeldGradients {
 public:
  // `staging`: at least two aligned buffers of a tile's gradient each, needed when the placement
  // spills a layer. They are used from Hand until Finish or Abandon returns. Everything pointed to
  // must outlive it. Requires: the store's gradient area has GradientPlaces::area_bytes.
  static absl::StatusOr<std::unique_ptr<HeldGradients>> Create(
      bool is_bf16, const Placement& placement, const TileArithmetic* arithmetic,
      TensorStore* store, MemoryBudget* budget, std::vector<std::span<std::byte>> staging);
  ~HeldGradients();
  HeldGradients(const HeldGradients&) = delete;
  HeldGradients& operator=(const HeldGradients&) = delete;

  // As OffloadedAdamW::Hand.
  absl::Status Hand(int layer, std::span<const float> gradient, ThreadPool& pool);
  // Waits until all spilled gradients are written. Requires: every layer was handed over.
  absl::Status Finish();
  // Forgets what was handed over.
  void Abandon();

  // Of the layer's rounded gradient; not finite when one of its elements is not.
  double sum_of_squares(int layer) const { return layer_sums_[layer]; }
  bool is_bf16() const { return is_bf16_; }
  bool IsSpilled(int layer) const { return placement_.gradients[layer] == Tier::kNvme; }
  // The gradient of a tile (by its number) that is held in host memory.
  const std::byte* HostTile(int tile) const;
  // Starts reading the gradient of a spilled tile into the front of `buffer`.
  void StartReadTile(int tile, std::span<std::byte> buffer, IoOp& op) const;

 private:
  HeldGradients(bool is_bf16, const Placement& placement, const TileArithmetic* arithmetic,
                TensorStore* store, std::vector<std::span<std::byte>> staging);
  int64_t elem_bytes() const { return is_bf16_ ? 2 : 4; }
  int64_t Bytes(const Tile& tile) const { return tile.num_elems * elem_bytes(); }
  const Tile& TileAt(int tile) const { return store_->tiles().tiles()[tile]; }
  // Rounds elements [first, first + num_elems) of the layer to `to` and fills their blocks' sums.
  void Round(std::span<const float> gradient, int64_t first, int64_t num_elems, std::byte* to,
             ThreadPool& pool);
  absl::Status RoundAndSpill(int layer, std::span<const float> gradient, ThreadPool& pool);
  absl::Status AwaitSpill(int slot);

  const bool is_bf16_;
  const Placement& placement_;
  const TileArithmetic* const arithmetic_;
  TensorStore* const store_;
  const GradientPlaces places_;
  HostBuffer host_;
  std::vector<std::vector<Padding>> paddings_;  // by layer
  std::vector<std::span<std::byte>> staging_;
  std::vector<IoOp> spills_;        // by staging buffer
  std::vector<int> spilled_layer_;  // by staging buffer: for messages
  int next_staging_ = 0;
  absl::Status failure_;            // of a spill
  std::vector<double> block_sums_;  // of the layer being handed over
  std::vector<double> layer_sums_;
  std::vector<uint8_t> handed_;  // by layer
};

}  // namespace forebay
