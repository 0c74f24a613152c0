#include "forebay/train/start/init_model.h"

#include <cmath>
#include <string>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/model/files/safetensors.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr char kLlama[] = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128, "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "initializer_range": 0.02, "hidden_act": "silu",
  "tie_word_embeddings": true, "torch_dtype": "bfloat16"})";
constexpr char kGpt2[] = R"({
  "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 128, "n_embd": 64, "n_layer": 8,
  "n_head": 4, "n_positions": 64, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02,
  "activation_function": "gelu_new"})";

DecoderConfig ConfigFrom(const char* text) {
  const auto json = ParseJson(text, "test");
  FOREBAY_CHECK(json.ok());
  const auto config = ParseDecoderConfig(*json, "test");
  FOREBAY_CHECK(config.ok());
  return *config;
}

std::vector<float> Values(const DecoderConfig& config, std::string_view name, uint64_t seed = 1,
                          int num_threads = 1) {
  const Inventory inventory = BuildInventory(config);
  const TensorSpec* tensor = inventory.Find(name);
  FOREBAY_CHECK(tensor != nullptr);
  std::vector<float> values(tensor->num_elems);
  ThreadPool pool(num_threads);
  FillInitialValues(config, *tensor, seed, 0, values, pool);
  return values;
}

double StandardDeviation(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

TEST(FillInitialValues, LinearsAndEmbeddingsAreNormalWithTheConfigsRange) {
  const DecoderConfig config = ConfigFrom(kLlama);
  for (const char* name : {"model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"}) {
    const std::vector<float> values = Values(config, name);
    EXPECT_NEAR(StandardDeviation(values), 0.02, 0.001) << name;
    double mean = 0;
    for (const float value : values) mean += value;
    EXPECT_NEAR(mean / static_cast<double>(values.size()), 0.0, 0.001) << name;
  }
}

TEST(FillInitialValues, NormsAreOneAndBiasesZero) {
  EXPECT_THAT(Values(ConfigFrom(kLlama), "model.layers.0.input_layernorm.weight"), Each(1.0f));
  const DecoderConfig gpt2 = ConfigFrom(kGpt2);
  int num_biases = 0;
  const Inventory inventory = BuildInventory(gpt2);
  for (const TensorSpec& tensor : inventory.tensors()) {
    if (!tensor.name.ends_with(".bias")) continue;
    EXPECT_THAT(Values(gpt2, tensor.name), Each(0.0f)) << tensor.name;
    ++num_biases;
  }
  EXPECT_GT(num_biases, 0);
}

TEST(FillInitialValues, Gpt2ScalesProjectionsIntoTheResidualStream) {
  const DecoderConfig config = ConfigFrom(kGpt2);
  std::string projection, other;
  const Inventory inventory = BuildInventory(config);
  for (const TensorSpec& tensor : inventory.tensors()) {
    if (tensor.name.ends_with("h.0.mlp.c_proj.weight")) projection = tensor.name;
    if (tensor.name.ends_with("h.0.mlp.c_fc.weight")) other = tensor.name;
  }
  EXPECT_NEAR(StandardDeviation(Values(config, projection)), 0.02 / 4, 0.0003);
  EXPECT_NEAR(StandardDeviation(Values(config, other)), 0.02, 0.001);
}

TEST(FillInitialValues, ValuesDependOnSeedAndNameOnly) {
  const DecoderConfig config = ConfigFrom(kLlama);
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(Values(config, name, 1, 1), Values(config, name, 1, 3));
  EXPECT_NE(Values(config, name, 1), Values(config, name, 2));
  EXPECT_NE(Values(config, name), Values(config, "model.layers.1.mlp.up_proj.weight"));
}

TEST(FillInitialValues, APartHasTheValuesOfTheWhole) {
  const DecoderConfig config = ConfigFrom(kLlama);
  const Inventory inventory = BuildInventory(config);
  const TensorSpec* tensor = inventory.Find("model.embed_tokens.weight");
  const std::vector<float> whole = Values(config, tensor->name);
  std::vector<float> part(100);
  ThreadPool pool(1);
  FillInitialValues(config, *tensor, 1, 777, part, pool);
  EXPECT_EQ(part, std::vector<float>(whole.begin() + 777, whole.begin() + 877));
}

class InitFolder : public testing::Test {
 protected:
  void SetUp() override {
    options_.config = folder_.Path("config.json");
    options_.out = folder_.Path("out");
    options_.seed = 1;
    ASSERT_TRUE(WriteFileAtomically(options_.config, kLlama).ok());
  }
  TemporaryFolder folder_;
  InitOptions options_;
};

TEST_F(InitFolder, AModelFolderHoldsEveryTensorOfTheConfig) {
  options_.dtype = "fp32";
  const auto result = InitModel(options_, {});
  ASSERT_TRUE(result.ok()) << result.status();
  const auto config = ReadDecoderConfig(options_.out);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->dtype, DType::kF32);
  const auto reader = CheckpointReader::Open(options_.out);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const Inventory inventory = BuildInventory(*config);
  EXPECT_EQ(result->num_params, inventory.num_params());
  ASSERT_TRUE(MatchCheckpoint(**reader, *config, inventory).ok());
  const std::string name = "model.layers.1.self_attn.q_proj.weight";
  std::vector<float> stored(inventory.Find(name)->num_elems);
  ASSERT_TRUE((*reader)->ReadF32(*(*reader)->Find(name), 0, stored).ok());
  EXPECT_EQ(stored, Values(*config, name));
}

TEST_F(InitFolder, AnOccupiedFolderIsLeftAsItIs) {
  ASSERT_TRUE(MakeDirectories(options_.out).ok());
  ASSERT_TRUE(WriteFileAtomically(JoinPath(options_.out, "precious"), "x").ok());
  const auto refused = InitModel(options_, {});
  EXPECT_EQ(ExitCodeOf(refused.status()), ExitCode::kUsage);
  EXPECT_TRUE(FileExists(JoinPath(options_.out, "precious")));
  EXPECT_FALSE(FileExists(JoinPath(options_.out, "config.json")));
}

TEST_F(InitFolder, AnUnsupportedArchitectureWritesNothing) {
  ASSERT_TRUE(WriteFileAtomically(options_.config, R"({"architectures": ["BertModel"]})").ok());
  const auto refused = InitModel(options_, {});
  EXPECT_EQ(ExitCodeOf(refused.status()), ExitCode::kBadInput);
  EXPECT_FALSE(FileExists(options_.out));
}

TEST_F(InitFolder, ARunKeepsTheDTypeThatWasAsked) {
  for (const char* dtype : {"bf16", "fp16", "fp32"}) {
    options_.out = JoinPath(folder_.path(), dtype);
    options_.dtype = dtype;
    options_.as_run = true;
    const auto made = InitModel(options_, {});
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(made->precision, dtype);
    const auto manifest = ReadWholeFile(JoinPath(made->store, "manifest.json"), 1 << 20);
    ASSERT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_THAT(*manifest, HasSubstr(std::string("\"layout\": \"") + dtype + "\""));
  }
}

}  // namespace
}  // namespace forebay
