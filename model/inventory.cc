// The tensors of a model, from its config and its family's table of names.
#include <algorithm>
#include <optional>
#include <string>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/families.h"

namespace forebay {
namespace {

enum class Part : uint8_t { kEmbed, kBlock, kHead };

Part PartOf(TensorRole role) {
  switch (role) {
    case TensorRole::kTokenEmbedding:
    case TensorRole::kPositionEmbedding:
      return Part::kEmbed;
    case TensorRole::kFinalNorm:
    case TensorRole::kFinalNormBias:
    case TensorRole::kLmHead:
      return Part::kHead;
    default:
      return Part::kBlock;
  }
}

std::optional<Shape> When(bool present, Shape shape) {
  if (!present) return std::nullopt;
  return shape;
}

// A linear layer's weight as the family stores it.
Shape LinearShape(const DecoderConfig& config, int64_t in, int64_t out) {
  return config.linear_in_out ? Shape{in, out} : Shape{out, in};
}

// nullopt when the model has no tensor of that role.
std::optional<Shape> ShapeOf(const DecoderConfig& c, TensorRole role) {
  const int64_t q_width = c.num_heads * c.head_dim;
  const int64_t kv_width = c.num_kv_heads * c.head_dim;
  const bool norm_bias = c.norm == NormKind::kLayer;
  const bool separate = !c.fused_qkv;
  const bool gated = c.mlp == MlpKind::kSwiGlu;
  switch (role) {
    case TensorRole::kTokenEmbedding:
      return Shape{c.vocab_size, c.hidden_size};
    case TensorRole::kPositionEmbedding:
      return When(c.positions == PositionKind::kLearned, {c.max_positions, c.hidden_size});
    case TensorRole::kAttnNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kFinalNorm:
      return Shape{c.hidden_size};
    case TensorRole::kAttnNormBias:
    case TensorRole::kMlpNormBias:
    case TensorRole::kFinalNormBias:
      return When(norm_bias, {c.hidden_size});
    case TensorRole::kQuery:
      return When(separate, LinearShape(c, c.hidden_size, q_width));
    case TensorRole::kKey:
    case TensorRole::kValue:
      return When(separate, LinearShape(c, c.hidden_size, kv_width));
    case TensorRole::kQueryBias:
      return When(separate && c.qkv_bias, {q_width});
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
      return When(separate && c.qkv_bias, {kv_width});
    case TensorRole::kQkv:
      return When(!separate, LinearShape(c, c.hidden_size, q_width + 2 * kv_width));
    case TensorRole::kQkvBias:
      return When(!separate && c.qkv_bias, {q_width + 2 * kv_width});
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
      return When(c.qk_norm, {c.head_dim});
    case TensorRole::kAttnOut:
      return LinearShape(c, q_width, c.hidden_size);
    case TensorRole::kAttnOutBias:
      return When(c.out_bias, {c.hidden_size});
    case TensorRole::kGate:
      return When(gated, LinearShape(c, c.hidden_size, c.intermediate_size));
    case TensorRole::kGateBias:
      return When(gated && c.mlp_bias, {c.intermediate_size});
    case TensorRole::kUp:
      return LinearShape(c, c.hidden_size, c.intermediate_size);
    case TensorRole::kUpBias:
      return When(c.mlp_bias, {c.intermediate_size});
    case TensorRole::kDown:
      return LinearShape(c, c.intermediate_size, c.hidden_size);
    case TensorRole::kDownBias:
      return When(c.mlp_bias, {c.hidden_size});
    case TensorRole::kLmHead:
      return When(!c.tied_embeddings, {c.vocab_size, c.hidden_size});
  }
  return std::nullopt;
}

void AddPart(const DecoderConfig& config, const Family& family, Part part, int block,
             Inventory& inventory) {
  for (const TensorName& tensor : family.tensors) {
    if (PartOf(tensor.role) != part) continue;
    std::optional<Shape> shape = ShapeOf(config, tensor.role);
    if (!shape.has_value()) continue;
    // Norms and biases are the vectors; Hugging Face's Trainer exempts the same ones from weight
    // decay.
    const bool decay = shape->size() > 1;
    inventory.Add(fmt::format(fmt::runtime(tensor.pattern), block), *std::move(shape),
                  static_cast<int>(tensor.role), decay);
  }
}

const Family& FamilyOf(const DecoderConfig& config) {
  const Family* const family = FindFamily(config.architecture);
  FOREBAY_CHECK(family != nullptr);
  return *family;
}

}  // namespace

Inventory BuildInventory(const DecoderConfig& config) {
  const Family& family = FamilyOf(config);
  Inventory inventory;
  inventory.BeginLayer("embed");
  AddPart(config, family, Part::kEmbed, 0, inventory);
  for (int block = 0; block < config.num_layers; ++block) {
    inventory.BeginLayer(fmt::format("layers.{}", block));
    AddPart(config, family, Part::kBlock, block, inventory);
  }
  inventory.BeginLayer("head");
  AddPart(config, family, Part::kHead, 0, inventory);
  return inventory;
}

std::vector<std::string> AlternativeNames(const DecoderConfig& config, const std::string& name) {
  const Family& family = FamilyOf(config);
  std::vector<std::string> names;
  if (name.starts_with(family.prefix)) names.push_back(name.substr(family.prefix.size()));
  // A tied model may carry its one matrix under the name of the output layer.
  const bool is_embedding =
      std::any_of(family.tensors.begin(), family.tensors.end(), [&](const TensorName& tensor) {
        return tensor.role == TensorRole::kTokenEmbedding && tensor.pattern == name;
      });
  if (config.tied_embeddings && is_embedding) names.push_back("lm_head.weight");
  return names;
}

bool IsIgnorableTensor(const DecoderConfig& config, const std::string& name) {
  // Buffers that older versions of transformers saved with the weights.
  for (const std::string_view buffer :
       {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"}) {
    if (name.ends_with(buffer)) return true;
  }
  return config.tied_embeddings && name == "lm_head.weight";
}

}  // namespace forebay
