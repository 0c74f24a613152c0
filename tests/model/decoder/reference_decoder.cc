#include "forebay/tests/model/decoder/reference_decoder.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "forebay/base/check.h"

namespace forebay::reference {
namespace {

// Inverse frequencies and magnitude of rotary embeddings: Su et al. 2021; "llama3" and "yarn" (Peng
// et al. 2023) as in transformers' modeling_rope_utils.py.
struct Rotation {
  std::vector<double> inverse_frequencies;
  double magnitude = 1;
};

double Llama3(const RopeConfig& rope, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double turns = static_cast<double>(rope.original_max_positions) / wavelength;
  if (turns > rope.high_freq_factor) return frequency;
  if (turns < rope.low_freq_factor) return frequency / rope.factor;
  const double smooth =
      (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

double Yarn(const RopeConfig& rope, int64_t head_dim, int64_t pair, double frequency) {
  const auto pair_of_turns = [&](double turns) {
    return head_dim * std::log(rope.original_max_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = pair_of_turns(rope.beta_fast), high = pair_of_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((pair - low) / (high - low), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1 - ramp);
}

Rotation MakeRotation(const RopeConfig& rope, int64_t head_dim, int64_t sequence_tokens) {
  Rotation rotation;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / head_dim);
    if (rope.scaling == RopeScaling::kLinear) frequency /= rope.factor;
    if (rope.scaling == RopeScaling::kLlama3) frequency = Llama3(rope, frequency);
    if (rope.scaling == RopeScaling::kYarn) frequency = Yarn(rope, head_dim, i, frequency);
    if (rope.scaling == RopeScaling::kLongRope) {
      const bool is_long = sequence_tokens > rope.original_max_positions;
      frequency /= (is_long ? rope.long_factors : rope.short_factors)[i];
    }
    if (rope.scaling == RopeScaling::kProportional) {
      frequency = 2 * (i + 1) <= rope.rotated_share * head_dim ? frequency / rope.factor : 0;
    }
    rotation.inverse_frequencies.push_back(frequency);
  }
  if (rope.scaling == RopeScaling::kYarn) {
    rotation.magnitude =
        rope.attention_factor > 0 ? rope.attention_factor : 0.1 * std::log(rope.factor) + 1;
  }
  if (rope.scaling == RopeScaling::kLongRope) {
    rotation.magnitude =
        std::sqrt(1 + std::log(rope.factor) / std::log(rope.original_max_positions));
  }
  return rotation;
}

// The model's tensors on a tape, found by role.
class Model {
 public:
  Model(const DecoderConfig& config, const Inventory& inventory, const NamedTensors& weights,
        const MicroBatch& batch)
      : config_(config), batch_(batch) {
    for (const TensorSpec& spec : inventory.tensors()) {
      const bool is_vector = spec.shape.size() == 1;
      Matrix* const matrix = tape_.New(is_vector ? 1 : spec.shape[0], spec.shape.back());
      matrix->value = weights.at(spec.name);
      by_role_[{spec.layer, spec.role}] = matrix;
      by_name_[spec.name] = matrix;
    }
    if (config.positions == PositionKind::kRope) PrepareAngles();
  }

  Matrix* Logits() {
    Matrix* x = tape_.Rows(Get(EmbedLayer(), TensorRole::kTokenEmbedding), batch_.tokens);
    if (config_.positions == PositionKind::kLearned) {
      Matrix* const table = Get(EmbedLayer(), TensorRole::kPositionEmbedding);
      x = tape_.Add(x, tape_.Rows(table, batch_.positions));
    }
    for (int block = 0; block < config_.num_layers; ++block) {
      x = tape_.Add(x, Attention(block, x));
      x = tape_.Add(x, Mlp(BlockLayer(block), x));
    }
    const int head = HeadLayer(config_);
    x = Norm(x, head, TensorRole::kFinalNorm, TensorRole::kFinalNormBias);
    Matrix* const projection = config_.tied_embeddings
                                   ? Get(EmbedLayer(), TensorRole::kTokenEmbedding)
                                   : Get(head, TensorRole::kLmHead);
    return tape_.Linear(x, projection, nullptr, /*in_out=*/false);
  }

  Tape& tape() { return tape_; }
  const std::map<std::string, Matrix*>& by_name() const { return by_name_; }

 private:
  void PrepareAngles() {
    angles_.resize(batch_.positions.size(), std::vector<double>(config_.head_dim / 2));
    for (const Segment& segment : batch_.segments) {
      const Rotation rotation = MakeRotation(config_.rope, config_.head_dim, segment.length);
      magnitude_ = rotation.magnitude;
      for (int64_t i = segment.begin; i < segment.begin + segment.length; ++i) {
        for (int64_t pair = 0; pair < config_.head_dim / 2; ++pair) {
          angles_[i][pair] = batch_.positions[i] * rotation.inverse_frequencies[pair];
        }
      }
    }
  }

  Matrix* Find(int layer, TensorRole role) const {
    const auto it = by_role_.find({layer, static_cast<int>(role)});
    return it == by_role_.end() ? nullptr : it->second;
  }
  Matrix* Get(int layer, TensorRole role) const {
    Matrix* const matrix = Find(layer, role);
    FOREBAY_CHECK(matrix != nullptr);
    return matrix;
  }

  Matrix* Norm(Matrix* x, int layer, TensorRole weight, TensorRole bias) {
    return config_.norm == NormKind::kRms
               ? tape_.RmsNorm(x, Get(layer, weight), config_.norm_eps)
               : tape_.LayerNorm(x, Get(layer, weight), Get(layer, bias), config_.norm_eps);
  }
  Matrix* Linear(Matrix* x, int layer, TensorRole weight, TensorRole bias) {
    return tape_.Linear(x, Get(layer, weight), Find(layer, bias), config_.linear_in_out);
  }

  Matrix* Attention(int block, Matrix* x) {
    const int layer = BlockLayer(block);
    const int64_t query_width = config_.num_heads * config_.head_dim;
    const int64_t key_width = config_.num_kv_heads * config_.head_dim;
    x = Norm(x, layer, TensorRole::kAttnNorm, TensorRole::kAttnNormBias);
    Matrix *q = nullptr, *k = nullptr, *v = nullptr;
    if (config_.fused_qkv) {
      Matrix* const qkv = Linear(x, layer, TensorRole::kQkv, TensorRole::kQkvBias);
      q = tape_.Columns(qkv, 0, query_width);
      k = tape_.Columns(qkv, query_width, key_width);
      v = tape_.Columns(qkv, query_width + key_width, key_width);
    } else {
      q = Linear(x, layer, TensorRole::kQuery, TensorRole::kQueryBias);
      k = Linear(x, layer, TensorRole::kKey, TensorRole::kKeyBias);
      v = Linear(x, layer, TensorRole::kValue, TensorRole::kValueBias);
    }
    if (config_.qk_norm) {
      q = tape_.RmsNorm(q, Get(layer, TensorRole::kQueryNorm), config_.norm_eps);
      k = tape_.RmsNorm(k, Get(layer, TensorRole::kKeyNorm), config_.norm_eps);
    }
    if (config_.positions == PositionKind::kRope) {
      q = tape_.Rotate(q, config_.head_dim, angles_, magnitude_);
      k = tape_.Rotate(k, config_.head_dim, angles_, magnitude_);
    }
    AttentionSpec spec{config_.num_heads, config_.num_kv_heads, config_.head_dim, 0,
                       batch_.segments};
    if (!config_.window.empty()) spec.window = config_.window[block];
    return Linear(tape_.Attention(q, k, v, spec), layer, TensorRole::kAttnOut,
                  TensorRole::kAttnOutBias);
  }

  Matrix* Mlp(int layer, Matrix* x) {
    x = Norm(x, layer, TensorRole::kMlpNorm, TensorRole::kMlpNormBias);
    Matrix* inner = Linear(x, layer, TensorRole::kUp, TensorRole::kUpBias);
    inner = config_.mlp == MlpKind::kSwiGlu
                ? tape_.SiluTimes(Linear(x, layer, TensorRole::kGate, TensorRole::kGateBias), inner)
                : tape_.GeluTanh(inner);
    return Linear(inner, layer, TensorRole::kDown, TensorRole::kDownBias);
  }

  const DecoderConfig& config_;
  const MicroBatch& batch_;
  Tape tape_;
  std::map<std::pair<int, int>, Matrix*> by_role_;
  std::map<std::string, Matrix*> by_name_;
  std::vector<std::vector<double>> angles_;
  double magnitude_ = 1;
};

}  // namespace

ReferenceResult RunReference(const DecoderConfig& config, const Inventory& inventory,
                             const NamedTensors& weights, const MicroBatch& batch, double scale) {
  Model model(config, inventory, weights, batch);
  Matrix* const logits = model.Logits();
  Matrix* const loss = model.tape().CrossEntropy(logits, batch.targets);
  model.tape().Backward(loss, scale);
  ReferenceResult result;
  result.loss_sum = loss->value[0];
  result.logits = logits->value;
  for (const auto& [name, matrix] : model.by_name()) result.gradients[name] = matrix->grad;
  return result;
}

}  // namespace forebay::reference
