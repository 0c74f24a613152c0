// decoder_probe MODEL BATCH.json GRADIENTS.safetensors
//
// Runs a model folder forward and backward in fp32 on one micro-batch, for test_decoder.py to
// compare with PyTorch. BATCH: {"tokens": [...], "targets": [...], "positions": [...], "segments":
// [[begin, length], ...], "scale": s}. Writes the gradients of loss_sum * scale, by their Hugging
// Face names; prints {"loss_sum", "num_trained", "logits"}: row i of the logits is what cached
// generation gives after token i of the first segment (null where the prompt's tokens went in
// together).
#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/model/files/checkpoint_source.h"
#include "forebay/model/files/safetensors.h"
#include "forebay/step/layer_walk.h"
#include "forebay/step/step_schedule.h"

namespace forebay {
namespace {

constexpr int64_t kMaxBatchBytes = int64_t{1} << 20;

MicroBatch BatchOf(const Json& json) {
  MicroBatch batch;
  batch.tokens = json["tokens"].get<std::vector<int32_t>>();
  batch.targets = json["targets"].get<std::vector<int32_t>>();
  batch.positions = json["positions"].get<std::vector<int32_t>>();
  for (const Json& segment : json["segments"]) {
    batch.segments.push_back({segment[0].get<int64_t>(), segment[1].get<int64_t>()});
    batch.num_tokens += batch.segments.back().length;
  }
  batch.num_trained = std::ranges::count_if(batch.targets, [](int32_t t) { return t >= 0; });
  return batch;
}

struct Gradients {
  double loss_sum = 0;
  std::vector<std::vector<float>> layers;
};

absl::StatusOr<Gradients> RunTraining(Decoder& decoder, ParamSource& source,
                                      const MicroBatch& batch, double scale) {
  MemoryBudget budget(int64_t{1} << 40);
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<DecoderCompute> compute,
                           DecoderCompute::CreateForTraining(
                               &decoder, static_cast<int64_t>(batch.tokens.size()), &budget));
  Gradients gradients;
  gradients.layers.resize(static_cast<size_t>(decoder.inventory().num_layers()));
  WalkHooks hooks;
  hooks.hand = [&](const LayerGradient& gradient) {
    const std::span<const float> elems = gradient.floats();
    gradients.layers[gradient.layer].assign(elems.begin(), elems.end());
    return absl::OkStatus();
  };
  LayerWalk walk(ChainSchedule(ChainOf(decoder.config())).operations);
  FOREBAY_RETURN_IF_ERROR(compute->BeginPass(std::span(&batch, 1), scale));
  walk.Announce(source);
  FOREBAY_RETURN_IF_ERROR(walk.Run(source, *compute, hooks));
  FOREBAY_ASSIGN_OR_RETURN(gradients.loss_sum, compute->LossSumOf(0));
  return gradients;
}

absl::Status WriteGradients(const std::string& path, const Inventory& inventory,
                            const Gradients& gradients) {
  std::vector<SafetensorsWriter::Planned> planned;
  for (const TensorSpec& tensor : inventory.tensors()) {
    planned.push_back({tensor.name, DType::kF32, tensor.shape});
  }
  FOREBAY_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(path, planned, {}));
  for (const TensorSpec& tensor : inventory.tensors()) {
    FOREBAY_RETURN_IF_ERROR(writer->Append(std::as_bytes(
        std::span(gradients.layers[tensor.layer]).subspan(tensor.offset_elems, tensor.num_elems))));
  }
  return writer->Finish().status();
}

// Half of the tokens together as a prompt, in chunks of the decoder's choice, then one by one.
absl::StatusOr<Json> RunGeneration(Decoder& decoder, ParamSource& source,
                                   std::span<const int32_t> tokens, MemoryBudget* budget) {
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  FOREBAY_ASSIGN_OR_RETURN(KvCache cache, KvCache::Create(budget, decoder.config(), num_tokens));
  std::vector<float> logits(decoder.config().vocab_size);
  Json rows = Json::array();
  while (cache.length() < num_tokens) {
    const int64_t count = cache.length() == 0 ? num_tokens / 2 : 1;
    FOREBAY_RETURN_IF_ERROR(
        decoder.Extend(source, tokens.subspan(cache.length(), count), cache, logits));
    for (int64_t i = 1; i < count; ++i) rows.push_back(nullptr);
    rows.push_back(logits);
  }
  return rows;
}

absl::Status Run(const std::string& model, const std::string& batch_path,
                 const std::string& gradients_path) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(batch_path, kMaxBatchBytes));
  const MicroBatch batch = BatchOf(json);
  const std::span<const int32_t> tokens(batch.tokens);
  FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig config, ReadDecoderConfig(model));
  MemoryBudget budget(0);
  FOREBAY_ASSIGN_OR_RETURN(
      auto source,
      CheckpointSource::Create(model, config, DType::kF32,
                               CheckpointSource::LeastBytes(config, DType::kF32), &budget));
  DecoderOptions options = {2, cpu::Precision::kFp32, static_cast<int64_t>(tokens.size()), true};
  FOREBAY_ASSIGN_OR_RETURN(auto decoder, Decoder::Create(config, options, &budget));
  FOREBAY_ASSIGN_OR_RETURN(const Gradients gradients,
                           RunTraining(*decoder, *source, batch, json["scale"].get<double>()));
  FOREBAY_RETURN_IF_ERROR(WriteGradients(gradients_path, decoder->inventory(), gradients));

  options.training = false;
  options.max_tokens = 7;
  FOREBAY_ASSIGN_OR_RETURN(auto generator, Decoder::Create(config, options, &budget));
  const Segment& first = batch.segments[0];
  Json result;
  FOREBAY_ASSIGN_OR_RETURN(
      result["logits"],
      RunGeneration(*generator, *source, tokens.subspan(first.begin, first.length), &budget));
  result["loss_sum"] = gradients.loss_sum;
  result["num_trained"] = batch.num_trained;
  std::printf("%s\n", result.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace forebay

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: decoder_probe MODEL BATCH.json GRADIENTS.safetensors\n");
    return 2;
  }
  const absl::Status status = forebay::Run(argv[1], argv[2], argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", forebay::MessageOf(status).c_str());
  return static_cast<int>(forebay::ExitCodeOf(status));
}
