#include "forebay/capi/c_inventory.h"

#include <limits>
#include <utility>

#include "forebay/base/errors.h"
#include "forebay/capi/c.h"
#include "forebay/capi/c_status.h"

namespace forebay::capi {
namespace {

// Bytes and elements of all layers together stay far below what int64 holds.
constexpr int64_t kMostElems = int64_t{1} << 46;
// A step's settings are given for all groups up to the highest that a tensor is of.
constexpr int32_t kMostGroups = 1 << 16;

absl::StatusOr<std::string> NewName(forebay_inventory* inventory, const char* name, size_t length) {
  FOREBAY_ASSIGN_OR_RETURN(std::string text, TextOf(name, length, "name"));
  if (text.empty()) return UsageError("a tensor has no name");
  if (inventory->names.contains(text)) {
    return UsageError(fmt::format("two tensors are called '{}'", text));
  }
  return text;
}

absl::StatusOr<Shape> ShapeOf(const int64_t* dims, int32_t rank, std::string_view name) {
  if (rank < 0) return UsageError(fmt::format("'{}' has rank {}", name, rank));
  if (rank > 0) FOREBAY_RETURN_IF_ERROR(CheckPointer(dims, "shape"));
  Shape shape(dims, dims + rank);
  int64_t num_elems = 1;
  for (const int64_t dim : shape) {
    if (dim > 0 && num_elems <= kMostElems / dim) {
      num_elems *= dim;
      continue;
    }
    return UsageError(
        fmt::format("'{}' has the shape {}, which no tensor here can have: each size is 1 or more",
                    name, ToString(shape)));
  }
  return shape;
}

absl::Status BeginLayer(forebay_inventory* inventory, const char* name, size_t length,
                        forebay_inventory::Layer kind) {
  FOREBAY_ASSIGN_OR_RETURN(std::string text, TextOf(name, length, "name"));
  if (kind == forebay_inventory::Layer::kRaw) {
    inventory->inventory.BeginRawLayer(std::move(text));
  } else {
    inventory->inventory.BeginLayer(std::move(text));
  }
  inventory->layer = kind;
  return absl::OkStatus();
}

absl::Status Add(forebay_inventory* inventory, const char* name, size_t length, const int64_t* dims,
                 int32_t rank, int32_t group, int32_t* index) {
  FOREBAY_ASSIGN_OR_RETURN(std::string text, NewName(inventory, name, length));
  if (inventory->layer != forebay_inventory::Layer::kStreamed) {
    return UsageError(fmt::format("'{}' belongs to no layer. Begin one before", text));
  }
  if (group < 0 || group >= kMostGroups) {
    return UsageError(
        fmt::format("'{}' is of group {}, and groups are 0 to {}", text, group, kMostGroups - 1));
  }
  FOREBAY_ASSIGN_OR_RETURN(Shape shape, ShapeOf(dims, rank, text));
  inventory->names.insert(text);
  inventory->group_of_tensor.push_back(group);
  const int added = inventory->inventory.Add(std::move(text), std::move(shape), 0, true);
  if (index != nullptr) *index = added;
  return absl::OkStatus();
}

absl::Status AddRaw(forebay_inventory* inventory, const char* name, size_t length,
                    int64_t num_bytes, int32_t* index) {
  FOREBAY_ASSIGN_OR_RETURN(std::string text, NewName(inventory, name, length));
  if (inventory->layer != forebay_inventory::Layer::kRaw) {
    return UsageError(fmt::format("'{}' belongs to no raw layer. Begin one before", text));
  }
  if (num_bytes < 0 || num_bytes > kMostElems) {
    return UsageError(fmt::format("'{}' has {} bytes", text, num_bytes));
  }
  inventory->names.insert(text);
  inventory->group_of_tensor.push_back(0);
  const int added = inventory->inventory.AddRaw(std::move(text), num_bytes);
  if (index != nullptr) *index = added;
  return absl::OkStatus();
}

// body(*inventory) as one call on it.
template <typename Body>
int32_t RunOnInventory(forebay_inventory* inventory, char** message, const Body& body) {
  return Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(inventory, "inventory"));
    const std::lock_guard lock(inventory->mutex);
    return body();
  });
}

}  // namespace
}  // namespace forebay::capi

using forebay::capi::RunOnInventory;

extern "C" {

forebay_inventory* forebay_inventory_create(void) {
  return new (std::nothrow) forebay_inventory();
}

void forebay_inventory_destroy(forebay_inventory* inventory) {
  delete inventory;
}

int32_t forebay_inventory_begin_layer(forebay_inventory* inventory, const char* name,
                                      size_t name_length, char** message) {
  return RunOnInventory(inventory, message, [&] {
    return forebay::capi::BeginLayer(inventory, name, name_length,
                                     forebay_inventory::Layer::kStreamed);
  });
}

int32_t forebay_inventory_begin_raw_layer(forebay_inventory* inventory, const char* name,
                                          size_t name_length, char** message) {
  return RunOnInventory(inventory, message, [&] {
    return forebay::capi::BeginLayer(inventory, name, name_length, forebay_inventory::Layer::kRaw);
  });
}

int32_t forebay_inventory_add(forebay_inventory* inventory, const char* name, size_t name_length,
                              const int64_t* shape, int32_t rank, int32_t group, int32_t* index,
                              char** message) {
  return RunOnInventory(inventory, message, [&] {
    return forebay::capi::Add(inventory, name, name_length, shape, rank, group, index);
  });
}

int32_t forebay_inventory_add_raw(forebay_inventory* inventory, const char* name,
                                  size_t name_length, int64_t num_bytes, int32_t* index,
                                  char** message) {
  return RunOnInventory(inventory, message, [&] {
    return forebay::capi::AddRaw(inventory, name, name_length, num_bytes, index);
  });
}

}  // extern "C"
