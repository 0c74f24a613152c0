#include "forebay/offload/open_layers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "fmt/format.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr int64_t kElemsOfTask = int64_t{1} << 16;

// Calls add(i, value) for elements [first, end) of `elems`.
template <typename Add>
void ForEachElem(DType dtype, const std::byte* elems, int64_t first, int64_t end, const Add& add) {
  const auto value_at = [elems](int64_t i, auto of) {
    std::memcpy(&of, elems + i * static_cast<int64_t>(sizeof(of)), sizeof(of));
    return of;
  };
  switch (dtype) {
    case DType::kF32:
      for (int64_t i = first; i < end; ++i) add(i, value_at(i, float()));
      return;
    case DType::kBF16:
      for (int64_t i = first; i < end; ++i) add(i, Bf16ToFloat(value_at(i, Bf16())));
      return;
    case DType::kF16:
      for (int64_t i = first; i < end; ++i) add(i, Fp16ToFloat(value_at(i, Fp16())));
  }
}

// The sizes of the largest layers that are not raw, at most `num_layers`, descending.
std::vector<int64_t> LargestLayers(const Inventory& inventory, int num_layers) {
  std::vector<int64_t> elems;
  for (int layer = 0; layer < inventory.num_streamed_layers(); ++layer) {
    elems.push_back(inventory.layers()[layer].num_elems);
  }
  std::ranges::sort(elems, std::greater<>());
  elems.resize(std::min(elems.size(), static_cast<size_t>(num_layers)));
  return elems;
}

}  // namespace

OpenLayers::OpenLayers(const Inventory* inventory, DType handed_dtype,
                       std::vector<int64_t> elems_of_place)
    : inventory_(inventory),
      handed_dtype_(handed_dtype),
      elems_of_place_(std::move(elems_of_place)),
      layer_of_place_(elems_of_place_.size(), -1),
      place_of_layer_(static_cast<size_t>(inventory->num_layers()), -1),
      is_as_handed_(static_cast<size_t>(inventory->num_layers())),
      has_gradient_(inventory->tensors().size()) {
  int most_tensors = 0;
  for (int layer = 0; layer < inventory->num_layers(); ++layer) {
    paddings_.push_back(PaddingOf(*inventory, layer));
    most_tensors = std::max(most_tensors, inventory->layers()[layer].num_tensors);
  }
  missing_.reserve(static_cast<size_t>(most_tensors));
}

absl::StatusOr<std::unique_ptr<OpenLayers>> OpenLayers::Create(const Inventory* inventory,
                                                               int num_layers, DType handed_dtype,
                                                               MemoryBudget* budget) {
  std::unique_ptr<OpenLayers> open(
      new OpenLayers(inventory, handed_dtype, LargestLayers(*inventory, num_layers)));
  for (const int64_t num_elems : open->elems_of_place_) {
    FOREBAY_ASSIGN_OR_RETURN(HostBuffer sums,
                             HostBuffer::Create(budget, "gradients of open layers", num_elems * 4));
    open->sums_.push_back(std::move(sums));
  }
  return open;
}

int64_t OpenLayers::ChargedBytes(const Inventory& inventory, int num_layers) {
  int64_t bytes = 0;
  for (const int64_t num_elems : LargestLayers(inventory, num_layers)) {
    bytes += HostBuffer::ChargedBytes(num_elems * 4);
  }
  return bytes;
}

// A free place of at least so many elements, of those the smallest. Requires: any place is free.
// Where none of them has room, the smallest layer that lies in one which has gives it up, and takes
// a place in the same way. That ends: as there is a place for each of the largest layers, one of
// those that fill the larger places is smaller than the layer that asks.
int OpenLayers::TakePlace(int64_t num_elems) {
  int smallest = -1;  // place of the smallest layer of those in places with room
  for (int place = static_cast<int>(elems_of_place_.size()) - 1; place >= 0; --place) {
    if (elems_of_place_[place] < num_elems) continue;
    const int layer = layer_of_place_[place];
    if (layer < 0) return place;
    const auto elems_in = [&](int of) {
      return inventory_->layers()[layer_of_place_[of]].num_elems;
    };
    if (smallest < 0 || elems_in(place) < elems_in(smallest)) smallest = place;
  }
  const int moved = layer_of_place_[smallest];
  const int64_t moved_elems = inventory_->layers()[moved].num_elems;
  const int to = TakePlace(moved_elems);
  std::memcpy(sums_[to].As<float>().data(), sums_[smallest].As<float>().data(),
              static_cast<size_t>(moved_elems) * sizeof(float));
  layer_of_place_[to] = moved;
  place_of_layer_[moved] = to;
  return smallest;
}

absl::StatusOr<int> OpenLayers::PlaceOf(int layer) {
  int& place = place_of_layer_[static_cast<size_t>(layer)];
  if (place >= 0) return place;
  if (std::ranges::find(layer_of_place_, -1) == layer_of_place_.end()) {
    return UsageError(fmt::format(
        "gradients of {} layers are being summed, and there is room for no more: close one before "
        "'{}', or give the session more (num_open_layers)",
        layer_of_place_.size(), inventory_->layers()[layer].name));
  }
  place = TakePlace(inventory_->layers()[layer].num_elems);
  layer_of_place_[place] = layer;
  is_as_handed_[layer] = handed_dtype_ == DType::kF32 ? 0 : 1;
  return place;
}

std::span<float> OpenLayers::SumsIn(int place, int layer) {
  return sums_[place].As<float>().first(static_cast<size_t>(inventory_->layers()[layer].num_elems));
}

// The upper half of the sums' bytes: so that widening them from the first on overwrites none before
// it is read.
std::span<std::byte> OpenLayers::AsHandedIn(int place, int layer) {
  const std::span<std::byte> all = std::as_writable_bytes(SumsIn(place, layer));
  return all.last(all.size() / 2);
}

bool OpenLayers::HasGradients(int layer) const {
  const LayerSpec& spec = inventory_->layers()[layer];
  const auto first = has_gradient_.begin() + spec.first_tensor;
  return std::any_of(first, first + spec.num_tensors, [](uint8_t has) { return has != 0; });
}

void OpenLayers::Widen(int place, int layer) {
  const std::span<float> sums = SumsIn(place, layer);
  const std::span<const std::byte> halves = AsHandedIn(place, layer);
  constexpr size_t kElemsAtOnce = 1024;
  std::array<std::byte, kElemsAtOnce * 2> read;
  for (size_t first = 0; first < sums.size(); first += kElemsAtOnce) {
    const size_t num_elems = std::min(kElemsAtOnce, sums.size() - first);
    std::memcpy(read.data(), halves.data() + first * 2, num_elems * 2);
    ForEachElem(handed_dtype_, read.data(), 0, static_cast<int64_t>(num_elems),
                [&](int64_t i, float of) { sums[first + static_cast<size_t>(i)] = of; });
  }
}

void OpenLayers::FillWithZeros(int place, int layer, int64_t first_elem, int64_t end_elem) {
  if (is_as_handed_[layer]) {
    const auto num_bytes = static_cast<size_t>(end_elem - first_elem) * 2;
    std::memset(AsHandedIn(place, layer).data() + first_elem * 2, 0, num_bytes);
  } else {
    const std::span<float> sums = SumsIn(place, layer);
    std::fill(sums.begin() + first_elem, sums.begin() + end_elem, 0.0f);
  }
}

absl::Status OpenLayers::OpenFor(int tensor, DType dtype, int64_t num_bytes) {
  const auto num_tensors = static_cast<int>(inventory_->tensors().size());
  if (tensor < 0 || tensor >= num_tensors) {
    return UsageError(
        fmt::format("there is no tensor {}; the last is {}", tensor, num_tensors - 1));
  }
  const TensorSpec& spec = inventory_->tensors()[tensor];
  if (spec.raw) {
    return UsageError(fmt::format("'{}' is a raw tensor, which has no gradient", spec.name));
  }
  if (num_bytes != spec.num_elems * SizeOf(dtype)) {
    return UsageError(fmt::format("the gradient of '{}' has {} bytes; {} elements of {} are {}",
                                  spec.name, num_bytes, spec.num_elems, NameOf(dtype),
                                  spec.num_elems * SizeOf(dtype)));
  }
  return PlaceOf(spec.layer).status();
}

absl::Status OpenLayers::Add(int tensor, DType dtype, std::span<const std::byte> elems,
                             ThreadPool& pool) {
  FOREBAY_RETURN_IF_ERROR(OpenFor(tensor, dtype, std::ssize(elems)));
  const TensorSpec& spec = inventory_->tensors()[tensor];
  FOREBAY_ASSIGN_OR_RETURN(const int place, PlaceOf(spec.layer));
  const bool is_first = !has_gradient_[tensor];
  if (is_as_handed_[spec.layer] && !(is_first && dtype == handed_dtype_)) {
    if (HasGradients(spec.layer)) Widen(place, spec.layer);
    is_as_handed_[spec.layer] = 0;
  }
  float* const sum = SumsIn(place, spec.layer).data() + spec.offset_elems;
  std::byte* const as_handed = AsHandedIn(place, spec.layer).data() + spec.offset_elems * 2;
  has_gradient_[tensor] = 1;
  pool.ParallelFor((spec.num_elems + kElemsOfTask - 1) / kElemsOfTask, [&](int64_t task) {
    const int64_t first = task * kElemsOfTask;
    const int64_t end = std::min(spec.num_elems, first + kElemsOfTask);
    if (is_as_handed_[spec.layer]) {
      std::memcpy(as_handed + first * 2, elems.data() + first * 2,
                  static_cast<size_t>(end - first) * 2);
      return;
    }
    // The first is not added to a zero: -0 stays what it is.
    if (is_first) {
      ForEachElem(dtype, elems.data(), first, end, [&](int64_t i, float of) { sum[i] = of; });
    } else {
      ForEachElem(dtype, elems.data(), first, end, [&](int64_t i, float of) { sum[i] += of; });
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<LayerGradient> OpenLayers::SumOf(int layer, bool in_fp32) {
  FOREBAY_ASSIGN_OR_RETURN(const int place, PlaceOf(layer));
  const LayerSpec& spec = inventory_->layers()[layer];
  for (const Padding& padding : paddings_[layer]) {
    FillWithZeros(place, layer, padding.first_elem, padding.end_elem);
  }
  missing_.clear();
  for (int i = spec.first_tensor; i < spec.first_tensor + spec.num_tensors; ++i) {
    if (has_gradient_[i]) continue;
    const TensorSpec& tensor = inventory_->tensors()[i];
    FillWithZeros(place, layer, tensor.offset_elems, tensor.offset_elems + tensor.num_elems);
    missing_.push_back(i);
  }
  if (in_fp32 && std::exchange(is_as_handed_[layer], 0) != 0) Widen(place, layer);
  if (is_as_handed_[layer] == 0) return Fp32Gradient(layer, SumsIn(place, layer), 0, missing_);
  return LayerGradient{.layer = layer,
                       .bytes = AsHandedIn(place, layer),
                       .dtype = handed_dtype_,
                       .missing = missing_};
}

void OpenLayers::Close(int layer) {
  const int place = std::exchange(place_of_layer_[layer], -1);
  if (place < 0) return;
  layer_of_place_[place] = -1;
  const LayerSpec& spec = inventory_->layers()[layer];
  std::fill_n(has_gradient_.begin() + spec.first_tensor, spec.num_tensors, 0);
}

void OpenLayers::Clear() {
  for (int layer = 0; layer < inventory_->num_layers(); ++layer) Close(layer);
}

}  // namespace forebay
