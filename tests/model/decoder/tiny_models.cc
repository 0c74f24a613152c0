#include "forebay/tests/model/decoder/tiny_models.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "fmt/format.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/json.h"

namespace forebay::testing {
namespace {

std::string OneLayerWithRope(std::string_view architecture, int hidden, std::string_view scaling) {
  return fmt::format(R"({{"architectures": ["{}"], "hidden_size": {},
        "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 47, "max_position_embeddings": 64,
        "rope_theta": 500.0, "rope_scaling": {}}})",
                     architecture, hidden, scaling);
}

const std::map<std::string, std::string>& Configs() {
  static const auto* const configs = new std::map<std::string, std::string>{
      {"LlamaGroupedTied", R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 24,
        "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": true})"},
      {"LlamaBiasesUntied", R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 24,
        "intermediate_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3,
        "num_key_value_heads": 3, "vocab_size": 53, "max_position_embeddings": 64,
        "attention_bias": true, "mlp_bias": true, "tie_word_embeddings": false})"},
      {"LlamaLinearRope",
       OneLayerWithRope("LlamaForCausalLM", 16, R"({"type": "linear", "factor": 4.0})")},
      {"LlamaLlama3Rope", OneLayerWithRope("LlamaForCausalLM", 32, R"({"rope_type": "llama3",
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16})")},
      {"QwenYarnRope", OneLayerWithRope("Qwen2ForCausalLM", 32, R"({"rope_type": "yarn",
        "factor": 4.0, "original_max_position_embeddings": 16})")},
      {"LlamaLongRope", OneLayerWithRope("LlamaForCausalLM", 16, R"({"rope_type": "longrope",
        "factor": 1.0, "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.5, 2.0, 4.0, 9.0],
        "original_max_position_embeddings": 6})")},
      {"LlamaProportionalRope",
       OneLayerWithRope(
           "LlamaForCausalLM", 16,
           R"({"rope_type": "proportional", "factor": 2.0, "partial_rotary_factor": 0.5})")},
      {"MistralWindow", R"({"architectures": ["MistralForCausalLM"], "hidden_size": 24,
        "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 1, "vocab_size": 61, "max_position_embeddings": 64,
        "sliding_window": 5, "tie_word_embeddings": false})"},
      {"Qwen2WindowOnUpperLayer", R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 24,
        "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 64,
        "use_sliding_window": true, "sliding_window": 4, "max_window_layers": 1,
        "tie_word_embeddings": true})"},
      {"Qwen3WideHeads", R"({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 20,
        "intermediate_size": 28, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 12, "vocab_size": 61,
        "max_position_embeddings": 64, "tie_word_embeddings": true})"},
      {"Gpt2", R"({"architectures": ["GPT2LMHeadModel"], "n_embd": 24, "n_layer": 2,
        "n_head": 3, "vocab_size": 59, "n_positions": 64})"},
  };
  return *configs;
}

double RoundTo(DType dtype, double value) {
  const float single = static_cast<float>(value);
  if (dtype == DType::kF16) return Fp16ToFloat(FloatToFp16(single));
  return dtype == DType::kF32 ? single : Bf16ToFloat(FloatToBf16(single));
}

}  // namespace

MemorySource::MemorySource(const Inventory& inventory, const reference::NamedTensors& weights,
                           DType dtype)
    : dtype_(dtype) {
  for (const LayerSpec& layer : inventory.layers()) {
    layers_.push_back(*HostBuffer::Create(&budget_, layer.name,
                                          layer.num_elems * SizeOf(dtype) + kBasePageBytes));
  }
  for (const TensorSpec& tensor : inventory.tensors()) {
    const std::vector<double>& values = weights.at(tensor.name);
    std::byte* const out = layers_[tensor.layer].data() + tensor.offset_elems * SizeOf(dtype);
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = static_cast<float>(values[i]);
      const uint16_t half = dtype == DType::kF16 ? FloatToFp16(value) : FloatToBf16(value);
      if (dtype == DType::kF32) std::memcpy(out + 4 * i, &value, 4);
      if (dtype != DType::kF32) std::memcpy(out + 2 * i, &half, 2);
    }
  }
}

void MemorySource::Expect(std::span<const int> layers) {
  expected_.insert(expected_.end(), layers.begin(), layers.end());
  most_expected_ = std::max(most_expected_, expected_.size());
}

absl::StatusOr<WeightsLease> MemorySource::Acquire(int layer) {
  FOREBAY_CHECK(!expected_.empty() && expected_.front() == layer);
  if (successes_left_ == 0) return absl::UnavailableError("the source was told to fail");
  if (successes_left_ > 0) --successes_left_;
  expected_.erase(expected_.begin());
  most_held_ = std::max(most_held_, ++held_);
  return WeightsLease(this, layer, Layer(layer));
}

LayerWeights MemorySource::Layer(int layer) const {
  const std::span<std::byte> memory = layers_[layer].bytes();
  return {dtype_, memory.subspan(static_cast<size_t>(shift_bytes_),
                                 memory.size() - static_cast<size_t>(kBasePageBytes))};
}

void MemorySource::ShiftTo(int64_t shift_bytes) {
  for (const HostBuffer& layer : layers_) {
    std::memmove(layer.data() + shift_bytes, layer.data() + shift_bytes_,
                 static_cast<size_t>(layer.size_bytes() - kBasePageBytes));
  }
  shift_bytes_ = shift_bytes;
}

void MemorySource::Release(int, Event*) {
  --held_;
}

std::vector<std::string> TinyModelNames() {
  std::vector<std::string> names;
  for (const auto& [name, config] : Configs()) names.push_back(name);
  return names;
}

TinyModel MakeTinyModel(const std::string& name, DType dtype, uint64_t seed) {
  return MakeModel(name, Configs().at(name), dtype, seed);
}

TinyModel MakeLargeVocabularyModel(bool tied, DType dtype) {
  return MakeModel("LargeVocabulary",
                   fmt::format(R"({{"architectures": ["LlamaForCausalLM"],
      "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
      "num_key_value_heads": 1, "vocab_size": 65541, "max_position_embeddings": 64,
      "tie_word_embeddings": {}}})",
                               tied),
                   dtype, /*seed=*/1);
}

TinyModel MakeModel(const std::string& name, const std::string& config_json, DType dtype,
                    uint64_t seed) {
  TinyModel model;
  model.name = name;
  model.config = *ParseDecoderConfig(*ParseJson(config_json, name), name);
  model.inventory = BuildInventory(model.config);
  uint64_t stream = 0;
  for (const TensorSpec& tensor : model.inventory.tensors()) {
    const CounterRng rng(seed, ++stream);
    std::vector<double>& values = model.weights[tensor.name];
    const bool is_matrix = tensor.shape.size() > 1;
    // Norm weights vary around 1, everything else around 0.
    const bool is_norm_weight = !is_matrix && !tensor.name.ends_with("bias");
    for (int64_t i = 0; i < tensor.num_elems; ++i) {
      const double value = is_norm_weight ? 1 + 0.2 * rng.Normal(i) : 0.25 * rng.Normal(i);
      values.push_back(RoundTo(dtype, value));
    }
  }
  return model;
}

MicroBatch MakeBatch(const TinyModel& model, const std::vector<std::vector<int64_t>>& rows,
                     int64_t seq, uint64_t seed) {
  const CounterRng rng(seed);
  MicroBatch batch;
  for (size_t row = 0; row < rows.size(); ++row) {
    int64_t used = 0;
    for (const int64_t length : rows[row]) {
      batch.segments.push_back({static_cast<int64_t>(batch.tokens.size()), length});
      for (int64_t i = 0; i < length; ++i) {
        const bool trained = i >= length / 3 && i + 1 < length;
        batch.positions.push_back(static_cast<int32_t>(i));
        batch.targets.push_back(trained ? 0 : -1);
        batch.tokens.push_back(
            static_cast<int32_t>(rng.Below(batch.tokens.size(), model.config.vocab_size)));
      }
      used += length;
    }
    FOREBAY_CHECK(used <= seq);
    batch.num_tokens += used;
    for (; used < seq; ++used) {
      batch.tokens.push_back(0);
      batch.positions.push_back(0);
      batch.targets.push_back(-1);
    }
  }
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    if (batch.targets[i] < 0) continue;
    batch.targets[i] = batch.tokens[i + 1];
    ++batch.num_trained;
  }
  return batch;
}

Runner::Runner(const TinyModel& model, DecoderOptions options, DType dtype)
    : model_(model), source_(model.inventory, model.weights, dtype) {
  decoder_ = std::move(*Decoder::Create(model.config, options, &budget_));
  checkpoints_.resize(model.config.num_layers + 1);
  for (auto& checkpoint : checkpoints_) {
    checkpoint.resize(options.max_tokens * model.config.hidden_size);
  }
  dx_.resize(checkpoints_[0].size());
  for (const LayerSpec& layer : model.inventory.layers()) gradients_.emplace_back(layer.num_elems);
}

void Runner::Forward(const MicroBatch& batch) {
  const size_t size = batch.tokens.size() * model_.config.hidden_size;
  const auto round = [&](std::vector<float>& activation) {
    if (activations_ == DType::kF32) return;
    for (float& value : activation) value = Bf16ToFloat(FloatToBf16(value));
  };
  decoder_->Embed(source_.Layer(EmbedLayer()), batch, std::span(checkpoints_[0]).first(size));
  round(checkpoints_[0]);
  for (int block = 0; block < model_.config.num_layers; ++block) {
    const std::span<float> x = std::span(checkpoints_[block + 1]).first(size);
    std::copy_n(checkpoints_[block].begin(), size, x.begin());
    decoder_->ForwardBlock(block, source_.Layer(BlockLayer(block)), batch, x);
    round(checkpoints_[block + 1]);
  }
}

std::vector<float> Runner::HeadInput(const MicroBatch& batch) {
  Forward(batch);
  const auto& x = checkpoints_.back();
  return {x.begin(), x.begin() + batch.tokens.size() * model_.config.hidden_size};
}

double Runner::Loss(const MicroBatch& batch) {
  Forward(batch);
  const size_t size = batch.tokens.size() * model_.config.hidden_size;
  return decoder_
      ->Loss(source_.Layer(HeadLayer(model_.config)), source_.Layer(EmbedLayer()), batch,
             std::span(checkpoints_.back()).first(size))
      .loss_sum;
}

double Runner::LossAndGradients(const MicroBatch& batch, double scale) {
  Forward(batch);
  const int head = HeadLayer(model_.config);
  const size_t size = batch.tokens.size() * model_.config.hidden_size;
  const std::span<float> dx = std::span(dx_).first(size);
  const cpu::LossResult result = decoder_->LossAndGradient(
      source_.Layer(head), source_.Layer(EmbedLayer()), batch,
      std::span(checkpoints_.back()).first(size), scale, dx, gradients_[head],
      model_.config.tied_embeddings ? std::span(gradients_[EmbedLayer()]) : std::span<float>());
  FOREBAY_CHECK(result.num_trained == batch.num_trained);
  for (int block = model_.config.num_layers - 1; block >= 0; --block) {
    const int layer = BlockLayer(block);
    const std::span<const float> input = std::span(checkpoints_[block]).first(size);
    decoder_->RecomputeBlock(block, source_.Layer(layer), batch, input);
    decoder_->BackwardBlock(block, source_.Layer(layer), batch, input, dx, gradients_[layer]);
  }
  decoder_->BackwardEmbed(batch, dx, gradients_[EmbedLayer()]);
  return result.loss_sum;
}

std::span<float> Runner::Gradient(const TensorSpec& tensor) {
  return std::span(gradients_[tensor.layer]).subspan(tensor.offset_elems, tensor.num_elems);
}

void Runner::ZeroGradients() {
  for (auto& gradient : gradients_) std::fill(gradient.begin(), gradient.end(), 0.0f);
}

}  // namespace forebay::testing
