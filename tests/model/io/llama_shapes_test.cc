#include "forebay/model/llama_shapes.h"

#include <cmath>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

int64_t ParamsOf(const DecoderConfig& config) {
  return BuildInventory(config).num_params();
}

struct Published {
  int64_t asked;
  const char* name;
  int64_t num_params;  // as their model cards and checkpoints have them
};

TEST(LlamaShape, PublishedModelsHaveTheirOwnSizes) {
  for (const Published& model : {
           Published{135'000'000, "SmolLM2 135M", 134'515'008},
           Published{360'000'000, "SmolLM2 360M", 361'821'120},
           Published{1'100'000'000, "TinyLlama 1.1B", 1'100'048'384},
           Published{1'700'000'000, "SmolLM2 1.7B", 1'711'376'384},
           Published{7'000'000'000, "Llama-2 7B", 6'738'415'616},
           Published{8'000'000'000, "Llama-3 8B", 8'030'261'248},
           Published{13'000'000'000, "Llama-2 13B", 13'015'864'320},
           Published{70'000'000'000, "Llama-2 70B", 68'976'648'192},
       }) {
    const LlamaShape shape = LlamaShapeOf(model.asked);
    EXPECT_EQ(shape.description, model.name);
    EXPECT_EQ(ParamsOf(shape.config), model.num_params) << model.name;
  }
}

TEST(LlamaShape, OtherSizesAreMetByAShapeBetweenTheirNeighbours) {
  const LlamaShape shape = LlamaShapeOf(3'000'000'000);
  EXPECT_EQ(shape.description, "a Llama shape between SmolLM2 1.7B and Llama-2 7B");
  EXPECT_GT(shape.config.hidden_size, 2048);
  EXPECT_LT(shape.config.hidden_size, 4096);
  EXPECT_EQ(shape.config.hidden_size % shape.config.head_dim, 0);
}

TEST(LlamaShape, EverySizeIsMetWithinHalfABlock) {
  for (double params = 5e7; params <= static_cast<double>(kMostShapeParams); params *= 1.17) {
    const auto asked = static_cast<int64_t>(params);
    const LlamaShape shape = LlamaShapeOf(asked);
    const Inventory inventory = BuildInventory(shape.config);
    const auto difference = static_cast<double>(std::abs(inventory.num_params() - asked));
    const auto block = static_cast<double>(inventory.layers()[1].num_elems);
    EXPECT_LE(difference, std::max(0.055 * params, 0.51 * block)) << asked;
    EXPECT_GE(shape.config.num_layers, 1);
  }
  for (const int64_t end : {kLeastShapeParams, kMostShapeParams}) {
    EXPECT_GE(LlamaShapeOf(end).config.num_layers, 1);
  }
}

TEST(ParseParamCount, TakesUnitsOfAThousand) {
  EXPECT_EQ(*ParseParamCount("13B"), 13'000'000'000);
  EXPECT_EQ(*ParseParamCount("1.1b"), 1'100'000'000);
  EXPECT_EQ(*ParseParamCount("2G"), 2'000'000'000);
  EXPECT_EQ(*ParseParamCount("135M"), 135'000'000);
  EXPECT_EQ(*ParseParamCount("360000000"), 360'000'000);
  EXPECT_EQ(*ParseParamCount("0.5T"), 500'000'000'000);
}

TEST(ParseParamCount, RefusesWhatIsNoSizeOfAModel) {
  for (const char* text : {"", "B", "13BB", "13 B", "-13B", "13X", "nan", "inf", "1e400", "9M",
                           "1.1T", "0x10B", "13B "}) {
    const absl::Status status = ParseParamCount(text).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << text;
    EXPECT_THAT(MessageOf(status), HasSubstr("such as 13B")) << text;
  }
}

}  // namespace
}  // namespace forebay
