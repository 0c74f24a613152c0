#include "forebay/optimizer/held_gradients.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/kernels/gradient_norm.h"

namespace forebay {
namespace {

// 64 Ki elements: long enough to hide the cost of handing out a task, short enough to share a small
// layer.
constexpr int64_t kBlocksPerTask = 32;

}  // namespace

GradientPlaces PlaceGradients(const Placement& placement, const TileMap& tiles,
                              int64_t bytes_per_elem) {
  FOREBAY_CHECK(static_cast<int>(placement.gradients.size()) == tiles.num_layers());
  GradientPlaces places;
  places.area_bytes.resize(static_cast<size_t>(tiles.num_stripes()));
  for (const Tile& tile : tiles.tiles()) {
    const bool spilled = placement.gradients[tile.layer] == Tier::kNvme;
    int64_t& end_bytes = spilled ? places.area_bytes[tile.stripe] : places.host_bytes;
    places.offset_bytes.push_back(end_bytes);
    end_bytes += tile.num_elems * bytes_per_elem;
  }
  return places;
}

HeldGradients::HeldGradients(bool is_bf16, const Placement& placement,
                             const TileArithmetic* arithmetic, TensorStore* store,
                             std::vector<std::span<std::byte>> staging)
    : is_bf16_(is_bf16),
      placement_(placement),
      arithmetic_(arithmetic),
      store_(store),
      places_(PlaceGradients(placement, store->tiles(), is_bf16 ? 2 : 4)),
      staging_(std::move(staging)),
      spills_(staging_.size()),
      spilled_layer_(staging_.size()) {
  const Inventory& inventory = store->inventory();
  int64_t max_layer_elems = 0;
  for (int layer = 0; layer < inventory.num_layers(); ++layer) {
    max_layer_elems = std::max(max_layer_elems, inventory.layers()[layer].num_elems);
    paddings_.push_back(PaddingOf(inventory, layer));
  }
  FOREBAY_CHECK(Total(places_.area_bytes) == 0 || staging_.size() >= 2);
  for (int stripe = 0; stripe < store->tiles().num_stripes(); ++stripe) {
    FOREBAY_CHECK(places_.area_bytes[stripe] <= store->gradient_area_bytes()[stripe]);
  }
  block_sums_.resize(max_layer_elems / kNormBlockElems);
  layer_sums_.resize(inventory.num_layers());
  handed_.resize(inventory.num_layers());
}

absl::StatusOr<std::unique_ptr<HeldGradients>> HeldGradients::Create(
    bool is_bf16, const Placement& placement, const TileArithmetic* arithmetic, TensorStore* store,
    MemoryBudget* budget, std::vector<std::span<std::byte>> staging) {
  std::unique_ptr<HeldGradients> held(
      new HeldGradients(is_bf16, placement, arithmetic, store, std::move(staging)));
  if (held->places_.host_bytes > 0) {
    FOREBAY_ASSIGN_OR_RETURN(
        held->host_, HostBuffer::Create(budget, "gradients held", held->places_.host_bytes));
  }
  return held;
}

HeldGradients::~HeldGradients() {
  Abandon();
}

absl::Status HeldGradients::Hand(int layer, std::span<const float> gradient, ThreadPool& pool) {
  const int64_t num_elems = store_->tiles().layer_elems(layer);
  FOREBAY_CHECK(static_cast<int64_t>(gradient.size()) == num_elems);
  FOREBAY_CHECK(!handed_[layer]);
  // Anything else would creep into the norm and, from there, into every weight.
  for (const Padding& padding : paddings_[layer]) {
    for (int64_t i = padding.first_elem; i < padding.end_elem; ++i) FOREBAY_CHECK(gradient[i] == 0);
  }
  if (IsSpilled(layer)) {
    FOREBAY_RETURN_IF_ERROR(RoundAndSpill(layer, gradient, pool));
  } else {
    // The tiles of a layer lie one after another.
    const int first_tile = store_->tiles().first_tile(layer);
    Round(gradient, 0, num_elems, host_.data() + places_.offset_bytes[first_tile], pool);
  }
  double sum = 0;
  for (int64_t block = 0; block < num_elems / kNormBlockElems; ++block) sum += block_sums_[block];
  layer_sums_[layer] = sum;
  handed_[layer] = true;
  return absl::OkStatus();
}

void HeldGradients::Round(std::span<const float> gradient, int64_t first, int64_t num_elems,
                          std::byte* to, ThreadPool& pool) {
  const int64_t num_blocks = num_elems / kNormBlockElems;
  const int64_t num_tasks = (num_blocks + kBlocksPerTask - 1) / kBlocksPerTask;
  pool.ParallelFor(num_tasks, [&](int64_t task) {
    const int64_t end = std::min(num_blocks, (task + 1) * kBlocksPerTask);
    for (int64_t block = task * kBlocksPerTask; block < end; ++block) {
      const int64_t offset = block * kNormBlockElems;
      block_sums_[first / kNormBlockElems + block] = arithmetic_->RoundGradient(
          gradient.data() + first + offset, is_bf16_, to + offset * elem_bytes());
    }
  });
}

absl::Status HeldGradients::RoundAndSpill(int layer, std::span<const float> gradient,
                                          ThreadPool& pool) {
  const TileMap& tiles = store_->tiles();
  for (int i = tiles.first_tile(layer); i < tiles.first_tile(layer + 1); ++i) {
    const Tile& tile = tiles.tiles()[i];
    const int slot = next_staging_;
    FOREBAY_RETURN_IF_ERROR(AwaitSpill(slot));
    const std::span<std::byte> buffer = staging_[slot].first(Bytes(tile));
    Round(gradient, tile.first_elem, tile.num_elems, buffer.data(), pool);
    store_->StartWriteGradient(tile.stripe, places_.offset_bytes[i], buffer, spills_[slot]);
    spilled_layer_[slot] = layer;
    next_staging_ = (slot + 1) % static_cast<int>(staging_.size());
  }
  return absl::OkStatus();
}

absl::Status HeldGradients::AwaitSpill(int slot) {
  const absl::Status status = store_->engine().Wait(spills_[slot]);
  if (!status.ok()) {
    const std::string& name = store_->inventory().layers()[spilled_layer_[slot]].name;
    failure_.Update(Annotate(
        status, fmt::format("optimizer: setting aside the gradient of layer '{}' until the "
                            "norm is known failed",
                            name)));
  }
  return failure_;
}

absl::Status HeldGradients::Finish() {
  for (const uint8_t handed : handed_) FOREBAY_CHECK(handed);
  for (size_t slot = 0; slot < spills_.size(); ++slot) {
    AwaitSpill(static_cast<int>(slot)).IgnoreError();  // kept in failure_
  }
  std::fill(handed_.begin(), handed_.end(), 0);
  return failure_;
}

void HeldGradients::Abandon() {
  for (size_t slot = 0; slot < spills_.size(); ++slot) {
    AwaitSpill(static_cast<int>(slot)).IgnoreError();  // kept in failure_
  }
  std::fill(handed_.begin(), handed_.end(), 0);
}

const std::byte* HeldGradients::HostTile(int tile) const {
  FOREBAY_CHECK(!IsSpilled(TileAt(tile).layer));
  return host_.data() + places_.offset_bytes[tile];
}

void HeldGradients::StartReadTile(int tile, std::span<std::byte> buffer, IoOp& op) const {
  const Tile& t = TileAt(tile);
  FOREBAY_CHECK(IsSpilled(t.layer));
  store_->StartReadGradient(t.stripe, places_.offset_bytes[tile], buffer.first(Bytes(t)), op);
}

}  // namespace forebay
