// DLManagedTensors over memory that somebody owns.
#pragma once

#include <memory>

#include "forebay/base/dtype.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/capi/dlpack.h"

namespace forebay::capi {

constexpr DLDataType kBytes = {.code = 1, .bits = 8, .lanes = 1};
DLDataType TypeOf(DType dtype);

constexpr DLDevice kHostMemory = {.device_type = 1, .device_id = 0};

// A tensor on `device`, row-major, which keeps `owner` until its deleter is called.
DLManagedTensor* NewTensor(std::shared_ptr<const void> owner, void* data, DLDataType type,
                           Shape shape, DLDevice device = kHostMemory);

}  // namespace forebay::capi
