#include "forebay/model/decoder_config.h"

#include <algorithm>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/model/config_fields.h"
#include "forebay/model/families.h"

namespace forebay {
namespace {

// Limits far above any published model. They also prove that no product below overflows: a block
// has at most 4 * 2^20 * 2^18 + 3 * 2^20 * 2^18 elements, 2^12 blocks and two vocabularies of 2^42
// stay below 2^54.
constexpr IntRange kHiddenRange = {1, int64_t{1} << 18};
constexpr IntRange kIntermediateRange = {1, int64_t{1} << 20};
constexpr IntRange kLayersRange = {1, int64_t{1} << 12};
constexpr IntRange kHeadsRange = {1, int64_t{1} << 14};
constexpr IntRange kHeadDimRange = {1, int64_t{1} << 14};
constexpr IntRange kPositionsRange = {1, int64_t{1} << 30};
constexpr IntRange kVocabRange = {1, int64_t{1} << 24};
constexpr int64_t kMaxAttentionWidth = int64_t{1} << 20;  // heads * head_dim

const std::string* FirstArchitecture(const Json& json) {
  const auto found = json.find("architectures");
  if (found == json.end() || !found->is_array() || found->empty() || !(*found)[0].is_string())
    return nullptr;
  return (*found)[0].get_ptr<const std::string*>();
}

// The family that config.json names, by `architectures` or, where that is missing, by `model_type`.
absl::StatusOr<const Family*> FamilyOf(const Json& json, std::string_view source) {
  if (const std::string* const architecture = FirstArchitecture(json)) {
    if (const Family* const family = FindFamily(*architecture)) return family;
    return BadInputError(fmt::format("{}: the architecture '{}' is not supported. Supported are {}",
                                     source, *architecture, SupportedArchitectures()));
  }
  const auto model_type = json.find("model_type");
  if (model_type != json.end() && model_type->is_string()) {
    if (const Family* const family =
            FindFamilyByModelType(model_type->get_ref<const std::string&>()))
      return family;
    return BadInputError(fmt::format("{}: the model_type '{}' is not supported. Supported are {}",
                                     source, model_type->get_ref<const std::string&>(),
                                     SupportedArchitectures()));
  }
  return BadInputError(
      fmt::format("{}: neither 'architectures' (a list with one name) nor 'model_type' says what "
                  "model this is. Supported architectures are {}",
                  source, SupportedArchitectures()));
}

bool FlagOf(const ConfigFields& fields, const FamilyFlag& flag) {
  return flag.key.empty() ? flag.value : fields.Bool(flag.key, flag.value);
}

void ReadSizes(const ConfigFields& fields, const Family& family, DecoderConfig& config) {
  config.vocab_size = fields.Int("vocab_size", kVocabRange, std::nullopt);
  config.hidden_size = fields.Int(family.hidden_key, kHiddenRange, std::nullopt);
  config.num_layers = static_cast<int>(fields.Int(family.layers_key, kLayersRange, std::nullopt));
  config.num_heads = fields.Int(family.heads_key, kHeadsRange, std::nullopt);
  const bool old_spelling = !family.old_positions_key.empty() &&
                            fields.Find(family.positions_key) == nullptr &&
                            fields.Find(family.old_positions_key) != nullptr;
  config.max_positions = fields.Int(old_spelling ? family.old_positions_key : family.positions_key,
                                    kPositionsRange, std::nullopt);
  std::optional<int64_t> default_intermediate;
  if (family.default_mlp_multiple > 0)
    default_intermediate = family.default_mlp_multiple * config.hidden_size;
  config.intermediate_size =
      fields.Int(family.intermediate_key, kIntermediateRange, default_intermediate);
}

void ReadHeads(const ConfigFields& fields, const Family& family, DecoderConfig& config) {
  config.num_kv_heads = config.num_heads;
  if (!family.kv_heads_key.empty()) {
    const bool as_heads = fields.IsNull(family.kv_heads_key) || family.default_kv_heads == 0;
    config.num_kv_heads = fields.Int(family.kv_heads_key, kHeadsRange,
                                     as_heads ? config.num_heads : family.default_kv_heads);
  }
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.Problem(fmt::format("'{}' ({}) is not a multiple of '{}' ({})", family.heads_key,
                               config.num_heads, family.kv_heads_key, config.num_kv_heads));
  }
  const bool explicit_head_dim =
      !family.head_dim_key.empty() && fields.Find(family.head_dim_key) != nullptr;
  if (explicit_head_dim) {
    config.head_dim = fields.Int(family.head_dim_key, kHeadDimRange, std::nullopt);
  } else if (family.default_head_dim > 0) {
    config.head_dim = family.default_head_dim;
  } else {
    config.head_dim = std::max<int64_t>(1, config.hidden_size / config.num_heads);
    if (config.hidden_size % config.num_heads != 0) {
      fields.Problem(
          fmt::format("'{}' ({}) is not a multiple of '{}' ({}), and no 'head_dim' is given",
                      family.hidden_key, config.hidden_size, family.heads_key, config.num_heads));
    }
  }
  if (config.positions == PositionKind::kRope && config.head_dim % 2 != 0) {
    fields.Problem(fmt::format("the size of a head is {}, but RoPE turns pairs: it must be even",
                               config.head_dim));
  }
  if (config.num_heads * config.head_dim > kMaxAttentionWidth) {
    fields.Problem(fmt::format("{} heads of size {} make {} columns, but at most {} are supported",
                               config.num_heads, config.head_dim,
                               config.num_heads * config.head_dim, kMaxAttentionWidth));
  }
}

// Per layer: full attention, or the window. Rules of transformers' Qwen2Config: `layer_types` when
// given, else the layers from `max_window_layers` on.
void ReadPerLayerWindows(const ConfigFields& fields, const Family& family, DecoderConfig& config) {
  const bool use = fields.Bool("use_sliding_window", false);
  int64_t window = fields.Int("sliding_window", kPositionsRange, family.default_window);
  if (!use || fields.IsNull("sliding_window")) window = 0;
  const Json* const types = fields.Find("layer_types");
  if (types == nullptr) {
    const int64_t first = fields.Int("max_window_layers", {0, kPositionsRange.most}, 28);
    for (int64_t i = std::min<int64_t>(first, config.num_layers); i < config.num_layers; ++i) {
      config.window[static_cast<size_t>(i)] = window;
    }
    return;
  }
  if (!types->is_array() || types->size() != config.window.size()) {
    fields.Problem(fmt::format("{}, but a list of {} names (one per layer) is expected",
                               fields.Describe("layer_types", *types), config.window.size()));
    return;
  }
  for (size_t i = 0; i < types->size(); ++i) {
    const Json& type = (*types)[i];
    if (type == "full_attention") continue;
    if (type != "sliding_attention") {
      fields.Problem(fmt::format("{}, but 'full_attention' and 'sliding_attention' are supported",
                                 fields.Describe(fmt::format("layer_types[{}]", i), type)));
      return;
    }
    if (window == 0) {
      fields.Problem(
          "'layer_types' asks for sliding attention, but 'use_sliding_window' and 'sliding_window' "
          "give no window");
      return;
    }
    config.window[i] = window;
  }
}

void ReadWindows(const ConfigFields& fields, const Family& family, DecoderConfig& config) {
  config.window.assign(static_cast<size_t>(config.num_layers), 0);
  if (family.window == WindowRule::kPerLayer) ReadPerLayerWindows(fields, family, config);
  if (family.window == WindowRule::kAllLayers && !fields.IsNull("sliding_window")) {
    const int64_t window = fields.Int("sliding_window", kPositionsRange, family.default_window);
    std::fill(config.window.begin(), config.window.end(), window);
  }
}

// The scaling's own keys. Defaults, and which keys have none, are those of transformers'
// modeling_rope_utils.py.
void ReadRopeScaling(const ConfigFields& rope, const ConfigFields& top, const DecoderConfig& config,
                     RopeConfig& result) {
  constexpr NumberRange kFactor = {1e-6, 1e6, true};
  constexpr NumberRange kFactorOrZero = {0, 1e6, true};
  if (result.scaling == RopeScaling::kNone) return;
  if (result.scaling == RopeScaling::kLinear) {
    result.factor = rope.Number("factor", kFactor, std::nullopt);
    return;
  }
  result.original_max_positions =
      rope.Int("original_max_position_embeddings", kPositionsRange, config.max_positions);
  result.original_max_positions =
      top.Int("original_max_position_embeddings", kPositionsRange, result.original_max_positions);
  if (result.scaling == RopeScaling::kLlama3) {
    result.factor = rope.Number("factor", kFactor, std::nullopt);
    result.low_freq_factor = rope.Number("low_freq_factor", kFactor, std::nullopt);
    result.high_freq_factor = rope.Number("high_freq_factor", kFactor, std::nullopt);
    const bool both =
        rope.Find("low_freq_factor") != nullptr && rope.Find("high_freq_factor") != nullptr;
    if (both && result.high_freq_factor <= result.low_freq_factor) {
      rope.Problem(
          fmt::format("RoPE's 'high_freq_factor' ({}) must be above 'low_freq_factor' ({})",
                      result.high_freq_factor, result.low_freq_factor));
    }
    return;
  }
  std::optional<double> implied;
  if (rope.IsNull("factor")) {
    implied = static_cast<double>(config.max_positions) /
              static_cast<double>(result.original_max_positions);
  }
  result.factor = rope.Number("factor", kFactor, implied);
  result.beta_fast = rope.Number("beta_fast", kFactor, 32.0);
  result.beta_slow = rope.Number("beta_slow", kFactor, 1.0);
  result.attention_factor = rope.Number("attention_factor", kFactor, 0.0);
  result.mscale = rope.Number("mscale", kFactorOrZero, 0.0);
  result.mscale_all_dim = rope.Number("mscale_all_dim", kFactorOrZero, 0.0);
  result.truncate = rope.Bool("truncate", true);
}

struct RopeType {
  std::string_view name;
  RopeScaling scaling;
};
constexpr RopeType kRopeTypes[] = {{"default", RopeScaling::kNone},
                                   {"linear", RopeScaling::kLinear},
                                   {"yarn", RopeScaling::kYarn},
                                   {"llama3", RopeScaling::kLlama3}};

std::string SupportedRopeTypes() {
  std::string names;
  for (const RopeType& type : kRopeTypes)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", type.name);
  return names;
}

// Either spelling: `rope_theta` beside `rope_scaling`, or all of it in `rope_parameters`. Where a
// file has both dictionaries transformers takes `rope_scaling`; a `rope_theta` inside wins over one
// outside.
void ReadRope(const ConfigFields& top, DecoderConfig& config, std::vector<std::string>* problems) {
  std::string_view key = "rope_scaling";
  if (top.Find(key) == nullptr || top.Find(key)->empty()) key = "rope_parameters";
  const Json empty = Json::object();
  const Json* dictionary = top.Find(key);
  if (dictionary == nullptr) dictionary = &empty;
  if (!dictionary->is_object()) {
    top.Problem(fmt::format("{}, but an object is expected", top.Describe(key, *dictionary)));
    return;
  }
  for (const std::string_view layer_type : {"full_attention", "sliding_attention"}) {
    if (!dictionary->contains(std::string(layer_type))) continue;
    top.Problem(fmt::format("'{}.{}': a RoPE of its own per kind of layer is not supported", key,
                            layer_type));
    return;
  }
  const ConfigFields rope(*dictionary, fmt::format("{}.", key), problems);
  constexpr NumberRange kTheta = {2, 1e15, true};  // yarn divides by its logarithm
  constexpr NumberRange kShare = {0, 1};
  config.rope.theta = rope.Number("rope_theta", kTheta, top.Number("rope_theta", kTheta, 10000.0));
  const double rotated = rope.Number("partial_rotary_factor", kShare,
                                     top.Number("partial_rotary_factor", kShare, 1.0));
  if (rotated != 1.0) {
    top.Problem(fmt::format("'partial_rotary_factor' is {}, but only 1 (whole heads) is supported",
                            rotated));
  }
  const std::string name = rope.String("rope_type", rope.String("type", "default"));
  const auto* const type = std::find_if(std::begin(kRopeTypes), std::end(kRopeTypes),
                                        [&](const RopeType& t) { return t.name == name; });
  if (type == std::end(kRopeTypes)) {
    top.Problem(fmt::format("the RoPE type '{}' in '{}' is not supported; supported are {}", name,
                            key, SupportedRopeTypes()));
    return;
  }
  config.rope.scaling = type->scaling;
  ReadRopeScaling(rope, top, config, config.rope);
}

void ReadTokens(const ConfigFields& fields, const Family& family, DecoderConfig& config) {
  const bool has_bos = fields.Find("bos_token_id") != nullptr;
  if (has_bos) {
    config.bos_token_id = fields.Int("bos_token_id", kTokenRange, std::nullopt);
  } else if (!fields.IsNull("bos_token_id")) {
    config.bos_token_id = family.default_bos_token;
  }
  config.eos_token_ids = ReadTokenIds(fields, "eos_token_id");
  const bool missing = fields.Find("eos_token_id") == nullptr && !fields.IsNull("eos_token_id");
  if (missing && family.default_eos_token >= 0) config.eos_token_ids = {family.default_eos_token};
}

DType ReadDType(const ConfigFields& fields) {
  // Without the key transformers computes in the dtype of the tensors; fp32 is what torch makes by
  // default.
  const std::string_view key = fields.Find("dtype") != nullptr ? "dtype" : "torch_dtype";
  std::string name = fields.String(key, TorchName(DType::kF32));
  if (name.starts_with("torch.")) name = name.substr(6);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == TorchName(dtype)) return dtype;
  }
  fields.Problem(
      fmt::format("'{}' is '{}', but float32, bfloat16 and float16 are supported", key, name));
  return DType::kF32;
}

void CheckUnsupported(const ConfigFields& fields, const Family& family) {
  if (fields.Find("quantization_config") != nullptr) {
    fields.Problem(
        "'quantization_config' is there, but quantized weights are not supported; use the "
        "unquantized model");
  }
  for (const RequiredValue& required : family.required_values) {
    if (fields.Bool(required.key, required.value) != required.value) {
      fields.Problem(fmt::format("'{}' is {}, but only {} is supported", required.key,
                                 !required.value, required.value));
    }
  }
  const std::string activation = fields.String(family.activation_key, family.activations.front());
  const auto& names = family.activations;
  if (std::find(names.begin(), names.end(), activation) == names.end()) {
    fields.Problem(fmt::format(
        "'{}' is '{}', but only {} is supported for {}", family.activation_key, activation,
        fmt::join(names, " (or the same under the name) "), family.architecture));
  }
}

absl::Status ReportProblems(const std::vector<std::string>& problems, std::string_view source) {
  if (problems.empty()) return absl::OkStatus();
  return BadInputError(fmt::format("{}: {}. Correct the file, or use a model that forebay supports",
                                   source, fmt::join(problems, "; ")));
}

}  // namespace

absl::StatusOr<DecoderConfig> ParseDecoderConfig(const Json& json, std::string_view source) {
  if (!json.is_object()) return BadInputError(fmt::format("{}: a JSON object is expected", source));
  FOREBAY_ASSIGN_OR_RETURN(const Family* const family, FamilyOf(json, source));
  std::vector<std::string> problems;
  const ConfigFields fields(json, "", &problems);
  CheckUnsupported(fields, *family);

  DecoderConfig config;
  config.architecture = family->architecture;
  config.norm = family->norm;
  config.mlp = family->mlp;
  config.positions = family->positions;
  config.fused_qkv = family->fused_qkv;
  config.linear_in_out = family->linear_in_out;
  config.qk_norm = family->qk_norm;
  config.qkv_bias = FlagOf(fields, family->qkv_bias);
  config.out_bias = FlagOf(fields, family->out_bias);
  config.mlp_bias = FlagOf(fields, family->mlp_bias);
  config.tied_embeddings = fields.Bool("tie_word_embeddings", family->default_tied);
  config.norm_eps = fields.Number(family->norm_eps_key, {0, 1}, family->default_norm_eps);
  config.initializer_range = fields.Number("initializer_range", {0, 1, true}, 0.02);
  config.dtype = ReadDType(fields);
  ReadSizes(fields, *family, config);
  // A size that is missing or impossible was replaced by the least one, so that the rest can be
  // checked, but what is said about combinations of sizes would be about numbers that the file does
  // not have.
  FOREBAY_RETURN_IF_ERROR(ReportProblems(problems, source));
  ReadHeads(fields, *family, config);
  ReadWindows(fields, *family, config);
  if (config.positions == PositionKind::kRope) ReadRope(fields, config, &problems);
  ReadTokens(fields, *family, config);
  FOREBAY_RETURN_IF_ERROR(ReportProblems(problems, source));
  return config;
}

absl::StatusOr<DecoderConfig> ReadDecoderConfig(const std::string& model_directory) {
  // Before the question whether it is a folder, which one that cannot be looked at would fail too.
  FOREBAY_RETURN_IF_ERROR(ProbePath(model_directory).status());
  if (!IsDirectory(model_directory)) {
    return BadInputError(fmt::format(
        "'{}' is not a folder. A model is given as the folder that holds its config.json "
        "and its safetensors files",
        model_directory));
  }
  const std::string path = JoinPath(model_directory, "config.json");
  FOREBAY_ASSIGN_OR_RETURN(const bool has_config, ProbePath(path));
  if (!has_config) {
    return BadInputError(
        fmt::format("'{}' has no config.json. A model is given as the folder that holds its "
                    "config.json and its safetensors files",
                    model_directory));
  }
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path, kMaxConfigFileBytes));
  return ParseDecoderConfig(json, path);
}

}  // namespace forebay
