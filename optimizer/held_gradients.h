// Where finished gradients wait until the global norm is known: in host memory, or in the store's
// scratch area.
//
// Not for: deciding which (swap/tiles/placement.h), or what the norm is used for (train/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/base/process/parallel.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/optimizer/parameter_groups.h"
#include "forebay/optimizer/tile_arithmetic.h"
#include "forebay/step/layer_gradient.h"
#include "forebay/swap/records/gradient_seals.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/placement.h"

namespace forebay {

// Where every tile's gradient lies: those that stay in host memory one after another there, those
// of the area one after another in it, in the part of their tile's stripe. All offsets are
// multiples of kIoAlignBytes, because tiles are multiples of kLayerAlignElems. Pure; planner, store
// and HeldGradients all take it from here.
struct GradientPlaces {
  // By tile, of its first element; -1: it is not there.
  std::vector<int64_t> host_offset_bytes;
  std::vector<int64_t> area_offset_bytes;
  int64_t host_bytes = 0;
  StripeBytes area_bytes;
};
GradientPlaces PlaceGradients(const Placement& placement, const TileMap& tiles,
                              int64_t bytes_per_elem);

// Sums over the stores that have parts of each layer. `sums`: [layers], zero; becomes the sums of
// squares of whole layers' gradients, for which `add_own` adds to them those of this part, block by
// block.
using SumOverParts =
    std::function<absl::Status(std::span<double> sums, absl::FunctionRef<void()> add_own)>;

// What is handed over next: the part of the layer that begins with `first_elem`, or with layer -1
// any layer that was not handed over.
struct NextGradient {
  int layer = -1;
  int64_t first_elem = 0;
};

// Takes the rounded gradients of tiles that wait nowhere (Placement::WaitsForNorm).
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Where the gradient of `tile` goes; waits until there is room. An error ends the step.
  virtual absl::StatusOr<std::span<std::byte>> Buffer(int tile) = 0;
  // The gradient that was asked for last is complete.
  virtual void Take() = 0;
};

// If updates are delayed (UpdateTime::kAfterNextHand) there are two sets, in RAM and in the area:
// gradients of a step come while those of the step before are still read. What is handed over goes
// to the set that no update reads.
//
// Owned by one thread, but for StartReadTile, VerifyPart and HostTile.
class HeldGradients {
 public:
  // `dtype`: what gradients are rounded to. `staging`: at least two aligned buffers of a tile's
  // gradient each, needed when the placement spills a layer. They are used from Hand until Finish
  // or Abandon returns. `device`: what is held in RAM is pinned for its copies. Everything pointed
  // to must outlive it. Requires: the store's scratch area has GradientPlaces::area_bytes, at its
  // beginning.
  static absl::StatusOr<std::unique_ptr<HeldGradients>> Create(
      DType dtype, const Placement& placement, const TileArithmetic* arithmetic, TensorStore* store,
      MemoryBudget* budget, std::vector<std::span<std::byte>> staging, Device* device = nullptr);
  ~HeldGradients();
  HeldGradients(const HeldGradients&) = delete;
  HeldGradients& operator=(const HeldGradients&) = delete;

  // For SumWholeLayers; before the first Hand. Charges SumsBytes to `budget`. OutOfMemoryError.
  absl::Status KeepBlockSums(MemoryBudget* budget);
  static int64_t SumsBytes(const Inventory& inventory);
  // Makes sum_of_squares those of whole layers. The error of `sum`. Requires: KeepBlockSums; all
  // were handed over.
  absl::Status SumWholeLayers(const SumOverParts& sum);
  // Takes the gradients of speculative layers; must outlive this. Before the first Hand.
  void SetSink(GradientSink* sink) { sink_ = sink; }
  // As OffloadedOptimizer::GradientAreaBytes.
  static StripeBytes AreaBytes(const Placement& placement, const TileMap& tiles,
                               int64_t bytes_per_elem);
  // From here on, until the next call, reads are of what was handed over so far, and what is handed
  // over goes to the other set, if there are two. Requires: no update reads that one.
  void BeginUpdate();
  // UsageError if the gradient may not be handed over now: it is not `next`, too long, or no
  // multiple of kNormBlockElems. `on_its_way`: a layer that counts as handed over; -1: none.
  absl::Status CheckHand(const LayerGradient& gradient, NextGradient next, int on_its_way) const;
  // UsageError if its padding is not zero. Requires: it is in RAM, as in Hand.
  absl::Status CheckPadding(const LayerGradient& gradient) const;
  // As OffloadedOptimizer::Hand; the last part completes the layer. `as_zeros`: elements that are
  // held as zero whatever they are, in order. Requires: CheckHand and CheckPadding.
  absl::Status Hand(const LayerGradient& gradient, ThreadPool& pool,
                    std::span<const ElemRange> as_zeros = {});
  // Whether any layer was handed over since Finish or Abandon.
  bool AnyHanded() const;
  // Waits until the gradients of the area are written. UsageError names the first layer that was
  // not handed over; nothing is changed then.
  absl::Status Finish();
  // Forgets what was handed over.
  void Abandon();

  // The sum over the layer's rounded gradient; not finite when one of its elements is not.
  double sum_of_squares(int layer) const { return layer_sums_[layer]; }
  DType dtype() const { return dtype_; }
  bool IsSpilled(int layer) const { return placement_.IsSpilled(layer); }
  // The gradient of a tile (by its number) that is held in host memory.
  const std::byte* HostTile(int tile) const;
  // Starts reading the gradient of a spilled tile into the front of `buffer`.
  void StartReadTile(int tile, std::span<std::byte> buffer, IoOp& op) const;
  // Compares one part (swap/records/tile_seals.h) of what was read of a tile with its checksum.
  // CorruptError names file, device, offset and layer.
  absl::Status VerifyPart(int tile, int64_t part, std::span<const std::byte> gradient) const;

 private:
  HeldGradients(DType dtype, const Placement& placement, const TileArithmetic* arithmetic,
                TensorStore* store, std::vector<std::span<std::byte>> staging,
                std::vector<GradientSeals> seals);
  int64_t elem_bytes() const { return SizeOf(dtype_); }
  int64_t Bytes(const Tile& tile) const { return tile.num_elems * elem_bytes(); }
  const Tile& TileAt(int tile) const { return store_->tiles().tiles()[tile]; }
  std::span<std::byte> HostPlace(int tile, int set) const {
    return host_.bytes().subspan(places_.host_offset_bytes[tile] + set * places_.host_bytes,
                                 Bytes(TileAt(tile)));
  }
  int64_t AreaOffset(int tile, int set) const {
    return places_.area_offset_bytes[tile] + set * places_.area_bytes[TileAt(tile).stripe];
  }
  // A gradient on its way to the area.
  struct Spill {
    IoOp op;
    int layer = 0;  // for messages
  };
  struct Taken {
    const LayerGradient& gradient;
    std::span<const ElemRange> as_zeros;
  };
  size_t NumBlocks(int layer) const;
  std::span<double> KeptSums(int layer) const;
  absl::Status PaddingError(int layer, const Padding& padding, int64_t elem, float value) const;
  // Brings what there is of the tile, rounded, to its place in `to`, fills its blocks' sums, and
  // takes the checksums of what goes to the area and is complete.
  void Round(int tile, const Taken& taken, std::byte* to, ThreadPool& pool);
  // Gives the sum of squares of the block that begins at `first_elem` of the layer.
  double TakeBlock(const Taken& taken, int64_t first_elem, std::byte* to) const;
  // Where the tile's rounded gradient goes; waits until there is room.
  absl::StatusOr<std::span<std::byte>> OpenTile(int tile);
  // All of the tile is there: it goes on to where it waits.
  void CloseTile(int tile);
  void StartSpill(int tile, std::span<std::byte> buffer, Spill& spill);
  absl::Status AwaitSpill(Spill& spill);
  void AwaitAllSpills();

  const DType dtype_;
  const Placement& placement_;
  const TileArithmetic* const arithmetic_;
  TensorStore* const store_;
  const GradientPlaces places_;
  std::vector<GradientSeals> seals_;            // by set
  int set_ = 0;                                 // of what is handed over
  int update_set_ = 0;                          // of what is read for an update
  HostBuffer host_;                             // the gradients in RAM, of one set after the other
  std::vector<std::vector<Padding>> paddings_;  // by layer
  std::vector<std::span<std::byte>> staging_;
  GradientSink* sink_ = nullptr;
  std::vector<Spill> spills_;  // by staging buffer
  int next_staging_ = 0;
  int64_t num_taken_elems_ = 0;     // of the layer whose parts are being handed over
  std::span<std::byte> open_;       // of the tile that was begun last
  absl::Status failure_;            // of a spill
  std::vector<double> block_sums_;  // of the layer being handed over
  HostBuffer kept_sums_;            // of all layers, one after another; empty: none are kept
  std::vector<double> layer_sums_;
  std::vector<uint8_t> handed_;  // by layer
};

}  // namespace forebay
