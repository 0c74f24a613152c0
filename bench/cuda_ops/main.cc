// Times every operator of model/cuda at the shapes of a 7B layer, the update, and the bus, on the
// first GPU, and prints one JSON document. Each time is a median; each roof is measured in the same
// run. With --tiny all of it at shapes for an emulated GPU, whose times mean nothing.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/bench/cuda_ops/bench_gpu.h"
#include "forebay/bench/cuda_ops/copies.h"
#include "forebay/bench/cuda_ops/operators.h"
#include "forebay/device/cuda_info.h"

namespace forebay {
namespace {

Json CardToJson() {
  const CudaInfo cuda = AskCuda();
  if (cuda.gpus.empty()) return nullptr;
  const GpuInfo& gpu = cuda.gpus.front();
  return {{"name", gpu.name},
          {"capability", fmt::format("{}.{}", gpu.capability_major, gpu.capability_minor)},
          {"memory_bytes", gpu.total_bytes},
          {"driver_cuda", cuda.driver_version},
          {"runtime_cuda", cuda.runtime_version},
          {"cublaslt", cuda.cublaslt_file}};
}

Json ShapeToJson(const BenchShape& shape) {
  return {{"tokens", shape.tokens},
          {"seq", shape.seq},
          {"hidden", shape.hidden},
          {"intermediate", shape.intermediate},
          {"vocab", shape.vocab},
          {"heads", shape.heads},
          {"kv_heads", shape.kv_heads},
          {"head_dim", shape.head_dim},
          {"update_elems", shape.update_elems}};
}

Json RatesToJson(const CopyRates& rates) {
  return {{"to_device_gb_per_s", rates.to_device / 1e9},
          {"to_host_gb_per_s", rates.to_host / 1e9},
          {"both_gb_per_s", rates.both / 1e9}};
}

// `share`: the time that the nearer roof allows, in the time it took.
Json OperatorToJson(const BenchOperator& op, double seconds, const Roofs& roofs) {
  const double least = std::max(op.flops / roofs.flops_per_s, op.bytes / roofs.bytes_per_s);
  return {{"name", op.name},
          {"ms", seconds * 1e3},
          {"tflops_per_s", op.flops > 0 ? Json(op.flops / seconds / 1e12) : Json(nullptr)},
          {"gb_per_s", op.bytes / seconds / 1e9},
          {"share_of_roof", least / seconds}};
}

absl::StatusOr<Json> RunBench(const BenchSettings& settings) {
  const BenchShape shape = settings.tiny ? TinyShape() : FullShape();
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<BenchGpu> gpu,
                           BenchGpu::Create(settings, ScratchBytesFor(shape)));
  FOREBAY_ASSIGN_OR_RETURN(const Roofs roofs, MeasureRoofs(*gpu));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<BenchOperator> operators, MakeOperators(*gpu, shape));
  Json list = Json::array();
  for (const BenchOperator& op : operators) {
    FOREBAY_ASSIGN_OR_RETURN(const double seconds, gpu->MedianSeconds(op.enqueue));
    list.push_back(OperatorToJson(op, seconds, roofs));
  }
  FOREBAY_ASSIGN_OR_RETURN(const CopyRates raw, MeasureRawCopies(*gpu));
  FOREBAY_ASSIGN_OR_RETURN(const CopyRates layers, MeasureLayerCopies(*gpu));
  return Json{{"schema", 1},
              {"tiny", settings.tiny},
              {"card", CardToJson()},
              {"shape", ShapeToJson(shape)},
              {"roofs",
               {{"tflops_per_s", roofs.flops_per_s / 1e12}, {"gb_per_s", roofs.bytes_per_s / 1e9}}},
              {"operators", std::move(list)},
              {"copies",
               {{"raw", RatesToJson(raw)},
                {"layers", RatesToJson(layers)},
                {"share_of_raw", layers.both / raw.both}}}};
}

int Main(int argc, char** argv) {
  const bool tiny = argc == 2 && std::strcmp(argv[1], "--tiny") == 0;
  if (argc > 1 && !tiny) {
    fmt::print(stderr, "cuda_ops: '{}' is no flag of it. Run it without, or with --tiny\n",
               argv[1]);
    return static_cast<int>(ExitCode::kUsage);
  }
  const absl::StatusOr<Json> result = RunBench(tiny ? TinyBench() : FullBench());
  if (!result.ok()) {
    fmt::print(stderr, "cuda_ops: error: {}\n", MessageOf(result.status()));
    return static_cast<int>(ExitCodeOf(result.status()));
  }
  fmt::print("{}\n", result->dump(1));
  return 0;
}

}  // namespace
}  // namespace forebay

int main(int argc, char** argv) {
  return forebay::Main(argc, argv);
}
