#include "forebay/model/decoder_config.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/model/families.h"
#include "gmock/gmock.h"
#include "sample_configs.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

DecoderConfig Parse(const Json& json) {
  absl::StatusOr<DecoderConfig> config = ParseDecoderConfig(json, "config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *std::move(config) : DecoderConfig{};
}

// The message; the error must be one of bad input.
std::string ConfigErrorOf(const Json& json) {
  const absl::StatusOr<DecoderConfig> config = ParseDecoderConfig(json, "dir/config.json");
  if (config.ok()) return "";
  EXPECT_EQ(ExitCodeOf(config.status()), ExitCode::kBadInput);
  const std::string message = MessageOf(config.status());
  EXPECT_THAT(message, HasSubstr("dir/config.json"));
  return message;
}

TEST(DecoderConfig, ReadsTheSizesOfALlama) {
  const DecoderConfig config = Parse(LlamaSample());
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.vocab_size, 96);
  EXPECT_EQ(config.hidden_size, 32);
  EXPECT_EQ(config.intermediate_size, 48);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.max_positions, 256);
  EXPECT_DOUBLE_EQ(config.norm_eps, 1e-5);
  EXPECT_EQ(config.norm, NormKind::kRms);
  EXPECT_EQ(config.mlp, MlpKind::kSwiGlu);
  EXPECT_EQ(config.positions, PositionKind::kRope);
  EXPECT_FALSE(config.tied_embeddings || config.fused_qkv || config.linear_in_out ||
               config.qk_norm);
  EXPECT_FALSE(config.qkv_bias || config.out_bias || config.mlp_bias);
  EXPECT_THAT(config.window, ElementsAre(0, 0, 0));
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
}

TEST(DecoderConfig, ReadsTheSizesOfAGpt2) {
  const DecoderConfig config = Parse(Gpt2Sample());
  EXPECT_EQ(config.hidden_size, 32);
  EXPECT_EQ(config.intermediate_size, 128);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.max_positions, 64);
  EXPECT_EQ(config.norm, NormKind::kLayer);
  EXPECT_EQ(config.mlp, MlpKind::kGeluTanh);
  EXPECT_EQ(config.positions, PositionKind::kLearned);
  EXPECT_TRUE(config.tied_embeddings && config.fused_qkv && config.linear_in_out);
  EXPECT_TRUE(config.qkv_bias && config.out_bias && config.mlp_bias);
  EXPECT_EQ(config.dtype, DType::kF32);
}

TEST(DecoderConfig, EveryFamilyIsFoundByItsArchitectureAndItsModelType) {
  for (const Family& family : AllFamilies()) {
    EXPECT_EQ(FindFamily(family.architecture), &family);
    EXPECT_EQ(FindFamilyByModelType(family.model_type), &family);
  }
}

TEST(DecoderConfig, ModelTypeIsEnoughWhereArchitecturesAreMissing) {
  EXPECT_EQ(Parse(Without(LlamaSample(), "architectures")).architecture, "LlamaForCausalLM");
  EXPECT_EQ(Parse(With(LlamaSample(), "architectures", nullptr)).architecture, "LlamaForCausalLM");
}

TEST(DecoderConfig, OlderSpellingGivesTheSameModel) {
  Json json = Without(Without(LlamaSample(), "rope_parameters"), "dtype");
  json["rope_theta"] = 50000.0;
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  json["torch_dtype"] = "float16";
  const DecoderConfig old_spelling = Parse(json);
  Json newer = With(LlamaSample(), "dtype", "float16");
  newer["rope_parameters"] = {{"rope_theta", 50000.0}, {"rope_type", "linear"}, {"factor", 2.0}};
  const DecoderConfig new_spelling = Parse(newer);
  for (const DecoderConfig& config : {old_spelling, new_spelling}) {
    EXPECT_EQ(config.dtype, DType::kF16);
    EXPECT_DOUBLE_EQ(config.rope.theta, 50000.0);
    EXPECT_EQ(config.rope.scaling, RopeScaling::kLinear);
    EXPECT_DOUBLE_EQ(config.rope.factor, 2.0);
  }
}

TEST(DecoderConfig, KeysWithoutSizesHaveTransformersDefaults) {
  Json json = LlamaSample();
  for (const char* key :
       {"rms_norm_eps", "rope_parameters", "tie_word_embeddings", "dtype", "hidden_act", "head_dim",
        "num_key_value_heads", "bos_token_id", "eos_token_id", "attention_bias", "mlp_bias"}) {
    json.erase(key);
  }
  const DecoderConfig config = Parse(json);
  EXPECT_DOUBLE_EQ(config.norm_eps, 1e-6);
  EXPECT_DOUBLE_EQ(config.rope.theta, 10000.0);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.dtype, DType::kF32);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
}

TEST(DecoderConfig, NullKeyValueHeadsMeanAsManyAsHeads) {
  EXPECT_EQ(
      Parse(With(SampleOf("MistralForCausalLM"), "num_key_value_heads", nullptr)).num_kv_heads, 4);
}

TEST(DecoderConfig, Qwen3HeadsHaveSize128UnlessSaid) {
  EXPECT_EQ(Parse(Without(SampleOf("Qwen3ForCausalLM"), "head_dim")).head_dim, 128);
}

TEST(DecoderConfig, HeadDimIsFreeOfHiddenAndHeads) {
  Json json = With(LlamaSample(), "head_dim", 10);
  json["hidden_size"] = 33;
  EXPECT_EQ(Parse(json).head_dim, 10);
}

TEST(DecoderConfig, Llama3ScalingIsRead) {
  const DecoderConfig config = Parse(With(LlamaSample(), "rope_scaling",
                                          {{"rope_type", "llama3"},
                                           {"factor", 8.0},
                                           {"low_freq_factor", 1.0},
                                           {"high_freq_factor", 4.0},
                                           {"original_max_position_embeddings", 64}}));
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(config.rope.original_max_positions, 64);
  EXPECT_DOUBLE_EQ(config.rope.high_freq_factor, 4.0);
}

TEST(DecoderConfig, YarnScalingIsReadWithItsDefaults) {
  const DecoderConfig config =
      Parse(With(LlamaSample(), "rope_scaling",
                 {{"type", "yarn"}, {"factor", 4.0}, {"attention_factor", nullptr}}));
  EXPECT_EQ(config.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(config.rope.original_max_positions, 256);
  EXPECT_DOUBLE_EQ(config.rope.beta_fast, 32.0);
  EXPECT_DOUBLE_EQ(config.rope.beta_slow, 1.0);
  EXPECT_DOUBLE_EQ(config.rope.attention_factor, 0.0);
  EXPECT_TRUE(config.rope.truncate);
}

TEST(DecoderConfig, YarnFactorNullFollowsFromThePositions) {
  const DecoderConfig config = Parse(
      With(LlamaSample(), "rope_scaling",
           {{"type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 64}}));
  EXPECT_DOUBLE_EQ(config.rope.factor, 4.0);
}

TEST(DecoderConfig, RopeScalingWinsOverRopeParametersAsInTransformers) {
  EXPECT_EQ(
      Parse(With(LlamaSample(), "rope_scaling", {{"type", "linear"}, {"factor", 3}})).rope.scaling,
      RopeScaling::kLinear);
}

TEST(DecoderConfig, MistralWindowHoldsOnEveryLayer) {
  EXPECT_THAT(Parse(With(SampleOf("MistralForCausalLM"), "sliding_window", 16)).window,
              ElementsAre(16, 16, 16));
  EXPECT_THAT(Parse(With(SampleOf("MistralForCausalLM"), "sliding_window", nullptr)).window,
              Each(0));
  EXPECT_THAT(Parse(SampleOf("MistralForCausalLM")).window, Each(4096));
}

TEST(DecoderConfig, LlamaIgnoresASlidingWindow) {
  EXPECT_THAT(Parse(With(LlamaSample(), "sliding_window", 16)).window, Each(0));
}

TEST(DecoderConfig, QwenWindowHoldsFromMaxWindowLayersOn) {
  Json json = With(SampleOf("Qwen2ForCausalLM"), "sliding_window", 16);
  json["max_window_layers"] = 1;
  EXPECT_THAT(Parse(json).window, Each(0)) << "use_sliding_window is off by default";
  json["use_sliding_window"] = true;
  EXPECT_THAT(Parse(json).window, ElementsAre(0, 16, 16));
}

TEST(DecoderConfig, QwenLayerTypesSayWhichLayersHaveTheWindow) {
  Json json = With(SampleOf("Qwen3ForCausalLM"), "sliding_window", 16);
  json["use_sliding_window"] = true;
  json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(Parse(json).window, ElementsAre(16, 0, 16));
  json["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_THAT(ConfigErrorOf(json), HasSubstr("a list of 3 names"));
  json["layer_types"] = {"linear_attention", "full_attention", "full_attention"};
  EXPECT_THAT(ConfigErrorOf(json),
              AllOf(HasSubstr("layer_types[0]"), HasSubstr("linear_attention")));
  json["layer_types"] = {"sliding_attention", "full_attention", "full_attention"};
  json["use_sliding_window"] = false;
  EXPECT_THAT(ConfigErrorOf(json), HasSubstr("give no window"));
}

TEST(DecoderConfig, SeveralEosTokensAreKept) {
  EXPECT_THAT(Parse(With(LlamaSample(), "eos_token_id", {2, 7, 9})).eos_token_ids,
              ElementsAre(2, 7, 9));
  EXPECT_THAT(Parse(With(LlamaSample(), "eos_token_id", nullptr)).eos_token_ids, IsEmpty());
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "eos_token_id", {2, "x"})),
              HasSubstr("'eos_token_id'"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "eos_token_id", -5)),
              HasSubstr("'eos_token_id' is -5"));
}

TEST(DecoderConfig, Gpt2PositionsMayBeCalledContext) {
  Json json = Without(Gpt2Sample(), "n_positions");
  json["n_ctx"] = 48;
  EXPECT_EQ(Parse(json).max_positions, 48);
}

TEST(DecoderConfig, BothNamesOfTheTanhGeluAreAccepted) {
  EXPECT_TRUE(
      ParseDecoderConfig(With(Gpt2Sample(), "activation_function", "gelu_pytorch_tanh"), "c").ok());
  EXPECT_THAT(ConfigErrorOf(With(Gpt2Sample(), "activation_function", "gelu")),
              AllOf(HasSubstr("'activation_function' is 'gelu'"), HasSubstr("gelu_new")));
}

TEST(DecoderConfig, UnsupportedArchitecturesNameTheSupportedOnes) {
  EXPECT_THAT(ConfigErrorOf(SampleOf("MambaForCausalLM")),
              AllOf(HasSubstr("MambaForCausalLM"), HasSubstr("Qwen3ForCausalLM"),
                    HasSubstr("GPT2LMHeadModel")));
  Json json = With(Without(LlamaSample(), "architectures"), "model_type", "mamba");
  EXPECT_THAT(ConfigErrorOf(json), HasSubstr("'mamba'"));
  EXPECT_THAT(ConfigErrorOf(Without(json, "model_type")), HasSubstr("neither 'architectures'"));
}

TEST(DecoderConfig, UnsupportedRopeTypesNameTheSupportedOnes) {
  for (const char* type : {"axial", "ntk"}) {
    EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "rope_scaling", {{"type", type}, {"factor", 2}})),
                AllOf(HasSubstr(type), HasSubstr("default, linear, dynamic, yarn, longrope")));
  }
}

TEST(DecoderConfig, RopeTypesThatChangeNothingForTextAreTheDefaultOne) {
  for (const char* type : {"dynamic", "mrope"}) {
    const Json scaling = {{"type", type}, {"factor", 2.0}, {"mrope_section", {2, 1, 1}}};
    EXPECT_EQ(Parse(With(LlamaSample(), "rope_scaling", scaling)).rope.scaling, RopeScaling::kNone);
  }
}

TEST(DecoderConfig, LongRopeIsReadWithItsDefaults) {
  Json scaling = {
      {"rope_type", "longrope"}, {"short_factor", {1, 1, 1, 1.5}}, {"long_factor", {1, 2, 3, 4}}};
  Json json = With(LlamaSample(), "rope_scaling", scaling);
  json["original_max_position_embeddings"] = 16;
  const DecoderConfig config = Parse(json);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLongRope);
  EXPECT_EQ(config.rope.original_max_positions, 16);
  EXPECT_EQ(config.rope.factor, static_cast<double>(config.max_positions) / 16);
  EXPECT_THAT(config.rope.short_factors, ElementsAre(1, 1, 1, 1.5));
  EXPECT_THAT(config.rope.long_factors, ElementsAre(1, 2, 3, 4));
  json["rope_scaling"]["type"] = "su";
  json["rope_scaling"].erase("rope_type");
  EXPECT_EQ(Parse(json).rope.scaling, RopeScaling::kLongRope);
  json["rope_scaling"]["short_factor"] = {1, 1};
  json["rope_scaling"]["long_factor"] = {1, 2, 0, 4};
  EXPECT_THAT(ConfigErrorOf(json),
              AllOf(HasSubstr("'rope_scaling.short_factor' has 2, but a list of 4 numbers"),
                    HasSubstr("'rope_scaling.long_factor[2]' is 0")));
  json["rope_scaling"].erase("short_factor");
  json["rope_scaling"]["long_factor"] = 3;
  EXPECT_THAT(ConfigErrorOf(json),
              AllOf(HasSubstr("'rope_scaling.short_factor' is missing"),
                    HasSubstr("'rope_scaling.long_factor' is 3, but a list of 4 numbers")));
}

TEST(DecoderConfig, ProportionalRopeTurnsAShareOfEachHead) {
  const Json scaling = {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.5}};
  const DecoderConfig config = Parse(With(LlamaSample(), "rope_scaling", scaling));
  EXPECT_EQ(config.rope.scaling, RopeScaling::kProportional);
  EXPECT_EQ(config.rope.rotated_share, 0.5);
  EXPECT_EQ(config.rope.factor, 1.0);
}

TEST(DecoderConfig, WholeNumbersMayBeWrittenAsFloats) {
  Json json = With(LlamaSample(), "max_position_embeddings", 32768.0);
  json["num_hidden_layers"] = 3.0;
  json["eos_token_id"] = {2.0, 7};
  const DecoderConfig config = Parse(json);
  EXPECT_EQ(config.max_positions, 32768);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2, 7));
  for (const double number : {64.5, 1e300}) {
    EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "max_position_embeddings", number)),
                AllOf(HasSubstr("'max_position_embeddings' is "), HasSubstr("whole number")));
  }
}

TEST(DecoderConfig, ADtypeMayHaveAnyNameThatTorchHas) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const Json json = Without(Without(LlamaSample(), "dtype"), "torch_dtype");
    EXPECT_EQ(Parse(With(json, key, "auto")).dtype, DType::kF32);
    EXPECT_EQ(Parse(With(json, key, "float")).dtype, DType::kF32);
    EXPECT_EQ(Parse(With(json, key, "half")).dtype, DType::kF16);
    EXPECT_EQ(Parse(With(json, key, "torch.bfloat16")).dtype, DType::kBF16);
  }
}

TEST(DecoderConfig, MinusOneIsNoToken) {
  EXPECT_THAT(Parse(With(LlamaSample(), "eos_token_id", -1)).eos_token_ids, IsEmpty());
  EXPECT_THAT(Parse(With(LlamaSample(), "eos_token_id", {7, -1})).eos_token_ids, ElementsAre(7));
  EXPECT_EQ(Parse(With(LlamaSample(), "bos_token_id", -1)).bos_token_id, -1);
}

TEST(DecoderConfig, ABosMayBeAList) {
  EXPECT_EQ(Parse(With(LlamaSample(), "bos_token_id", Json::array({5}))).bos_token_id, 5);
  EXPECT_EQ(Parse(With(LlamaSample(), "bos_token_id", Json::array())).bos_token_id, -1);
}

TEST(DecoderConfig, AWindowOfZeroIsNone) {
  EXPECT_THAT(Parse(With(SampleOf("MistralForCausalLM"), "sliding_window", 0)).window, Each(0));
  Json json = With(SampleOf("Qwen2ForCausalLM"), "sliding_window", 0);
  json["use_sliding_window"] = true;
  json["max_window_layers"] = 1;
  EXPECT_THAT(Parse(json).window, Each(0));
}

TEST(DecoderConfig, AnArchitectureMayBeATextAlone) {
  const Json json = Without(LlamaSample(), "model_type");
  EXPECT_EQ(Parse(With(json, "architectures", "LlamaForCausalLM")).architecture,
            "LlamaForCausalLM");
}

TEST(DecoderConfig, RopePerLayerKindIsUnsupported) {
  EXPECT_THAT(
      ConfigErrorOf(With(SampleOf("Qwen3ForCausalLM"), "rope_parameters",
                         {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 1e6}}}})),
      HasSubstr("rope_parameters.full_attention"));
}

TEST(DecoderConfig, PartlyRotatedHeadsAreUnsupported) {
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "partial_rotary_factor", 0.5)),
              HasSubstr("partial_rotary_factor"));
}

TEST(DecoderConfig, MissingScalingKeysAreNamedWithTheirPath) {
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "rope_scaling", {{"rope_type", "llama3"}})),
              AllOf(HasSubstr("'rope_scaling.factor' is missing"),
                    HasSubstr("'rope_scaling.low_freq_factor'"),
                    HasSubstr("'rope_scaling.high_freq_factor'")));
}

TEST(DecoderConfig, AllMissingSizesAreReportedAtOnce) {
  Json json = Without(Without(LlamaSample(), "hidden_size"), "vocab_size");
  EXPECT_THAT(ConfigErrorOf(json),
              AllOf(HasSubstr("'hidden_size' is missing"), HasSubstr("'vocab_size' is missing")));
}

TEST(DecoderConfig, ImpossibleNumbersNameKeyValueAndLimits) {
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "hidden_size", -4)),
              HasSubstr("'hidden_size' is -4, but 1 to 262144"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "num_hidden_layers", 0)),
              HasSubstr("'num_hidden_layers' is 0"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "vocab_size", 1e15)), HasSubstr("'vocab_size'"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "vocab_size", int64_t{1} << 40)),
              HasSubstr("'vocab_size'"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "vocab_size", ~uint64_t{0})),
              HasSubstr("'vocab_size'"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "hidden_size", "32")),
              HasSubstr("a whole number is expected"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "rms_norm_eps", -1e-6)),
              HasSubstr("'rms_norm_eps'"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "tie_word_embeddings", 1)),
              HasSubstr("true or false"));
}

TEST(DecoderConfig, HeadsMustDivide) {
  EXPECT_THAT(
      ConfigErrorOf(With(LlamaSample(), "num_key_value_heads", 3)),
      AllOf(HasSubstr("'num_attention_heads' (4)"), HasSubstr("'num_key_value_heads' (3)")));
  EXPECT_THAT(ConfigErrorOf(With(Without(LlamaSample(), "head_dim"), "num_attention_heads", 6)),
              HasSubstr("'hidden_size' (32) is not a multiple of 'num_attention_heads' (6)"));
}

TEST(DecoderConfig, OddHeadsCannotBeRotated) {
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "head_dim", 7)), HasSubstr("must be even"));
}

TEST(DecoderConfig, TooManyAttentionColumnsAreRefused) {
  Json json = With(LlamaSample(), "head_dim", 16384);
  json["num_attention_heads"] = 16384;
  EXPECT_THAT(ConfigErrorOf(json), HasSubstr("columns"));
}

TEST(DecoderConfig, QuantizedModelsAreUnsupported) {
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "quantization_config", {{"quant_method", "gptq"}})),
              HasSubstr("quantization_config"));
  EXPECT_TRUE(
      ParseDecoderConfig(With(LlamaSample(), "quantization_config", Json::object()), "c").ok());
}

TEST(DecoderConfig, VariantsThatComputeSomethingElseAreUnsupported) {
  for (const char* key :
       {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"}) {
    EXPECT_THAT(ConfigErrorOf(With(Gpt2Sample(), key, true)), HasSubstr(key));
  }
  EXPECT_THAT(ConfigErrorOf(With(Gpt2Sample(), "scale_attn_weights", false)),
              HasSubstr("scale_attn_weights"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "is_causal", false)), HasSubstr("is_causal"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "hidden_act", "gelu")), HasSubstr("silu"));
  EXPECT_THAT(ConfigErrorOf(With(LlamaSample(), "dtype", "float8_e4m3fn")),
              HasSubstr("float8_e4m3fn"));
}

TEST(DecoderConfig, LongValuesAreCutInMessages) {
  EXPECT_LT(ConfigErrorOf(With(LlamaSample(), "hidden_size", std::string(100000, 'x'))).size(),
            1000u);
}

class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "forebay-config-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(ModelFolder, ReadsTheConfigOfAFolder) {
  ASSERT_TRUE(WriteFileAtomically(JoinPath(directory_, "config.json"), LlamaSample().dump()).ok());
  const absl::StatusOr<DecoderConfig> config = ReadDecoderConfig(directory_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_layers, 3);
}

TEST_F(ModelFolder, SaysWhatAFolderWithoutConfigLacks) {
  const absl::Status status = ReadDecoderConfig(directory_).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr(directory_), HasSubstr("has no config.json")));
}

TEST_F(ModelFolder, SaysWhereTheModelIsThatIsMeant) {
  const auto message = [](const std::string& path) {
    return std::string(MessageOf(ReadDecoderConfig(path).status()));
  };
  EXPECT_THAT(message("meta-llama/Llama-2-7b-hf"), HasSubstr("hf download NAME"));
  for (const std::string inner : {"checkpoint-10", "snapshots/abc"}) {
    const std::string folder = JoinPath(directory_, inner);
    std::filesystem::create_directories(folder);
    ASSERT_TRUE(WriteFileAtomically(JoinPath(folder, "config.json"), "{}").ok());
    EXPECT_THAT(message(directory_), HasSubstr(fmt::format("as '{}' does", folder)));
    EXPECT_THAT(message(JoinPath(folder, "config.json")), HasSubstr("is given as the folder"));
  }
  std::filesystem::remove_all(JoinPath(directory_, "checkpoint-10"));
  std::filesystem::remove_all(JoinPath(directory_, "snapshots"));
  const std::string gguf = JoinPath(directory_, "model.gguf");
  ASSERT_TRUE(WriteFileAtomically(gguf, "GGUF").ok());
  for (const std::string& path : {gguf, directory_})
    EXPECT_THAT(message(path), HasSubstr(fmt::format("forebay data gguf --gguf={}", gguf)));
}

TEST_F(ModelFolder, SaysThatAFolderHasAnAdapterAlone) {
  const std::string path = JoinPath(directory_, "adapter_config.json");
  ASSERT_TRUE(WriteFileAtomically(path, R"({"base_model_name_or_path": "ours/base"})").ok());
  const absl::Status status = ReadDecoderConfig(directory_).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr(directory_ + "' has an adapter"),
                                       HasSubstr("'ours/base'"), HasSubstr("merge_and_unload")));
}

TEST_F(ModelFolder, SaysThatAFolderIsForbidden) {
  constexpr uid_t kNobody = 65534;
  const uid_t user = ::geteuid();  // root may look everywhere
  ASSERT_TRUE(MakeDirectories(JoinPath(directory_, "m/inside")).ok());
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(JoinPath(directory_, "m").c_str(), 0), 0);
  ASSERT_TRUE(user != 0 || ::seteuid(kNobody) == 0);
  const absl::Status folder = ReadDecoderConfig(JoinPath(directory_, "m")).status();
  const absl::Status within = ReadDecoderConfig(JoinPath(directory_, "m/inside")).status();
  ASSERT_TRUE(user != 0 || ::seteuid(user) == 0);
  ::chmod(JoinPath(directory_, "m").c_str(), 0700);
  for (const absl::Status& status : {folder, within}) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr(directory_ + "/m"), HasSubstr("EACCES")));
  }
}

TEST_F(ModelFolder, SaysThatAFileIsNoFolder) {
  const std::string path = JoinPath(directory_, "model.gguf");
  ASSERT_TRUE(WriteFileAtomically(path, "GGUF").ok());
  EXPECT_THAT(MessageOf(ReadDecoderConfig(path).status()), HasSubstr("is not a folder"));
}

TEST_F(ModelFolder, MalformedJsonNamesTheLine) {
  ASSERT_TRUE(
      WriteFileAtomically(JoinPath(directory_, "config.json"), "{\n\"hidden_size\": ,\n}").ok());
  const absl::Status status = ReadDecoderConfig(directory_).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("config.json"), HasSubstr("line 2")));
}

TEST_F(ModelFolder, AListIsNoConfig) {
  EXPECT_THAT(ConfigErrorOf(Json::array({1, 2})), HasSubstr("a JSON object is expected"));
}

}  // namespace
}  // namespace forebay
