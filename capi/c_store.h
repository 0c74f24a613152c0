// From options, tensors and planes of c.h to ours, for every kind of store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/dtype.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/swap/tiles/layout.h"
#include "forebay/swap/tiles/tile_values.h"

namespace forebay::capi {

// From the root on, whatever the current folder becomes. UsageError: one of them is NULL or empty.
absl::StatusOr<std::vector<std::string>> FoldersOf(const char* const* folders, size_t num_folders);
// UsageError: it is none of c.h's.
absl::StatusOr<EngineKind> EngineOf(int32_t engine);
// How weights of a type are stored.
Layout LayoutOf(DType dtype);
absl::StatusOr<TensorPlane> PlaneOf(int32_t plane);
// UsageError: the inventory has fewer.
absl::StatusOr<const TensorSpec*> TensorOf(const Inventory& inventory, int32_t tensor);
// UsageError: the tensor has no elements [first, first + num_elems).
absl::Status CheckRange(const TensorSpec& spec, int64_t first, int64_t num_elems);

}  // namespace forebay::capi
