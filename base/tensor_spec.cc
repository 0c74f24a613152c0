#include "forebay/base/tensor_spec.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/round_up.h"

namespace forebay {

int64_t NumElems(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::string ToString(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void Inventory::BeginLayer(std::string name) {
  LayerSpec layer;
  layer.name = std::move(name);
  layer.first_tensor = static_cast<int>(tensors_.size());
  layers_.push_back(std::move(layer));
}

void Inventory::BeginRawLayer(std::string name) {
  BeginLayer(std::move(name));
  layers_.back().raw = true;
}

TensorSpec& Inventory::Append(std::string name, Shape shape) {
  LayerSpec& layer = layers_.back();
  TensorSpec& tensor = tensors_.emplace_back();
  tensor.name = std::move(name);
  tensor.num_elems = NumElems(shape);
  tensor.shape = std::move(shape);
  tensor.layer = num_layers() - 1;
  tensor.raw = layer.raw;
  ++layer.num_tensors;
  LayOut(layer);
  return tensor;
}

int Inventory::Add(std::string name, Shape shape, int role, bool decay) {
  FOREBAY_CHECK(!layers_.empty() && !layers_.back().raw);
  TensorSpec& tensor = Append(std::move(name), std::move(shape));
  tensor.role = role;
  tensor.decay = decay;
  num_params_ += tensor.num_elems;
  return static_cast<int>(tensors_.size()) - 1;
}

int Inventory::AddRaw(std::string name, int64_t num_bytes) {
  FOREBAY_CHECK(!layers_.empty() && layers_.back().raw && num_bytes >= 0);
  Append(std::move(name), {num_bytes}).decay = false;
  num_raw_bytes_ += num_bytes;
  return static_cast<int>(tensors_.size()) - 1;
}

absl::Status Inventory::CheckRawLayersAreLast() const {
  const auto first_raw = layers_.begin() + num_streamed_layers();
  const auto behind = std::find_if_not(first_raw, layers_.end(), std::mem_fn(&LayerSpec::raw));
  if (behind == layers_.end()) return absl::OkStatus();
  return UsageError(fmt::format(
      "layer '{}' lies behind '{}', which has raw tensors. Put raw layers behind all that a step "
      "streams",
      behind->name, first_raw->name));
}

int Inventory::num_streamed_layers() const {
  const auto first_raw = std::ranges::find_if(layers_, &LayerSpec::raw);
  return static_cast<int>(first_raw - layers_.begin());
}

bool Inventory::has_raw_layer() const {
  return std::ranges::any_of(layers_, &LayerSpec::raw);
}

// Raw tensors have no state that could be kept in another form: none of them counts as small.
void Inventory::LayOut(LayerSpec& layer) {
  const int64_t align_elems = layer.raw ? kRawLayerAlignBytes : kLayerAlignElems;
  int64_t end = 0;
  const auto place = [&](bool small) {
    for (int i = layer.first_tensor; i < layer.first_tensor + layer.num_tensors; ++i) {
      TensorSpec& tensor = tensors_[i];
      if ((IsSmall(tensor.shape) && !layer.raw) != small) continue;
      tensor.offset_elems = RoundUp(end, kTensorAlignElems);
      end = tensor.offset_elems + tensor.num_elems;
    }
    end = RoundUp(end, align_elems);
  };
  place(/*small=*/false);
  layer.small_begin = end;
  place(/*small=*/true);
  layer.num_elems = end;
}

const TensorSpec* Inventory::Find(std::string_view name) const {
  for (const TensorSpec& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

int64_t Inventory::largest_layer_elems() const {
  int64_t elems = 0;
  for (const LayerSpec& layer : layers_) {
    if (!layer.raw) elems = std::max(elems, layer.num_elems);
  }
  return elems;
}

int64_t Inventory::num_padded_elems() const {
  int64_t total = 0;
  for (const LayerSpec& layer : layers_) total += layer.num_elems;
  return total;
}

std::vector<const TensorSpec*> TensorsInPlace(const Inventory& inventory, int layer) {
  const LayerSpec& spec = inventory.layers()[layer];
  std::vector<const TensorSpec*> tensors;
  for (int i = spec.first_tensor; i < spec.first_tensor + spec.num_tensors; ++i) {
    tensors.push_back(&inventory.tensors()[i]);
  }
  // Several may begin at one place where they have no elements: those come first.
  std::ranges::stable_sort(tensors, {}, [](const TensorSpec* tensor) {
    return std::pair(tensor->offset_elems, tensor->num_elems);
  });
  return tensors;
}

}  // namespace forebay
