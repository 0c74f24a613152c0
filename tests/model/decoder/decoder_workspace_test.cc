#include "forebay/model/decoder_workspace.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "gtest/gtest.h"

namespace forebay::testing {
namespace {

DecoderConfig SmolLm2() {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 49152;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_layers = 30;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.max_positions = 8192;
  config.tied_embeddings = true;
  return config;
}

int64_t PlacedBytes(const DecoderConfig& config, bool training) {
  DecoderWorkspace unplaced;
  return PlaceWorkspace(config, {.max_tokens = 1024, .training = training}, nullptr, unplaced);
}

TEST(DecoderWorkspace, BlockOfSmolLm2TakesThirtyTwoMegabytesToTrainAThousandTokens) {
  EXPECT_LT(PlacedBytes(SmolLm2(), /*training=*/true), 33'000'000);
}

TEST(DecoderWorkspace, EvaluationTakesLessThanTraining) {
  EXPECT_LT(PlacedBytes(SmolLm2(), /*training=*/false), 26'000'000);
}

TEST(DecoderWorkspace, CreateChargesExactlyWhatThePlannerCounts) {
  for (const std::string& name : TinyModelNames()) {
    for (const bool training : {false, true}) {
      const TinyModel model = MakeTinyModel(name);
      const DecoderOptions options = {2, cpu::Precision::kBf16, 40, training};
      MemoryBudget budget(0);
      {
        const auto decoder = Decoder::Create(model.config, options, &budget);
        ASSERT_TRUE(decoder.ok());
        EXPECT_EQ(budget.used_bytes(), DecoderWorkspaceBytes(model.config, options));
      }
      EXPECT_EQ(budget.used_bytes(), 0);
    }
  }
}

TEST(DecoderWorkspace, BudgetTooSmallIsAnErrorThatChargesNothing) {
  const TinyModel model = MakeTinyModel("Gpt2");
  const DecoderOptions options = {1, cpu::Precision::kFp32, 40, true};
  MemoryBudget budget(DecoderWorkspaceBytes(model.config, options) - 1);
  const auto decoder = Decoder::Create(model.config, options, &budget);
  EXPECT_EQ(ExitCodeOf(decoder.status()), ExitCode::kOutOfMemory);
  EXPECT_EQ(budget.used_bytes(), 0);
}

// Heads as wide together as 256 times the model: what they need must not hide in the allowance for
// oneDNN.
TEST(DecoderWorkspace, ScratchOfHeadsWiderThanTheModelIsCharged) {
  const TinyModel model = MakeModel("Qwen3WideHeads", R"({"architectures": ["Qwen3ForCausalLM"],
      "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
      "num_attention_heads": 64, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 61,
      "max_position_embeddings": 64, "tie_word_embeddings": true})",
                                    DType::kBF16, 1);
  const std::vector<std::vector<int64_t>> rows(64, {10, 10});
  const DecoderOptions options = {1, cpu::Precision::kBf16, 64 * 20, true};
  Runner runner(model, options, DType::kBF16);
  runner.LossAndGradients(MakeBatch(model, rows, 20), 0.01);
  DecoderWorkspace unplaced;
  EXPECT_LE(runner.decoder().context().scratch_bytes() +
                PlaceWorkspace(model.config, {.max_tokens = options.max_tokens}, nullptr, unplaced),
            DecoderWorkspaceBytes(model.config, options));

  // Also where this CPU takes none of it: as the operators' own bound for such a model.
  const int64_t bound = cpu::ScratchBytes(1, cpu::Precision::kBf16, options.max_tokens, 32, 48, 61,
                                          128, /*attention_width=*/64 * 128);
  EXPECT_GE(
      DecoderWorkspaceBytes(model.config, options),
      PlaceWorkspace(model.config, {.max_tokens = options.max_tokens}, nullptr, unplaced) + bound);
}

// Buffers that live at the same time. Checked as addresses, so that a new buffer cannot quietly
// land on another.
TEST(DecoderWorkspace, BuffersThatLiveTogetherDoNotOverlap) {
  for (const char* const name : {"LlamaGroupedTied", "Qwen3WideHeads", "Gpt2"}) {
    const DecoderConfig config = MakeTinyModel(name).config;
    const WorkspaceShape shape = {.max_tokens = 17};
    DecoderWorkspace w;
    std::vector<std::byte> memory(PlaceWorkspace(config, shape, nullptr, w));
    PlaceWorkspace(config, shape, memory.data(), w);
    const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
    const int64_t query = config.num_heads * config.head_dim;
    const int64_t key = config.num_kv_heads * config.head_dim;
    using Buffers = std::vector<std::pair<const float*, int64_t>>;
    const Buffers mlp_backward = {
        {w.residual, hidden}, {w.normed, hidden},  {w.query, query}, {w.key, key},
        {w.value, key},       {w.attended, query}, {w.up, inner},    {w.activated, inner},
        {w.raw_query, query}, {w.raw_key, key},    {w.gate, inner},  {w.mlp_statistics.inverse, 1}};
    const Buffers mlp_input_gradient = {{w.residual, hidden}, {w.normed, hidden},
                                        {w.d_up, inner},      {w.d_gate, inner},
                                        {w.attended, query},  {w.d_mlp_normed, hidden}};
    const Buffers attention_backward = {
        {w.normed, hidden},   {w.query, query}, {w.key, key},        {w.value, key},
        {w.raw_query, query}, {w.raw_key, key}, {w.attended, query}, {w.d_attended, query},
        {w.d_query, query},   {w.d_key, key},   {w.d_value, key}};
    const Buffers projection_backward = {
        {w.normed, hidden}, {w.d_raw_query, query}, {w.d_raw_key, key},
        {w.d_query, query}, {w.d_key, key},         {w.d_value, key},
        {w.raw_key, key},   {w.raw_query, query},   {w.d_attention_normed, hidden}};
    for (const Buffers& live :
         {mlp_backward, mlp_input_gradient, attention_backward, projection_backward}) {
      for (size_t a = 0; a < live.size(); ++a) {
        for (size_t b = a + 1; b < live.size(); ++b) {
          if (live[a].first == nullptr || live[b].first == nullptr) continue;
          const bool before = live[a].first + 17 * live[a].second <= live[b].first;
          const bool after = live[b].first + 17 * live[b].second <= live[a].first;
          EXPECT_TRUE(before || after) << name << " buffers " << a << " and " << b;
        }
      }
    }
  }
}

}  // namespace
}  // namespace forebay::testing
