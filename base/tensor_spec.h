// The inventory: which tensors a model has, which layer each belongs to and where it lies in that
// layer's flat vector of elements. Import, store, plan, optimizer and export all read this table.
//
// A *layer* is the unit that streams: it is read, computed with and updated as a whole. Its tensors
// are laid one after another in one flat vector, each starting at a multiple of kTensorAlignElems:
// the large ones first, and from the next multiple of kLayerAlignElems on the small ones (norms and
// biases: of one dimension or none), since storage may keep their state in another form
// (swap/tiles/layout.h). The vector is padded with zeros to a multiple of kLayerAlignElems, so that
// planes of 2 and 4 bytes an element are whole numbers of 4 KiB blocks on disk.
//
// A *raw* layer has tensors of bytes that mean nothing to storage: buffers of a module, integers or
// masks, and state of optimizers that is no moment. An element of it is one byte, and has no state.
// Everything else holds for it too: the vector, its alignment, and whole blocks on disk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace forebay {

inline constexpr int64_t kTensorAlignElems = 64;
inline constexpr int64_t kLayerAlignElems = 2048;
inline constexpr int64_t kRawLayerAlignBytes = 4096;  // of a raw layer, in place of it

using Shape = std::vector<int64_t>;

// Number of elements; 1 for rank 0. Requires: the product fits int64 (parsers check it).
int64_t NumElems(const Shape& shape);
// "[576, 1536]".
std::string ToString(const Shape& shape);

struct TensorSpec {
  std::string name;          // Hugging Face name, unique in the inventory
  Shape shape;               // Hugging Face shape, row-major
  int role = 0;              // the owner's own meaning (model/: TensorRole); opaque to storage
  bool decay = true;         // weight decay applies (false for norms and biases)
  int layer = 0;             // index into Inventory::layers
  int64_t offset_elems = 0;  // into the layer's flat vector
  int64_t num_elems = 0;     // NumElems(shape)
  bool raw = false;          // of a raw layer: elements are bytes, and `shape` is their number
};

constexpr bool IsSmall(const Shape& shape) {
  return shape.size() <= 1;
}

struct LayerSpec {
  std::string name;      // "embed", "layers.7", "head"
  int first_tensor = 0;  // index into Inventory::tensors
  int num_tensors = 0;
  int64_t small_begin = 0;  // where the small tensors begin in the flat vector; num_elems: nowhere
  int64_t num_elems = 0;    // of the padded flat vector
  bool raw = false;
};

class Inventory {
 public:
  // Starts a new layer; the tensors added next belong to it.
  void BeginLayer(std::string name);
  // Adds a tensor to the current layer and returns its index. Where the small tensors of the layer
  // lie is known when all were added. Requires: BeginLayer began it.
  int Add(std::string name, Shape shape, int role, bool decay);
  // Starts a new raw layer.
  void BeginRawLayer(std::string name);
  // Adds a raw tensor of `num_bytes` to the current layer and returns its index. Requires:
  // BeginRawLayer began it; 0 bytes or more.
  int AddRaw(std::string name, int64_t num_bytes);

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::vector<LayerSpec>& layers() const { return layers_; }
  int num_layers() const { return static_cast<int>(layers_.size()); }
  // nullptr when there is no tensor of that name.
  const TensorSpec* Find(std::string_view name) const;
  // Elements of all tensors that are not raw, without padding.
  int64_t num_params() const { return num_params_; }
  // The bytes of all raw tensors, without padding.
  int64_t num_raw_bytes() const { return num_raw_bytes_; }
  bool has_raw_layer() const;
  // The layers before the first raw one: those that a step streams (offload/layer_session.h).
  int num_streamed_layers() const;
  // UsageError where one that is not raw lies behind a raw one: no step would stream it.
  absl::Status CheckRawLayersAreLast() const;
  // Elements of all layers, raw ones too, with padding: what storage holds.
  int64_t num_padded_elems() const;
  int64_t largest_layer_elems() const;  // with padding, of those that are not raw

 private:
  TensorSpec& Append(std::string name, Shape shape);
  void LayOut(LayerSpec& layer);

  std::vector<TensorSpec> tensors_;
  std::vector<LayerSpec> layers_;
  int64_t num_params_ = 0;
  int64_t num_raw_bytes_ = 0;
};

// The tensors of `layer` as they lie in its flat vector.
std::vector<const TensorSpec*> TensorsInPlace(const Inventory& inventory, int layer);

}  // namespace forebay
