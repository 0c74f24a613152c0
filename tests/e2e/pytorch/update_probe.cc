// update_probe CASE.json IN OUT
//
// Makes the updates of a case, for test_updates.py to compare with PyTorch. CASE: {"optimizer",
// "beta1", "beta2", "eps", "momentum", "nesterov", "weight_decay", "weights": "split", "fp16" or
// "fp32", "gradients": "bf16", "fp16" or "fp32", "num_elems", "lr": [of each update],
// "gradient_scale": [the same]}. IN: fp32, the weights and then the gradients of each update. OUT:
// fp32, what they leave of weights (the masters), first and second moments.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/optimizer/kernels/tile_update.h"
#include "forebay/tests/optimizer/run_planes.h"

namespace forebay {
namespace {

constexpr int64_t kMaxCaseBytes = int64_t{1} << 20;

OptimizerConfig ConfigOf(const Json& json) {
  OptimizerConfig config;
  for (const OptimizerKind kind :
       {OptimizerKind::kAdamW, OptimizerKind::kAdam, OptimizerKind::kAdagrad, OptimizerKind::kLion,
        OptimizerKind::kSgd}) {
    if (json["optimizer"] == NameOf(kind)) config.kind = kind;
  }
  config.beta1 = json["beta1"].get<double>();
  config.beta2 = json["beta2"].get<double>();
  config.eps = json["eps"].get<double>();
  config.momentum = json["momentum"].get<double>();
  config.nesterov = json["nesterov"].get<bool>();
  return config;
}

RunFormat FormatOf(const Json& json) {
  RunFormat format;
  format.weights = json["weights"] == "split"  ? WeightFormat::kSplitBf16
                   : json["weights"] == "fp16" ? WeightFormat::kFp16
                                               : WeightFormat::kFp32;
  format.gradient_dtype = json["gradients"] == "bf16"   ? DType::kBF16
                          : json["gradients"] == "fp16" ? DType::kF16
                                                        : DType::kF32;
  return format;
}

absl::Status ReadFloats(std::ifstream& in, std::vector<float>& values) {
  in.read(reinterpret_cast<char*>(values.data()),
          static_cast<std::streamsize>(values.size() * sizeof(float)));
  return in ? absl::OkStatus() : BadInputError("IN is shorter than CASE says");
}

absl::Status Run(const std::string& case_path, const std::string& in_path,
                 const std::string& out_path) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(case_path, kMaxCaseBytes));
  const OptimizerConfig config = ConfigOf(json);
  RunPlanes planes(FormatOf(json), json["num_elems"].get<int64_t>());
  std::ifstream in(in_path, std::ios::binary);
  std::vector<float> values(static_cast<size_t>(planes.size()));
  FOREBAY_RETURN_IF_ERROR(ReadFloats(in, values));
  for (int64_t i = 0; i < planes.size(); ++i) planes.SetMaster(i, values[static_cast<size_t>(i)]);
  TileRun run = planes.Run();
  run.weight_decay = json["weight_decay"].get<double>();
  if (!HasFirstMoment(config)) run.m = nullptr;
  if (!HasSecondMoment(config)) run.v = nullptr;

  const Json& lr = json["lr"];
  for (size_t update = 0; update < lr.size(); ++update) {
    FOREBAY_RETURN_IF_ERROR(ReadFloats(in, values));
    for (int64_t i = 0; i < planes.size(); ++i) {
      planes.SetGradient(i, values[static_cast<size_t>(i)]);
    }
    UpdateRun(config,
              {.step = static_cast<int64_t>(update) + 1,
               .lr = lr[update].get<double>(),
               .gradient_scale = json["gradient_scale"][update].get<double>()},
              run);
  }

  std::ofstream out(out_path, std::ios::binary);
  const auto write = [&](auto value_of) {
    for (int64_t i = 0; i < planes.size(); ++i) values[static_cast<size_t>(i)] = value_of(i);
    out.write(reinterpret_cast<const char*>(values.data()),
              static_cast<std::streamsize>(values.size() * sizeof(float)));
  };
  write([&](int64_t i) { return planes.Master(i); });
  write([&](int64_t i) { return planes.M(i); });
  write([&](int64_t i) { return planes.V(i); });
  out.close();
  return out ? absl::OkStatus() : StorageError("OUT cannot be written");
}

}  // namespace
}  // namespace forebay

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: update_probe CASE.json IN OUT\n");
    return 2;
  }
  const absl::Status status = forebay::Run(argv[1], argv[2], argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", forebay::MessageOf(status).c_str());
  return static_cast<int>(forebay::ExitCodeOf(status));
}
