// Gradients that come tensor by tensor, and more than once: their sums, in fp32, until the layer
// that they belong to is complete. A layer each of whose tensors has come once, in the type that
// gradients are handed over in, stays in that type: half the memory is touched, and nothing has to
// be rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/base/process/parallel.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/optimizer/parameter_groups.h"
#include "forebay/step/layer_gradient.h"

namespace forebay {

// There is a place for each of the largest layers. So a layer that is much larger than the others,
// as an embedding is, takes its memory once. Sums are moved to a smaller place where theirs is
// needed.
//
// Owned by one thread. Nothing is allocated after Create.
class OpenLayers {
 public:
  // Room for the sums of any `num_layers` layers at one time, which are handed over in
  // `handed_dtype`. `inventory` outlives this. OutOfMemoryError.
  static absl::StatusOr<std::unique_ptr<OpenLayers>> Create(const Inventory* inventory,
                                                            int num_layers, DType handed_dtype,
                                                            MemoryBudget* budget);
  // The memory that Create charges.
  static int64_t ChargedBytes(const Inventory& inventory, int num_layers);

  // Opens the tensor's layer where it is not, for elements that Add gets later. UsageError, with
  // nothing changed: no such tensor, another number of bytes, or no room for one more layer.
  absl::Status OpenFor(int tensor, DType dtype, int64_t num_bytes);
  // Adds all elements of a tensor (by its index). The errors of OpenFor, with nothing changed.
  absl::Status Add(int tensor, DType dtype, std::span<const std::byte> elems, ThreadPool& pool);

  // The sum of a layer, in fp32 or `handed_dtype`; it is opened if it is not (UsageError: no room).
  // Tensors that nothing was added to are missing, and zero. Valid until Close, or the next call
  // for another layer. `in_fp32`: whatever was added.
  absl::StatusOr<LayerGradient> SumOf(int layer, bool in_fp32 = false);
  void Close(int layer);
  bool IsOpen(int layer) const { return place_of_layer_[layer] >= 0; }
  void Clear();

 private:
  OpenLayers(const Inventory* inventory, DType handed_dtype, std::vector<int64_t> elems_of_place);
  absl::StatusOr<int> PlaceOf(int layer);
  int TakePlace(int64_t num_elems);
  std::span<float> SumsIn(int place, int layer);
  std::span<std::byte> AsHandedIn(int place, int layer);
  bool HasGradients(int layer) const;
  void Widen(int place, int layer);
  void FillWithZeros(int place, int layer, int64_t first_elem, int64_t end_elem);

  const Inventory* const inventory_;
  const DType handed_dtype_;
  const std::vector<int64_t> elems_of_place_;   // descending
  std::vector<HostBuffer> sums_;                // by place
  std::vector<int> layer_of_place_;             // -1: free
  std::vector<int> place_of_layer_;             // -1: not open
  std::vector<uint8_t> is_as_handed_;           // by layer that is open: has no fp32 sums yet
  std::vector<uint8_t> has_gradient_;           // by tensor
  std::vector<std::vector<Padding>> paddings_;  // by layer
  std::vector<int> missing_;                    // of the last SumOf
};

}  // namespace forebay
