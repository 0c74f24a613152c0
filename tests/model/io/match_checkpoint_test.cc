#include "forebay/base/errors.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/files/safetensors.h"
#include "gmock/gmock.h"
#include "sample_configs.h"
#include "sample_files.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class MatchCheckpointTest : public FolderTest {
 protected:
  void UseConfig(const Json& json) {
    config_ = ParseDecoderConfig(json, "config.json").value();
    inventory_ = BuildInventory(config_);
    tensors_ = RandomTensors(inventory_, DType::kF32);
  }
  absl::StatusOr<std::vector<const CheckpointReader::Tensor*>> Match() {
    Write("model.safetensors", MakeSafetensors(tensors_));
    reader_ = CheckpointReader::Open(directory_).value();
    return MatchCheckpoint(*reader_, config_, inventory_);
  }
  std::string Error() {
    const absl::Status status = Match().status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput) << status;
    return MessageOf(status);
  }
  SampleTensor& Tensor(std::string_view name) {
    for (SampleTensor& tensor : tensors_) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << name;
    return tensors_.front();
  }
  DecoderConfig config_;
  Inventory inventory_;
  std::vector<SampleTensor> tensors_;
  std::unique_ptr<CheckpointReader> reader_;
};

TEST_F(MatchCheckpointTest, FindsEveryTensorInTheOrderOfTheInventory) {
  UseConfig(LlamaSample());
  const auto matched = Match();
  ASSERT_TRUE(matched.ok()) << matched.status();
  ASSERT_EQ(matched->size(), inventory_.tensors().size());
  for (size_t i = 0; i < matched->size(); ++i) {
    EXPECT_EQ((*matched)[i]->entry.name, inventory_.tensors()[i].name);
  }
}

TEST_F(MatchCheckpointTest, FindsTensorsWithoutThePrefixAndSkipsOldBuffers) {
  UseConfig(Gpt2Sample());
  for (SampleTensor& tensor : tensors_)
    tensor.name = tensor.name.substr(std::string("transformer.").size());
  tensors_.push_back({"h.0.attn.bias", DType::kF32, {1, 1, 2, 2}, {1, 0, 1, 1}});
  EXPECT_TRUE(Match().ok());
}

TEST_F(MatchCheckpointTest, FindsTensorsUnderTheNamesThatWrappersGiveThem) {
  for (const char* prefix : {"_orig_mod.", "module.", "module._orig_mod.", "base_model.model."}) {
    UseConfig(LlamaSample());
    for (SampleTensor& tensor : tensors_) tensor.name = prefix + tensor.name;
    const auto matched = Match();
    ASSERT_TRUE(matched.ok()) << matched.status();
    EXPECT_EQ((*matched)[0]->entry.name, prefix + inventory_.tensors()[0].name);
  }
  UseConfig(LlamaSample());
  for (SampleTensor& tensor : tensors_) {
    if (tensor.name.starts_with("model.")) tensor.name.insert(5, ".language_model");
  }
  EXPECT_TRUE(Match().ok());
  UseConfig(Gpt2Sample());
  for (SampleTensor& tensor : tensors_)
    tensor.name = "_orig_mod." + tensor.name.substr(std::string("transformer.").size());
  EXPECT_TRUE(Match().ok());
}

TEST_F(MatchCheckpointTest, ATensorUnderTwoNamesIsRefused) {
  UseConfig(LlamaSample());
  tensors_.push_back(Tensor("model.norm.weight"));
  tensors_.back().name = "module.model.norm.weight";
  EXPECT_THAT(Error(), HasSubstr("'model.norm.weight' and 'module.model.norm.weight' are both"));
}

TEST_F(MatchCheckpointTest, SaysWhyTensorsOfAnAdapterAreNotRead) {
  UseConfig(LlamaSample());
  for (SampleTensor& tensor : tensors_) tensor.name = "base_model.model." + tensor.name;
  tensors_.push_back({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
                      DType::kF32,
                      {1, 2},
                      {1, 2}});
  EXPECT_THAT(Error(), AllOf(HasSubstr("lora_A"), HasSubstr("merge_and_unload of PEFT")));
}

TEST_F(MatchCheckpointTest, NamesMissingUnexpectedMisshapenAndMistypedTensorsAtOnce) {
  UseConfig(LlamaSample());
  Tensor("model.norm.weight").name = "model.norms.weight";
  Tensor("model.layers.0.mlp.up_proj.weight").shape = {32, 48};
  EXPECT_THAT(Error(), AllOf(HasSubstr("'model.norm.weight' is missing"),
                             HasSubstr("'model.norms.weight' is in the checkpoint"),
                             HasSubstr("'model.layers.0.mlp.up_proj.weight' has shape [32, 48], "
                                       "but config.json makes it [48, 32]")));
}

TEST_F(MatchCheckpointTest, NamesTensorsOfOtherTypes) {
  UseConfig(Gpt2Sample());
  Write("model.safetensors",
        RawSafetensors(
            R"({"transformer.wte.weight":{"dtype":"F64","shape":[0],"data_offsets":[0,0]}})"));
  reader_ = CheckpointReader::Open(directory_).value();
  EXPECT_THAT(
      MessageOf(MatchCheckpoint(*reader_, config_, inventory_).status()),
      AllOf(HasSubstr("'transformer.wte.weight' has dtype F64"), HasSubstr("F32, BF16 and F16")));
}

TEST_F(MatchCheckpointTest, ShowsTwentyProblemsAndCountsTheRest) {
  UseConfig(LlamaSample());
  for (SampleTensor& tensor : tensors_) tensor.name += "x";
  const std::string message = Error();
  EXPECT_THAT(message, HasSubstr("and 40 more problems"));  // 30 missing, 30 unexpected
  EXPECT_LT(message.size(), 3000u);
}

TEST_F(MatchCheckpointTest, AMissingOutputLayerHintsAtTying) {
  UseConfig(LlamaSample());
  tensors_.pop_back();
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("'lm_head.weight' is missing"), HasSubstr("tie_word_embeddings")));
}

TEST_F(MatchCheckpointTest, ATiedModelMayCarryItsEmbeddingTwice) {
  UseConfig(Gpt2Sample());
  tensors_.push_back(Tensor("transformer.wte.weight"));
  tensors_.back().name = "lm_head.weight";
  EXPECT_TRUE(Match().ok());
}

TEST_F(MatchCheckpointTest, ATiedModelMayNameItsEmbeddingAsTheOutputLayer) {
  UseConfig(Gpt2Sample());
  Tensor("transformer.wte.weight").name = "lm_head.weight";
  EXPECT_TRUE(Match().ok());
}

TEST_F(MatchCheckpointTest, ATiedModelWithAnOutputLayerOfItsOwnIsRefused) {
  UseConfig(Gpt2Sample());
  tensors_.push_back(Tensor("transformer.wte.weight"));
  tensors_.back().name = "lm_head.weight";
  tensors_.back().values[1000] += 1;
  EXPECT_THAT(Error(), AllOf(HasSubstr("'lm_head.weight' differs from the embedding"),
                             HasSubstr("tie_word_embeddings")));
}

}  // namespace
}  // namespace forebay
