#include "forebay/base/check.h"
#include "forebay/base/tensor_spec.h"

#include <set>

#include "forebay/model/decoder_config.h"
#include "gmock/gmock.h"
#include "sample_configs.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

DecoderConfig ParseConfig(const Json& json) {
  absl::StatusOr<DecoderConfig> config = ParseDecoderConfig(json, "config.json");
  FOREBAY_CHECK(config.ok());
  return *std::move(config);
}

// "name [shape]" of the tensors of one layer.
std::vector<std::string> Layer(const Inventory& inventory, int layer) {
  std::vector<std::string> names;
  const LayerSpec& spec = inventory.layers()[static_cast<size_t>(layer)];
  for (int i = 0; i < spec.num_tensors; ++i) {
    const TensorSpec& tensor = inventory.tensors()[static_cast<size_t>(spec.first_tensor + i)];
    names.push_back(tensor.name + " " + ToString(tensor.shape));
  }
  return names;
}

TEST(Inventory, LlamaHasTheTensorsThatTransformersSaves) {
  const Inventory inventory = BuildInventory(ParseConfig(LlamaSample()));
  ASSERT_EQ(inventory.num_layers(), 5);
  EXPECT_THAT(Layer(inventory, EmbedLayer()), ElementsAre("model.embed_tokens.weight [96, 32]"));
  EXPECT_THAT(Layer(inventory, BlockLayer(1)),
              ElementsAre("model.layers.1.input_layernorm.weight [32]",
                          "model.layers.1.self_attn.q_proj.weight [32, 32]",
                          "model.layers.1.self_attn.k_proj.weight [16, 32]",
                          "model.layers.1.self_attn.v_proj.weight [16, 32]",
                          "model.layers.1.self_attn.o_proj.weight [32, 32]",
                          "model.layers.1.post_attention_layernorm.weight [32]",
                          "model.layers.1.mlp.gate_proj.weight [48, 32]",
                          "model.layers.1.mlp.up_proj.weight [48, 32]",
                          "model.layers.1.mlp.down_proj.weight [32, 48]"));
  EXPECT_THAT(Layer(inventory, HeadLayer(ParseConfig(LlamaSample()))),
              ElementsAre("model.norm.weight [32]", "lm_head.weight [96, 32]"));
}

TEST(Inventory, LayersAreNamedByWhatTheyAre) {
  const Inventory inventory = BuildInventory(ParseConfig(LlamaSample()));
  std::vector<std::string> names;
  for (const LayerSpec& layer : inventory.layers()) names.push_back(layer.name);
  EXPECT_THAT(names, ElementsAre("embed", "layers.0", "layers.1", "layers.2", "head"));
}

TEST(Inventory, LlamaBiasesFollowTheConfig) {
  Json json = LlamaSample();
  json["attention_bias"] = true;
  json["mlp_bias"] = true;
  const Inventory inventory = BuildInventory(ParseConfig(json));
  for (const std::string_view name :
       {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias",
        "self_attn.o_proj.bias", "mlp.gate_proj.bias", "mlp.up_proj.bias", "mlp.down_proj.bias"}) {
    const TensorSpec* const bias = inventory.Find("model.layers.0." + std::string(name));
    ASSERT_NE(bias, nullptr) << name;
    EXPECT_FALSE(bias->decay);
  }
  EXPECT_EQ(inventory.Find("model.layers.0.mlp.gate_proj.bias")->shape, Shape{48});
  EXPECT_EQ(inventory.Find("model.layers.0.self_attn.k_proj.bias")->shape, Shape{16});
}

TEST(Inventory, Qwen2HasBiasesOnQueryKeyAndValueOnly) {
  const Inventory inventory = BuildInventory(ParseConfig(SampleOf("Qwen2ForCausalLM")));
  EXPECT_NE(inventory.Find("model.layers.2.self_attn.v_proj.bias"), nullptr);
  EXPECT_EQ(inventory.Find("model.layers.2.self_attn.o_proj.bias"), nullptr);
}

TEST(Inventory, Qwen3HasQueryAndKeyNormsOfTheSizeOfAHead) {
  const Inventory inventory = BuildInventory(ParseConfig(SampleOf("Qwen3ForCausalLM")));
  const TensorSpec* const norm = inventory.Find("model.layers.0.self_attn.q_norm.weight");
  ASSERT_NE(norm, nullptr);
  EXPECT_EQ(norm->shape, Shape{8});
  EXPECT_FALSE(norm->decay);
  EXPECT_NE(inventory.Find("model.layers.0.self_attn.k_norm.weight"), nullptr);
}

TEST(Inventory, HeadsMayBeWiderThanTheHiddenSize) {
  Json json = LlamaSample();
  json["head_dim"] = 20;
  const Inventory inventory = BuildInventory(ParseConfig(json));
  EXPECT_EQ(inventory.Find("model.layers.0.self_attn.q_proj.weight")->shape, (Shape{80, 32}));
  EXPECT_EQ(inventory.Find("model.layers.0.self_attn.o_proj.weight")->shape, (Shape{32, 80}));
}

TEST(Inventory, Gpt2StoresWeightsInOutAndFusesQueryKeyValue) {
  const DecoderConfig config = ParseConfig(Gpt2Sample());
  const Inventory inventory = BuildInventory(config);
  EXPECT_THAT(Layer(inventory, EmbedLayer()),
              ElementsAre("transformer.wte.weight [96, 32]", "transformer.wpe.weight [64, 32]"));
  EXPECT_THAT(
      Layer(inventory, BlockLayer(0)),
      ElementsAre(
          "transformer.h.0.ln_1.weight [32]", "transformer.h.0.ln_1.bias [32]",
          "transformer.h.0.attn.c_attn.weight [32, 96]", "transformer.h.0.attn.c_attn.bias [96]",
          "transformer.h.0.attn.c_proj.weight [32, 32]", "transformer.h.0.attn.c_proj.bias [32]",
          "transformer.h.0.ln_2.weight [32]", "transformer.h.0.ln_2.bias [32]",
          "transformer.h.0.mlp.c_fc.weight [32, 128]", "transformer.h.0.mlp.c_fc.bias [128]",
          "transformer.h.0.mlp.c_proj.weight [128, 32]", "transformer.h.0.mlp.c_proj.bias [32]"));
  EXPECT_THAT(Layer(inventory, HeadLayer(config)),
              ElementsAre("transformer.ln_f.weight [32]", "transformer.ln_f.bias [32]"));
}

TEST(Inventory, TiedModelsHaveNoOutputProjection) {
  Json json = LlamaSample();
  json["tie_word_embeddings"] = true;
  EXPECT_EQ(BuildInventory(ParseConfig(json)).Find("lm_head.weight"), nullptr);
}

TEST(Inventory, OnlyVectorsAreExemptFromWeightDecay) {
  for (const Json& json :
       {LlamaSample(), Gpt2Sample(), SampleOf("Qwen2ForCausalLM"), SampleOf("Qwen3ForCausalLM")}) {
    const Inventory inventory = BuildInventory(ParseConfig(json));
    for (const TensorSpec& tensor : inventory.tensors()) {
      EXPECT_EQ(tensor.decay, tensor.shape.size() == 2) << tensor.name;
    }
  }
}

TEST(Inventory, NamesAreUniqueAndTensorsDoNotOverlap) {
  const Inventory inventory = BuildInventory(ParseConfig(SampleOf("Qwen3ForCausalLM")));
  std::set<std::string> names;
  for (int layer = 0; layer < inventory.num_layers(); ++layer) {
    int64_t end = 0;
    for (const TensorSpec* tensor : TensorsInPlace(inventory, layer)) {
      EXPECT_TRUE(names.insert(tensor->name).second) << tensor->name;
      EXPECT_GE(tensor->offset_elems, end) << tensor->name;
      end = tensor->offset_elems + tensor->num_elems;
    }
    EXPECT_LE(end, inventory.layers()[static_cast<size_t>(layer)].num_elems);
  }
  EXPECT_EQ(names.size(), inventory.tensors().size());
}

TEST(Inventory, PublishedNamesWithoutThePrefixAreAlternatives) {
  EXPECT_THAT(AlternativeNames(ParseConfig(Gpt2Sample()), "transformer.h.0.ln_1.weight"),
              ElementsAre("h.0.ln_1.weight"));
  EXPECT_THAT(AlternativeNames(ParseConfig(LlamaSample()), "model.norm.weight"),
              ElementsAre("norm.weight"));
  EXPECT_THAT(AlternativeNames(ParseConfig(LlamaSample()), "lm_head.weight"), IsEmpty());
}

TEST(Inventory, BuffersOfOldCheckpointsAreIgnorable) {
  const DecoderConfig gpt2 = ParseConfig(Gpt2Sample());
  EXPECT_TRUE(IsIgnorableTensor(gpt2, "h.0.attn.bias"));
  EXPECT_TRUE(IsIgnorableTensor(gpt2, "transformer.h.0.attn.masked_bias"));
  EXPECT_TRUE(IsIgnorableTensor(gpt2, "lm_head.weight"));
  EXPECT_FALSE(IsIgnorableTensor(gpt2, "h.0.attn.c_attn.bias"));
  const DecoderConfig llama = ParseConfig(LlamaSample());
  EXPECT_TRUE(IsIgnorableTensor(llama, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(IsIgnorableTensor(llama, "lm_head.weight"));
}

}  // namespace
}  // namespace forebay
