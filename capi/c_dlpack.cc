#include "forebay/capi/c_dlpack.h"

#include <utility>

#include "forebay/capi/c_status.h"

namespace forebay::capi {
namespace {

// A DLManagedTensor with what it points to. In a fork it stays: its owner's locks and threads are
// the parent's.
struct OwnedTensor : Handle {
  DLManagedTensor tensor;
  std::shared_ptr<const void> owner;
  Shape shape;
};

}  // namespace

DLDataType TypeOf(DType dtype) {
  constexpr uint8_t kFloat = 2;
  constexpr uint8_t kBfloat = 4;
  return {.code = dtype == DType::kBF16 ? kBfloat : kFloat,
          .bits = static_cast<uint8_t>(8 * SizeOf(dtype)),
          .lanes = 1};
}

DLManagedTensor* NewTensor(std::shared_ptr<const void> owner, void* data, DLDataType type,
                           Shape shape, DLDevice device) {
  auto* const owned = new OwnedTensor{{}, {}, std::move(owner), std::move(shape)};
  owned->tensor.dl_tensor = {.data = data,
                             .device = device,
                             .ndim = static_cast<int32_t>(owned->shape.size()),
                             .dtype = type,
                             .shape = owned->shape.data(),
                             .strides = nullptr,
                             .byte_offset = 0};
  owned->tensor.manager_ctx = owned;
  owned->tensor.deleter = [](DLManagedTensor* self) {
    Destroy(static_cast<OwnedTensor*>(self->manager_ctx));
  };
  return &owned->tensor;
}

}  // namespace forebay::capi
