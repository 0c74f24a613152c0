// docs/models.md lists what people's config.json files say that is unusual, and what becomes of
// it. When this fails, paste the printed block between the two markers.
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/rope.h"
#include "gtest/gtest.h"
#include "sample_configs.h"

namespace forebay {
namespace {

// For a model with 256 positions, 3 layers, 4 heads of size 8 and a vocabulary of 96.
struct Variant {
  const char* architecture;
  const char* text;  // members of config.json
  std::string (*outcome)(const DecoderConfig& config);
};

constexpr char kLlama[] = "LlamaForCausalLM";
constexpr char kMistral[] = "MistralForCausalLM";
constexpr char kQwen2[] = "Qwen2ForCausalLM";

std::string Positions(const DecoderConfig& config) {
  return fmt::format("{} positions", config.max_positions);
}
std::string Type(const DecoderConfig& config) {
  return fmt::format("weights meant as {}", TorchName(config.dtype));
}
std::string EndTokens(const DecoderConfig& config) {
  if (config.eos_token_ids.empty()) return "no end token";
  return fmt::format("end tokens {}", fmt::join(config.eos_token_ids, ", "));
}
std::string Bos(const DecoderConfig& config) {
  return config.bos_token_id < 0 ? "no BOS" : fmt::format("BOS {}", config.bos_token_id);
}
std::string Windows(const DecoderConfig& config) {
  std::string text;
  for (const int64_t window : config.window) {
    text += fmt::format("{}{}", text.empty() ? "layers attend to: " : ", ",
                        window == 0 ? "all" : fmt::format("{} tokens", window));
  }
  return text;
}
std::string Rope(const DecoderConfig& config) {
  const auto of = [&](int64_t tokens) {
    const RopeFrequencies rope = ComputeRopeFrequencies(config.rope, config.head_dim, tokens);
    return fmt::format("frequencies {:.4g}, magnitude {:.4g}", fmt::join(rope.inv_freq, " "),
                       rope.attention_factor);
  };
  const int64_t original = config.rope.original_max_positions;
  if (config.rope.scaling != RopeScaling::kLongRope) return of(1);
  return fmt::format("up to {} tokens {}; longer {}", original, of(original), of(original + 1));
}
std::string Heads(const DecoderConfig& config) {
  return fmt::format("{} heads for keys and values, of size {}", config.num_kv_heads,
                     config.head_dim);
}
std::string Architecture(const DecoderConfig& config) {
  return fmt::format("a {}", config.architecture);
}

constexpr Variant kVariants[] = {
    {kLlama, R"("architectures": "LlamaForCausalLM")", Architecture},
    {kLlama, R"("architectures": [], "model_type": "llama")", Architecture},
    {kLlama, R"("architectures": ["MambaForCausalLM"])", Architecture},
    {kLlama, R"("max_position_embeddings": 32768.0)", Positions},
    {kLlama, R"("max_position_embeddings": 64.5)", Positions},
    {kLlama, R"("max_position_embeddings": "64")", Positions},
    {kLlama, R"("num_key_value_heads": null, "head_dim": null)", Heads},
    {kLlama, R"("dtype": "auto")", Type},
    {kLlama, R"("dtype": null, "torch_dtype": "torch.bfloat16")", Type},
    {kLlama, R"("dtype": "half")", Type},
    {kLlama, R"("dtype": "float64")", Type},
    {kLlama, R"("eos_token_id": [2, 7])", EndTokens},
    {kLlama, R"("eos_token_id": -1)", EndTokens},
    {kLlama, R"("eos_token_id": null)", EndTokens},
    {kLlama, R"("eos_token_id": "</s>")", EndTokens},
    {kLlama, R"("bos_token_id": [1])", Bos},
    {kLlama, R"("bos_token_id": -1)", Bos},
    {kLlama, R"("quantization_config": {})", Type},
    {kLlama, R"("quantization_config": {"quant_method": "gptq"})", Type},
    {kMistral, R"("sliding_window": null)", Windows},
    {kMistral, R"("sliding_window": 0)", Windows},
    {kMistral, R"("sliding_window": 16)", Windows},
    {kQwen2, R"("use_sliding_window": false, "sliding_window": 16)", Windows},
    {kQwen2, R"("use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1)",
     Windows},
    {kLlama, R"("hidden_act": "gelu")", Architecture},
    {kLlama, R"("rope_scaling": null, "rope_theta": 10000.0)", Rope},
    {kLlama, R"("rope_scaling": {"type": "linear", "factor": 4.0})", Rope},
    {kLlama, R"("rope_scaling": {"type": "dynamic", "factor": 4.0})", Rope},
    {kLlama, R"("rope_scaling": {"rope_type": "yarn", "factor": 4.0,
      "original_max_position_embeddings": 64})",
     Rope},
    {kLlama, R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
      "high_freq_factor": 4.0, "original_max_position_embeddings": 64})",
     Rope},
    {kLlama, R"("rope_scaling": {"rope_type": "longrope", "short_factor": [1, 1, 1, 1],
      "long_factor": [1, 2, 4, 8], "original_max_position_embeddings": 64})",
     Rope},
    {kLlama, R"("rope_scaling": {"rope_type": "longrope", "short_factor": [1],
      "long_factor": [1]})",
     Rope},
    {kLlama, R"("rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5})",
     Rope},
    {kQwen2, R"("rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]})", Rope},
    {kLlama, R"("partial_rotary_factor": 0.5)", Rope},
    {kLlama, R"("rope_scaling": {"rope_type": "axial"})", Rope},
};

std::string Outcome(const Variant& variant) {
  Json json = Without(SampleOf(variant.architecture), "rope_parameters");
  json.update(ParseSample(fmt::format("{{{}}}", variant.text)));
  const auto config = ParseDecoderConfig(json, "config.json");
  if (config.ok()) return "read: " + variant.outcome(*config);
  std::string message = MessageOf(config.status());
  const size_t advice = message.rfind(". Correct the file");
  return "refused: " + message.substr(0, advice);
}

std::string ExpectedBlock() {
  std::string block = "| in config.json | what becomes of it |\n|---|---|\n";
  for (const Variant& variant : kVariants) {
    const Json members = ParseSample(fmt::format("{{{}}}", variant.text));
    std::string shown = members.dump();
    shown = shown.substr(1, shown.size() - 2);
    if (variant.architecture != kLlama) shown = fmt::format("{}: {}", variant.architecture, shown);
    block += fmt::format("| `{}` | {} |\n", shown, Outcome(variant));
  }
  return block;
}

TEST(ConfigVariantsDoc, ListsWhatBecomesOfEachVariant) {
  const auto doc = ReadWholeFile(JoinPath(FOREBAY_SOURCE_DIR, "docs/models.md"), 1 << 20);
  ASSERT_TRUE(doc.ok()) << doc.status();
  const std::string begin_mark = "<!-- config variants: begin -->\n";
  const size_t begin = doc->find(begin_mark);
  const size_t end = doc->find("<!-- config variants: end -->\n");
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << "there are no markers";
  EXPECT_EQ(doc->substr(begin + begin_mark.size(), end - begin - begin_mark.size()),
            ExpectedBlock());
}

}  // namespace
}  // namespace forebay
