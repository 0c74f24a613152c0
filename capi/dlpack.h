// The structs of DLPack 0.8 (github.com/dmlc/dlpack): an ABI, in the names of its own header.
#pragma once

#include <cstdint>

extern "C" {

struct DLDevice {
  int32_t device_type;  // 1: the host, 2: CUDA
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;  // 2: floating point, 4: bfloat16
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // nullptr: row-major
  uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};
}
