// Every operator of model/cuda, and the update, at the shapes of one decoder layer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/bench/cuda_ops/bench_gpu.h"

namespace forebay {

struct BenchShape {
  int64_t tokens = 0;  // in sequences of `seq`
  int64_t seq = 0;
  int64_t hidden = 0, intermediate = 0, vocab = 0;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t update_elems = 0;  // that one update is made on
};
// Llama-2-7B's.
BenchShape FullShape();
BenchShape TinyShape();
int64_t ScratchBytesFor(const BenchShape& shape);

struct BenchOperator {
  std::string name;
  double flops = 0;  // multiplications and additions that the result needs
  double bytes = 0;  // that have to be read and written at least
  std::function<absl::Status()> enqueue;
};
// bf16; operands are `gpu`'s, which outlives them. OutOfMemoryError, EnvironmentError.
absl::StatusOr<std::vector<BenchOperator>> MakeOperators(BenchGpu& gpu, const BenchShape& shape);

// The limits of the GPU, measured with its own library and copies.
struct Roofs {
  double flops_per_s = 0;  // of a large square bf16 product
  double bytes_per_s = 0;  // of memory, read and written
};
absl::StatusOr<Roofs> MeasureRoofs(BenchGpu& gpu);

}  // namespace forebay
