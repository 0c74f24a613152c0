#include "forebay/optimizer/held_gradients.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/block_device.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/optimizer/kernels/gradient_norm.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/swap/store/store_folders.h"

namespace forebay {

// A task of the rounding is what has a checksum of its own: long enough to hide the cost of handing
// it out, short enough to share a small layer.
static_assert(kSealElems % kNormBlockElems == 0);

namespace {

float FloatAt(const std::byte* elems, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(elems)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(elems)[i];
  return dtype == DType::kBF16 ? Bf16ToFloat(bits) : Fp16ToFloat(bits);
}

}  // namespace

GradientPlaces PlaceGradients(const Placement& placement, const TileMap& tiles,
                              int64_t bytes_per_elem) {
  FOREBAY_CHECK(static_cast<int>(placement.gradients.size()) == tiles.num_streamed_layers());
  GradientPlaces places;
  places.area_bytes.resize(static_cast<size_t>(tiles.num_stripes()));
  for (const Tile& tile : tiles.streamed_tiles()) {
    const bool in_host = placement.gradients[tile.layer] == Tier::kHost;
    const auto place = [&](bool is_there, int64_t& end_bytes) {
      const int64_t begin_bytes = end_bytes;
      if (is_there) end_bytes += tile.num_elems * bytes_per_elem;
      return is_there ? begin_bytes : -1;
    };
    places.host_offset_bytes.push_back(place(in_host, places.host_bytes));
    places.area_offset_bytes.push_back(
        place(placement.IsSpilled(tile.layer), places.area_bytes[tile.stripe]));
  }
  return places;
}

StripeBytes HeldGradients::AreaBytes(const Placement& placement, const TileMap& tiles,
                                     int64_t bytes_per_elem) {
  StripeBytes bytes = PlaceGradients(placement, tiles, bytes_per_elem).area_bytes;
  for (int64_t& of_stripe : bytes) of_stripe *= placement.NumGradientSets();
  return bytes;
}

HeldGradients::HeldGradients(DType dtype, const Placement& placement,
                             const TileArithmetic* arithmetic, TensorStore* store,
                             std::vector<std::span<std::byte>> staging,
                             std::vector<GradientSeals> seals)
    : dtype_(dtype),
      placement_(placement),
      arithmetic_(arithmetic),
      store_(store),
      places_(PlaceGradients(placement, store->tiles(), SizeOf(dtype))),
      seals_(std::move(seals)),
      staging_(std::move(staging)),
      spills_(staging_.size()) {
  const Inventory& inventory = store->inventory();
  int64_t max_layer_elems = 0;
  for (int layer = 0; layer < inventory.num_streamed_layers(); ++layer) {
    max_layer_elems = std::max(max_layer_elems, inventory.layers()[layer].num_elems);
    paddings_.push_back(PaddingOf(inventory, layer));
  }
  FOREBAY_CHECK(staging_.size() >= 2);
  for (int stripe = 0; stripe < store->tiles().num_stripes(); ++stripe) {
    FOREBAY_CHECK(placement.NumGradientSets() * places_.area_bytes[stripe] <=
                  store->scratch_bytes()[stripe]);
  }
  block_sums_.resize(max_layer_elems / kNormBlockElems);
  layer_sums_.resize(inventory.num_streamed_layers());
  handed_.resize(inventory.num_streamed_layers());
}

absl::StatusOr<std::unique_ptr<HeldGradients>> HeldGradients::Create(
    DType dtype, const Placement& placement, const TileArithmetic* arithmetic, TensorStore* store,
    MemoryBudget* budget, std::vector<std::span<std::byte>> staging, Device* device) {
  std::vector<GradientSeals> seals;
  for (int set = 0; set < placement.NumGradientSets(); ++set) {
    FOREBAY_ASSIGN_OR_RETURN(GradientSeals of_set, GradientSeals::Create(store->tiles(), budget));
    seals.push_back(std::move(of_set));
  }
  std::unique_ptr<HeldGradients> held(
      new HeldGradients(dtype, placement, arithmetic, store, std::move(staging), std::move(seals)));
  FOREBAY_ASSIGN_OR_RETURN(
      held->host_, HostBuffer::Create(budget, "gradients held",
                                      placement.NumGradientSets() * held->places_.host_bytes,
                                      {.device = device}));
  return held;
}

int64_t HeldGradients::SumsBytes(const Inventory& inventory) {
  int64_t elems = 0;
  for (int layer = 0; layer < inventory.num_streamed_layers(); ++layer) {
    elems += inventory.layers()[layer].num_elems;
  }
  return HostBuffer::ChargedBytes(elems / kNormBlockElems * int64_t{sizeof(double)});
}

absl::Status HeldGradients::KeepBlockSums(MemoryBudget* budget) {
  FOREBAY_ASSIGN_OR_RETURN(kept_sums_, HostBuffer::Create(budget, "sums of squares of gradients",
                                                          SumsBytes(store_->inventory())));
  return absl::OkStatus();
}

size_t HeldGradients::NumBlocks(int layer) const {
  return static_cast<size_t>(store_->tiles().layer_elems(layer) / kNormBlockElems);
}

std::span<double> HeldGradients::KeptSums(int layer) const {
  size_t first = 0;
  for (int before = 0; before < layer; ++before) first += NumBlocks(before);
  return kept_sums_.As<double>().subspan(first, NumBlocks(layer));
}

absl::Status HeldGradients::SumWholeLayers(const SumOverParts& sum) {
  std::ranges::fill(layer_sums_, 0.0);
  return sum(layer_sums_, [this] {
    for (size_t layer = 0; layer < layer_sums_.size(); ++layer) {
      const std::span<const double> blocks = KeptSums(static_cast<int>(layer));
      layer_sums_[layer] = std::accumulate(blocks.begin(), blocks.end(), layer_sums_[layer]);
    }
  });
}

HeldGradients::~HeldGradients() {
  Abandon();
}

void HeldGradients::BeginUpdate() {
  FOREBAY_CHECK(!AnyHanded());
  update_set_ = set_;
  set_ = (set_ + 1) % static_cast<int>(seals_.size());
}

absl::Status HeldGradients::CheckHand(const LayerGradient& gradient, NextGradient next,
                                      int on_its_way) const {
  const TileMap& tiles = store_->tiles();
  const int layer = gradient.layer;
  if (layer < 0 || layer >= tiles.num_streamed_layers()) {
    return UsageError(
        fmt::format("optimizer: a gradient is handed over for layer {}, and layers are 0 to {}",
                    layer, tiles.num_streamed_layers() - 1));
  }
  const auto name_of = [&](int of) { return store_->inventory().layers()[of].name; };
  if (handed_[layer] || (layer == on_its_way && layer != next.layer)) {
    return UsageError(
        fmt::format("optimizer: the gradient of layer '{}' is handed over twice in a step. Add up "
                    "what it is made of first",
                    name_of(layer)));
  }
  const int next_layer = next.layer >= 0 ? next.layer : layer;
  if (layer != next_layer || gradient.first_elem != next.first_elem) {
    return UsageError(
        fmt::format("optimizer: the gradient of layer '{}' is handed over from element {} on, and "
                    "the next is of '{}', from element {} on. Hand over all parts of a layer, one "
                    "after the other",
                    name_of(layer), gradient.first_elem, name_of(next_layer), next.first_elem));
  }
  const int64_t most = tiles.layer_elems(layer) - gradient.first_elem;
  const int64_t num_elems = gradient.num_elems();
  if (num_elems > most || num_elems % kNormBlockElems != 0 || (num_elems == 0 && most > 0)) {
    return UsageError(fmt::format(
        "optimizer: the gradient of layer '{}' is handed over with {} elements, and "
        "the layer has {} from there on. Hand over all of its vector, padding included, "
        "or a part of it: a multiple of {}",
        name_of(layer), num_elems, most, kNormBlockElems));
  }
  const bool is_in_ram = gradient.device == DeviceKind::kHost;
  const auto num_blocks = static_cast<size_t>(num_elems / kNormBlockElems);
  const bool has_squares = !gradient.block_squares.empty();
  if (has_squares && (gradient.dtype != dtype_ || gradient.block_squares.size() != num_blocks)) {
    return UsageError(
        fmt::format("optimizer: the gradient of layer '{}' comes with {} sums of squares, and has "
                    "{} blocks of {}. Give those of each block as it is held, in {}, or none",
                    name_of(layer), gradient.block_squares.size(), num_blocks,
                    NameOf(gradient.dtype), NameOf(dtype_)));
  }
  if (gradient.dtype == DType::kF32 || (is_in_ram && gradient.dtype == dtype_)) {
    return absl::OkStatus();
  }
  return UsageError(
      fmt::format("optimizer: the gradient of layer '{}' is {}, and gradients are held in {}. Hand "
                  "it over in that (in RAM), or in fp32",
                  name_of(layer), NameOf(gradient.dtype), NameOf(dtype_)));
}

absl::Status HeldGradients::PaddingError(int layer, const Padding& padding, int64_t elem,
                                         float value) const {
  return UsageError(fmt::format(
      "optimizer: the gradient of layer '{}' has {} at element {}, which is of no tensor. Fill its "
      "padding (elements {} to {} here) with zeros",
      store_->inventory().layers()[layer].name, value, elem, padding.first_elem,
      padding.end_elem - 1));
}

// Anything else would creep into the norm and, from there, into every weight.
absl::Status HeldGradients::CheckPadding(const LayerGradient& gradient) const {
  for (const Padding& padding : paddings_[gradient.layer]) {
    const int64_t end = std::min(padding.end_elem, gradient.end_elem());
    for (int64_t i = std::max(padding.first_elem, gradient.first_elem); i < end; ++i) {
      const float value = FloatAt(gradient.bytes.data(), gradient.dtype, i - gradient.first_elem);
      if (value != 0) return PaddingError(gradient.layer, padding, i, value);
    }
  }
  return absl::OkStatus();
}

absl::Status HeldGradients::Hand(const LayerGradient& gradient, ThreadPool& pool,
                                 std::span<const ElemRange> as_zeros) {
  const int layer = gradient.layer;
  FOREBAY_CHECK(gradient.device == DeviceKind::kHost && !handed_[layer]);
  FOREBAY_CHECK(gradient.first_elem == num_taken_elems_);
  FOREBAY_CHECK(gradient.num_elems() % kNormBlockElems == 0);
  FOREBAY_CHECK(gradient.block_squares.empty() ||
                std::ssize(gradient.block_squares) == gradient.num_elems() / kNormBlockElems);
  const Taken taken = {gradient, as_zeros};
  const TileMap& tiles = store_->tiles();
  FOREBAY_CHECK(gradient.end_elem() <= tiles.layer_elems(layer));
  for (int tile = tiles.first_tile(layer); tile < tiles.first_tile(layer + 1); ++tile) {
    const Tile& t = TileAt(tile);
    const int64_t end = t.first_elem + t.num_elems;
    if (end <= gradient.first_elem || t.first_elem >= gradient.end_elem()) continue;
    if (t.first_elem >= gradient.first_elem) {
      FOREBAY_ASSIGN_OR_RETURN(open_, OpenTile(tile));
    }
    Round(tile, taken, open_.data(), pool);
    if (end <= gradient.end_elem()) CloseTile(tile);
  }
  num_taken_elems_ = gradient.end_elem();
  if (num_taken_elems_ < tiles.layer_elems(layer)) return absl::OkStatus();
  num_taken_elems_ = 0;
  const auto blocks = std::span(block_sums_).first(NumBlocks(layer));
  layer_sums_[layer] = std::accumulate(blocks.begin(), blocks.end(), 0.0);
  if (kept_sums_.size_bytes() > 0) std::ranges::copy(blocks, KeptSums(layer).begin());
  handed_[layer] = true;
  return absl::OkStatus();
}

void HeldGradients::Round(int tile, const Taken& taken, std::byte* to, ThreadPool& pool) {
  const LayerGradient& gradient = taken.gradient;
  const Tile& t = TileAt(tile);
  const bool seals = IsSpilled(t.layer);
  const int64_t begin = std::max<int64_t>(0, gradient.first_elem - t.first_elem);
  const int64_t end = std::min(t.num_elems, gradient.end_elem() - t.first_elem);
  const int64_t first_task = begin / kSealElems;
  pool.ParallelFor((end + kSealElems - 1) / kSealElems - first_task, [&](int64_t index) {
    const int64_t task = first_task + index;
    const int64_t end_of_task = std::min(t.num_elems, (task + 1) * kSealElems);
    for (int64_t elem = std::max(begin, task * kSealElems); elem < std::min(end, end_of_task);
         elem += kNormBlockElems) {
      block_sums_[(t.first_elem + elem) / kNormBlockElems] =
          TakeBlock(taken, t.first_elem + elem, to + elem * elem_bytes());
    }
    if (!seals || end < end_of_task) return;
    seals_[set_].Seal(tile, task, {to, static_cast<size_t>(Bytes(t))}, elem_bytes());
  });
}

double HeldGradients::TakeBlock(const Taken& taken, int64_t first_elem, std::byte* to) const {
  const LayerGradient& gradient = taken.gradient;
  const int64_t end_elem = first_elem + kNormBlockElems;
  auto zeros = std::ranges::upper_bound(taken.as_zeros, first_elem, {}, &ElemRange::end_elem);
  const auto is_in_block = [&] {
    return zeros != taken.as_zeros.end() && zeros->first_elem < end_elem;
  };
  const int64_t in_part = first_elem - gradient.first_elem;
  const std::byte* const elems = gradient.bytes.data() + in_part * SizeOf(gradient.dtype);
  if (!is_in_block() && !gradient.block_squares.empty()) {
    std::memcpy(to, elems, static_cast<size_t>(kNormBlockElems * elem_bytes()));
    return gradient.block_squares[in_part / kNormBlockElems];
  }
  if (!is_in_block() && gradient.dtype != DType::kF32) {
    return CopyAndSumSquares(elems, kNormBlockElems, dtype_, to);
  }
  if (!is_in_block()) {
    return arithmetic_->RoundGradient(reinterpret_cast<const float*>(elems), dtype_, to);
  }
  std::array<float, kNormBlockElems> block;
  for (int64_t i = 0; i < kNormBlockElems; ++i) block[i] = FloatAt(elems, gradient.dtype, i);
  for (; is_in_block(); ++zeros) {
    std::fill(block.begin() + (std::max(zeros->first_elem, first_elem) - first_elem),
              block.begin() + (std::min(zeros->end_elem, end_elem) - first_elem), 0.0f);
  }
  return arithmetic_->RoundGradient(block.data(), dtype_, to);  // what is rounded stays as it is
}

absl::StatusOr<std::span<std::byte>> HeldGradients::OpenTile(int tile) {
  const int layer = TileAt(tile).layer;
  if (!placement_.WaitsForNorm(layer)) {
    FOREBAY_CHECK(sink_ != nullptr);
    return sink_->Buffer(tile);
  }
  if (!IsSpilled(layer)) return HostPlace(tile, set_);
  FOREBAY_RETURN_IF_ERROR(AwaitSpill(spills_[next_staging_]));
  return staging_[next_staging_].first(Bytes(TileAt(tile)));
}

void HeldGradients::CloseTile(int tile) {
  const int layer = TileAt(tile).layer;
  if (!placement_.WaitsForNorm(layer)) return sink_->Take();
  if (!IsSpilled(layer)) return;
  StartSpill(tile, open_, spills_[next_staging_]);
  next_staging_ = (next_staging_ + 1) % static_cast<int>(staging_.size());
}

void HeldGradients::StartSpill(int tile, std::span<std::byte> buffer, Spill& spill) {
  const Tile& t = TileAt(tile);
  spill.layer = t.layer;
  store_->StartWriteScratch(t.stripe, AreaOffset(tile, set_), buffer, spill.op);
}

absl::Status HeldGradients::AwaitSpill(Spill& spill) {
  const absl::Status status = store_->engine().Wait(spill.op);
  if (!status.ok()) {
    const std::string& name = store_->inventory().layers()[spill.layer].name;
    failure_.Update(
        Annotate(status, fmt::format("optimizer: writing the gradient of layer '{}' to where it "
                                     "waits for its update failed",
                                     name)));
  }
  return failure_;
}

void HeldGradients::AwaitAllSpills() {
  // Errors are kept in failure_.
  for (Spill& spill : spills_) AwaitSpill(spill).IgnoreError();
}

bool HeldGradients::AnyHanded() const {
  return num_taken_elems_ > 0 || std::ranges::count(handed_, 0) < std::ssize(handed_);
}

absl::Status HeldGradients::Finish() {
  FOREBAY_RETURN_IF_ERROR(failure_);
  const auto missing = std::ranges::find(handed_, 0);
  if (missing != handed_.end()) {
    const auto layer = static_cast<size_t>(missing - handed_.begin());
    return UsageError(
        fmt::format("optimizer: the backward pass is said to have ended, and no gradient of layer "
                    "'{}' was handed over, or not all of it. Hand over every layer's; one whose "
                    "tensors have none "
                    "names them all as such",
                    store_->inventory().layers()[layer].name));
  }
  AwaitAllSpills();
  std::fill(handed_.begin(), handed_.end(), 0);
  return failure_;
}

void HeldGradients::Abandon() {
  AwaitAllSpills();
  num_taken_elems_ = 0;
  std::fill(handed_.begin(), handed_.end(), 0);
}

absl::Status HeldGradients::VerifyPart(int tile, int64_t part,
                                       std::span<const std::byte> gradient) const {
  if (store_->unfilled() || seals_[update_set_].Matches(tile, part, gradient, elem_bytes())) {
    return absl::OkStatus();
  }
  const Tile& t = TileAt(tile);
  const std::string file = JoinPath(store_->directories()[t.stripe], kScratchName);
  const int64_t first = part * kSealElems;
  return CorruptError(fmt::format(
      "'{}' (device {}) does not hold what was written there: {} bytes at {} (gradient of tile {} "
      "of layer '{}') differ from their checksum. The last committed step is not touched by that: "
      "look at 'dmesg' and the drive's health (smartctl -a), then resume",
      file, DeviceNameOf(file), std::min(kSealElems, t.num_elems - first) * elem_bytes(),
      AreaOffset(tile, update_set_) + first * elem_bytes(), tile,
      store_->inventory().layers()[t.layer].name));
}

const std::byte* HeldGradients::HostTile(int tile) const {
  FOREBAY_CHECK(places_.host_offset_bytes[tile] >= 0);
  return HostPlace(tile, update_set_).data();
}

void HeldGradients::StartReadTile(int tile, std::span<std::byte> buffer, IoOp& op) const {
  const Tile& t = TileAt(tile);
  FOREBAY_CHECK(IsSpilled(t.layer));
  store_->StartReadScratch(t.stripe, AreaOffset(tile, update_set_), buffer.first(Bytes(t)), op);
}

}  // namespace forebay
