#include "forebay/base/tensor_spec.h"

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/check.h"

namespace forebay {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

int64_t NumElems(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  return count;
}

std::string ToString(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

void Inventory::BeginLayer(std::string name) {
  layers_.push_back({std::move(name), static_cast<int>(tensors_.size()), 0, 0});
}

int Inventory::Add(std::string name, Shape shape, int role, bool decay) {
  FOREBAY_CHECK(!layers_.empty());
  LayerSpec& layer = layers_.back();
  const TensorSpec* last = layer.num_tensors == 0 ? nullptr : &tensors_.back();
  TensorSpec tensor;
  tensor.name = std::move(name);
  tensor.num_elems = NumElems(shape);
  tensor.shape = std::move(shape);
  tensor.role = role;
  tensor.decay = decay;
  tensor.layer = num_layers() - 1;
  tensor.offset_elems =
      last == nullptr ? 0 : RoundUp(last->offset_elems + last->num_elems, kTensorAlignElems);
  layer.num_elems = RoundUp(tensor.offset_elems + tensor.num_elems, kLayerAlignElems);
  ++layer.num_tensors;
  num_params_ += tensor.num_elems;
  tensors_.push_back(std::move(tensor));
  return static_cast<int>(tensors_.size()) - 1;
}

const TensorSpec* Inventory::Find(std::string_view name) const {
  for (const TensorSpec& tensor : tensors_) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

int64_t Inventory::num_padded_elems() const {
  int64_t total = 0;
  for (const LayerSpec& layer : layers_) total += layer.num_elems;
  return total;
}

}  // namespace forebay
