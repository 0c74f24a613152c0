#include "forebay/tests/train/faults/toy_run.h"

#include <algorithm>
#include <fstream>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/data/packed_file.h"
#include "forebay/model/decoder_config.h"
#include "forebay/tests/data/packed_bytes.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/start/init_model.h"
#include "forebay/train/start/resolve_options.h"

namespace forebay {
namespace {

constexpr int64_t kRoomyBytes = int64_t{256} << 20;

constexpr char kConfig[] = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 64,
  "hidden_size": 32, "num_attention_heads": 4,
  "num_key_value_heads": 2, "max_position_embeddings": 32, "tie_word_embeddings": true})";
constexpr int64_t kSeq = 16;
constexpr int64_t kNumRows = 6;

// Rows of one segment each.
PackedBytes MakeRows() {
  PackedBytes bytes;
  bytes.num_rows = kNumRows;
  bytes.seq = kSeq;
  bytes.vocab_size = 64;
  bytes.num_tokens = kNumRows * kSeq;
  bytes.num_trained = kNumRows * (kSeq - 1);
  bytes.num_samples = kNumRows;
  bytes.longest_segment = kSeq;
  bytes.tokens.clear();
  bytes.flags.clear();
  for (int64_t row = 0; row < kNumRows; ++row) {
    for (int64_t i = 0; i < kSeq; ++i) {
      bytes.tokens.push_back((31 * row + 7 * i * i + 3 * i) % 64);
      bytes.flags.push_back(i == 0 ? kTokenSegmentStart : kTokenTrained);
    }
  }
  return bytes;
}

bool CanResume(const std::string& out) {
  if (!IsRunFolder(out)) return false;
  const auto json = ReadRunJson(out);
  FOREBAY_CHECK(json.ok());
  return (*json)["state"] == "ready";
}

}  // namespace

int64_t LeastRam(TrainOptions options) {
  const auto config = ReadDecoderConfig(options.model);
  FOREBAY_CHECK(config.ok());
  MachineLimits unlimited;
  unlimited.disks.resize(std::max<size_t>(options.nvme.size(), 1));
  for (size_t i = 0; i < options.nvme_weights.size(); ++i) {
    unlimited.disks[i].weight = options.nvme_weights[i];
  }
  int64_t too_little = 0;
  int64_t enough = int64_t{1} << 30;
  while (enough - too_little > 1) {
    options.ram_bytes = (too_little + enough) / 2;
    (MakePlan(*config, options, unlimited).ok() ? enough : too_little) = options.ram_bytes;
  }
  return enough;
}

ToyTask::ToyTask(const std::string& folder, int num_blocks, int intermediate_size)
    : model_(JoinPath(folder, "model")), data_(JoinPath(folder, "rows.packed")) {
  const std::string config = JoinPath(folder, "config.json");
  Json shape = Json::parse(kConfig);
  shape["num_hidden_layers"] = num_blocks;
  shape["intermediate_size"] = intermediate_size;
  FOREBAY_CHECK(WriteFileAtomically(config, shape.dump()).ok());
  InitOptions init;
  init.config = config;
  init.out = model_;
  init.seed = 5;
  init.dtype = "fp32";
  FOREBAY_CHECK(InitModel(init, {}).ok());
  std::ofstream(data_, std::ios::binary) << MakeRows().Encode();
  least_ram_bytes_ = LeastRam(TightRun(""));
}

TrainOptions ToyTask::TightRun(const std::string& out) const {
  TrainOptions options;
  options.model = model_;
  options.data = data_;
  options.out = out;
  options.batch = 1;
  options.accum = 2;
  options.seq = kSeq;
  options.seed = 9;
  options.steps = kToySteps;
  options.lr = 1e-2;
  options.threads = 2;
  options.tile_elems = 4096;
  options.weights_tier = TierChoice::kNvme;
  options.state_tier = TierChoice::kNvme;
  // The least memory is that of a run with them there.
  options.activations_tier = ActivationsTier::kRam;
  options.ram_bytes = least_ram_bytes_;
  return options;
}

TrainOptions ToyTask::StripedRun(const std::string& out) const {
  TrainOptions options = TightRun(out);
  options.nvme = {JoinPath(out, "swap"), JoinPath(out, "more")};
  options.nvme_weights = {2, 1};
  options.ram_bytes = LeastRam(options);
  return options;
}

void ToyTask::Delay(TrainOptions& options) const {
  options.commit_every = 2;
  options.delay_update_from = 2;
  if (options.ram_bytes < kRoomyBytes) options.ram_bytes = LeastRam(options);
}

TrainOptions ToyTask::RoomyRun(const std::string& out) const {
  TrainOptions options = TightRun(out);
  options.precision = cpu::Precision::kFp32;
  options.layout = Layout::kFp32;
  options.grad_dtype = DType::kF32;
  options.export_dtype = DType::kF32;
  options.ram_bytes = kRoomyBytes;
  return options;
}

absl::Status TrainToy(const TrainOptions& options, const TrainEnvironment& environment) {
  SilentObserver observer;
  return TrainToy(options, environment, observer);
}

absl::Status TrainToy(const TrainOptions& options, const TrainEnvironment& environment,
                      TrainObserver& observer) {
  return Train(
      ResolvedFrom(options, "test"), [] { return false; }, observer, environment);
}

absl::Status TrainToyOn(TrainOptions options, const TrainEnvironment& environment) {
  options.resume = CanResume(options.out);
  return TrainToy(options, environment);
}

absl::StatusOr<ToyResult> ResultOf(const std::string& out) {
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
  FOREBAY_ASSIGN_OR_RETURN(const auto store,
                           OpenRunStore(out, engine.get(), StoreAccess::kReadOnly));
  ToyResult result;
  FOREBAY_ASSIGN_OR_RETURN(result.state, StateDigest(*store));
  FOREBAY_ASSIGN_OR_RETURN(result.model, ModelDigest(RunPaths(out).model));
  return result;
}

std::vector<int64_t> StepsInMetrics(const std::string& out) {
  std::vector<int64_t> steps;
  std::ifstream file(RunPaths(out).metrics);
  for (std::string line; std::getline(file, line);) {
    const auto json = ParseJson(line, "metrics.jsonl");
    steps.push_back(json.ok() ? (*json).value("step", int64_t{-1}) : -1);
  }
  return steps;
}

}  // namespace forebay
