#include "forebay/model/files/model_folder.h"

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "sample_configs.h"
#include "sample_files.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ModelFolderTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    ASSERT_TRUE(MakeDirectories(Path("to")).ok());
    config_ = ParseDecoderConfig(LlamaSample(), "config.json").value();
  }
  std::string Copied(std::string_view name) {
    return ReadWholeFile(Path(JoinPath("to", name)), 1 << 20).value();
  }
  DecoderConfig config_;
};

TEST_F(ModelFolderTest, GenerationConfigSaysWhereToStop) {
  Write("generation_config.json", R"({"eos_token_id": [7, 8]})");
  EXPECT_THAT(ReadStopTokens(directory_, config_).value(), ElementsAre(7, 8));
  Write("generation_config.json", R"({"eos_token_id": 9})");
  EXPECT_THAT(ReadStopTokens(directory_, config_).value(), ElementsAre(9));
}

TEST_F(ModelFolderTest, ConfigSaysWhereToStopOtherwise) {
  EXPECT_THAT(ReadStopTokens(directory_, config_).value(), ElementsAre(2));
  Write("generation_config.json", R"({"eos_token_id": -1})");
  EXPECT_THAT(ReadStopTokens(directory_, config_).value(), ElementsAre(2));
  Write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_THAT(ReadStopTokens(directory_, config_).value(), ElementsAre(2));
  config_.eos_token_ids.clear();
  EXPECT_THAT(ReadStopTokens(directory_, config_).value(), IsEmpty());
}

TEST_F(ModelFolderTest, AMalformedGenerationConfigNamesFileAndKey) {
  Write("generation_config.json", R"({"eos_token_id": "x"})");
  const absl::Status status = ReadStopTokens(directory_, config_).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status),
              testing::AllOf(HasSubstr("generation_config.json"), HasSubstr("eos_token_id")));
}

TEST_F(ModelFolderTest, SidecarsAreCopiedAndTheConfigNamesTheNewType) {
  Write("config.json", LlamaSample().dump());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "generation_config.json", "chat_template.jinja", "vocab.json",
                           "merges.txt", "tokenizer.model"}) {
    Write(name, std::string("contents of ") + name);
  }
  Write("model.safetensors", "weights");
  ASSERT_TRUE(CopySidecarFiles(directory_, Path("to"), DType::kF32).ok());
  EXPECT_EQ(Copied("tokenizer.json"), "contents of tokenizer.json");
  EXPECT_EQ(Copied("tokenizer.model"), "contents of tokenizer.model");
  EXPECT_EQ(Copied("chat_template.jinja"), "contents of chat_template.jinja");
  EXPECT_FALSE(FileExists(Path("to/model.safetensors")));
  const Json config = ParseJson(Copied("config.json"), "copy").value();
  EXPECT_EQ(config["dtype"], "float32");
  EXPECT_FALSE(config.contains("torch_dtype"));
  EXPECT_EQ(config["rms_norm_eps"], 1e-5);
}

TEST_F(ModelFolderTest, TheOlderSpellingOfTheTypeIsKept) {
  Json json = LlamaSample();
  json.erase("dtype");
  Write("config.json", json.dump());
  ASSERT_TRUE(CopySidecarFiles(directory_, Path("to"), DType::kBF16).ok());
  EXPECT_EQ(ParseJson(Copied("config.json"), "copy").value()["torch_dtype"], "bfloat16");
}

TEST_F(ModelFolderTest, CopyingNeedsAConfig) {
  EXPECT_EQ(ExitCodeOf(CopySidecarFiles(directory_, Path("to"), DType::kBF16)),
            ExitCode::kBadInput);
}

}  // namespace
}  // namespace forebay
