#include "forebay/model/decoder_config.h"

#include <algorithm>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/model/adapter_folder.h"
#include "forebay/model/config_fields.h"
#include "forebay/model/families.h"
#include "forebay/model/rope_config.h"

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
constexpr IntRange kWindowRange = {0, kPositionsRange.most};  // 0: none
constexpr IntRange kVocabRange = {1, int64_t{1} << 24};
constexpr int64_t kMaxAttentionWidth = int64_t{1} << 20;  // heads * head_dim

const std::string* FirstArchitecture(const Json& json) {
  const auto found = json.find("architectures");
  if (found == json.end()) return nullptr;
  const Json& name = found->is_array() && !found->empty() ? found->front() : *found;
  return name.is_string() ? name.get_ptr<const std::string*>() : nullptr;
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
  int64_t window = fields.Int("sliding_window", kWindowRange, family.default_window);
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
    const int64_t window = fields.Int("sliding_window", kWindowRange, family.default_window);
    std::fill(config.window.begin(), config.window.end(), window);
  }
}

void ReadTokens(const ConfigFields& fields, const Family& family, DecoderConfig& config) {
  const std::vector<int64_t> bos = ReadTokenIds(fields, "bos_token_id");
  if (!bos.empty()) {
    config.bos_token_id = bos.front();
  } else if (fields.Find("bos_token_id") == nullptr && !fields.IsNull("bos_token_id")) {
    config.bos_token_id = family.default_bos_token;
  }
  config.eos_token_ids = ReadTokenIds(fields, "eos_token_id");
  const bool missing = fields.Find("eos_token_id") == nullptr && !fields.IsNull("eos_token_id");
  if (missing && family.default_eos_token >= 0) config.eos_token_ids = {family.default_eos_token};
}

DType ReadDType(const ConfigFields& fields) {
  // Without the key transformers computes in the dtype of the tensors, as "auto" says too; fp32 is
  // what torch makes by default.
  const std::string_view key = fields.Find("dtype") != nullptr ? "dtype" : "torch_dtype";
  std::string name = fields.String(key, "auto");
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "auto" || name == "float") return DType::kF32;
  if (name == "half") return DType::kF16;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == TorchName(dtype)) return dtype;
  }
  fields.Problem(
      fmt::format("'{}' is '{}', but float32, bfloat16 and float16 are supported", key, name));
  return DType::kF32;
}

void CheckUnsupported(const ConfigFields& fields, const Family& family) {
  const Json* const quantization = fields.Find("quantization_config");
  if (quantization != nullptr && !quantization->empty()) {
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

// What to do about a path that is no model folder.
std::string CureOf(const std::string& path) {
  constexpr std::string_view kHolds =
      "A model is given as the folder that holds its config.json and its safetensors files";
  if (path.ends_with(".gguf"))
    return fmt::format("Convert it first: forebay data gguf --gguf={} --out=FOLDER", path);
  if (!FileExists(path))
    return fmt::format(
        "{}; one of the Hugging Face Hub is fetched first: hf download NAME --local-dir=FOLDER",
        kHolds);
  // A cache of the Hub, or what a trainer wrote, has the model in a folder of its own.
  for (const std::string& folder : {JoinPath(path, "snapshots"), path}) {
    const absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
      const std::string inner = JoinPath(folder, name);
      if (FileExists(JoinPath(inner, "config.json")))
        return fmt::format("{}, as '{}' does", kHolds, inner);
      if (name.ends_with(".gguf")) return CureOf(inner);
    }
  }
  return std::string(kHolds);
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
  if (config.positions == PositionKind::kRope) config.rope = ReadRope(fields, config, &problems);
  ReadTokens(fields, *family, config);
  FOREBAY_RETURN_IF_ERROR(ReportProblems(problems, source));
  return config;
}

absl::StatusOr<DecoderConfig> ReadDecoderConfig(const std::string& model_directory) {
  // Before the question whether it is a folder, which one that cannot be looked at would fail too.
  FOREBAY_RETURN_IF_ERROR(ProbePath(model_directory).status());
  if (!IsDirectory(model_directory)) {
    return BadInputError(
        fmt::format("'{}' is not a folder. {}", model_directory, CureOf(model_directory)));
  }
  const std::string path = JoinPath(model_directory, "config.json");
  FOREBAY_ASSIGN_OR_RETURN(const bool has_config, ProbePath(path));
  if (!has_config) {
    FOREBAY_RETURN_IF_ERROR(RefuseAdapter(model_directory));
    return BadInputError(
        fmt::format("'{}' has no config.json. {}", model_directory, CureOf(model_directory)));
  }
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path, kMaxConfigFileBytes));
  return ParseDecoderConfig(json, path);
}

absl::StatusOr<DecoderConfig> ReadDecoderConfigAt(const std::string& path) {
  if (IsDirectory(path)) return ReadDecoderConfig(path);
  if (!FileExists(path)) {
    return BadInputError(fmt::format(
        "'{}' does not exist. Name a config.json, or the folder of a model that holds one", path));
  }
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path, kMaxConfigFileBytes));
  return ParseDecoderConfig(json, path);
}

}  // namespace forebay
