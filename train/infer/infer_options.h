// A model folder, and with what it is computed: for evaluation and generation.
#pragma once

#include <cstdint>
#include <string>

#include "forebay/model/cpu/ops.h"
#include "forebay/train/options/options.h"

namespace forebay {

struct InferOptions {
  std::string model;      // Hugging Face folder
  int64_t ram_bytes = 0;  // budget of the process; 0: a share of what is available (plan.h)
  cpu::Precision precision = cpu::Precision::kBf16;
  int threads = 0;  // 0: DefaultThreads (base/process/cores.h)
  ComputeDevice device = ComputeDevice::kCpu;
  int64_t gpu_mem_bytes = 0;  // budget on the GPU; 0: kAutoGpuShare of what is free
};

}  // namespace forebay
