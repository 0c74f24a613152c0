// The decoder under the walk over its layers, beside the same calls made by hand.
#include "forebay/model/decoder_compute.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/step/layer_walk.h"
#include "forebay/step/step_schedule.h"
#include "forebay/tests/model/decoder/tiny_models.h"
#include "forebay/tests/step/piecewise_source.h"
#include "gmock/gmock.h"

namespace forebay::testing {
namespace {

constexpr double kScale = 0.05;

// Parts come in order.
absl::Status Append(const LayerGradient& gradient, std::vector<std::vector<float>>& to) {
  std::vector<float>& of_layer = to[static_cast<size_t>(gradient.layer)];
  EXPECT_EQ(gradient.first_elem, std::ssize(of_layer));
  const std::span<const float> elems = gradient.floats();
  of_layer.insert(of_layer.end(), elems.begin(), elems.end());
  return absl::OkStatus();
}
constexpr DType kActivationDTypes[] = {DType::kF32, DType::kBF16};

// Keeps what is spilled elsewhere, and lets nothing stay in its buffer.
class CopyingStorage : public ActivationStorage {
 public:
  CopyingStorage(int num_buffers, int64_t bytes_each)
      : num_buffers_(num_buffers), memory_(static_cast<size_t>(num_buffers * bytes_each)) {}
  std::span<std::byte> buffers() const override {
    return std::span(const_cast<std::byte*>(memory_.data()), memory_.size());
  }
  int num_buffers() const override { return num_buffers_; }
  void StartWrite(int layer) override { copies_[layer] = {Of(layer).begin(), Of(layer).end()}; }
  void StartRead(int layer) override {
    std::ranges::copy(copies_.at(layer), Of(layer).begin());
    copies_.erase(layer);
  }
  absl::Status Await(int layer) override {
    if (copies_.contains(layer)) std::ranges::fill(Of(layer), std::byte{0xff});
    return absl::OkStatus();
  }
  void Abandon() override { copies_.clear(); }

 private:
  std::span<std::byte> Of(int layer) const {
    const size_t size = memory_.size() / num_buffers_;
    return buffers().subspan(layer % num_buffers_ * size, size);
  }
  const int num_buffers_;
  std::vector<std::byte> memory_;
  std::map<int, std::vector<std::byte>> copies_;
};

// Five blocks, tied or untied: the others are too small to spill anything.
TinyModel ModelOf(const std::string& name) {
  if (!name.starts_with("FiveBlocks")) return MakeTinyModel(name);
  return MakeModel(name,
                   R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 24,
      "intermediate_size": 40, "num_hidden_layers": 5, "num_attention_heads": 4,
      "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 64,
      "tie_word_embeddings": )" +
                       std::string(name == "FiveBlocksTied" ? "true}" : "false}"),
                   DType::kF32, /*seed=*/1);
}

class DecoderComputeTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::vector<MicroBatch> Batches() const {
    return {MakeBatch(model_, {{30, 9}}, 40, 3), MakeBatch(model_, {{5, 17}, {11}}, 24, 4),
            MakeBatch(model_, {{40}}, 40, 5)};
  }

  std::unique_ptr<DecoderCompute> ComputeFor(int64_t tokens, const BlockRecompute& recompute = {},
                                             DType activations = DType::kF32,
                                             ActivationStorage* storage = nullptr) {
    auto compute = DecoderCompute::CreateForTraining(&runner_.decoder(), tokens, &budget_, storage,
                                                     recompute, activations);
    FOREBAY_CHECK(compute.ok());
    return *std::move(compute);
  }

  // One pass over `operations`; gradients by layer.
  std::vector<std::vector<float>> Run(DecoderCompute& compute,
                                      const std::vector<Operation>& operations,
                                      std::span<const MicroBatch> batches,
                                      ActivationStorage* storage = nullptr) {
    std::vector<std::vector<float>> gradients(static_cast<size_t>(model_.inventory.num_layers()));
    WalkHooks hooks;
    hooks.hand = [&](const LayerGradient& gradient) { return Append(gradient, gradients); };
    hooks.activations = storage;
    LayerWalk walk(operations);
    EXPECT_TRUE(compute.BeginPass(batches, kScale).ok());
    walk.Announce(runner_.source());
    EXPECT_TRUE(walk.Run(runner_.source(), compute, hooks).ok());
    return gradients;
  }

  std::vector<BlockRecompute> EveryRecompute() const {
    std::vector<BlockRecompute> all;
    for (const Recompute recompute : {Recompute::kAll, Recompute::kAttention}) {
      for (int blocks = 0; blocks <= model_.config.num_layers; ++blocks) {
        all.push_back({recompute, blocks});
      }
    }
    for (int segment = 2; segment <= model_.config.num_layers; ++segment) {
      all.push_back({.segment_blocks = segment});
    }
    return all;
  }

  void ExpectTheSameBits(DType dtype);
  void ExpectTheSameBitsFromStorage(DType dtype);

  void ExpectGradientsOfRunner(const std::vector<std::vector<float>>& gradients) const {
    for (size_t layer = 0; layer < gradients.size(); ++layer) {
      const std::vector<float>& expected = runner_.gradients()[layer];
      if (static_cast<int>(layer) == EmbedLayer() && model_.config.tied_embeddings) {
        EXPECT_THAT(gradients[layer], ::testing::Pointwise(::testing::FloatNear(1e-6f), expected));
      } else {
        EXPECT_EQ(gradients[layer], expected) << layer;
      }
    }
  }

  const TinyModel model_ = ModelOf(GetParam());
  Runner runner_{model_, {.num_threads = 2, .precision = cpu::Precision::kFp32, .max_tokens = 64}};
  MemoryBudget budget_{0};
};

INSTANTIATE_TEST_SUITE_P(Models, DecoderComputeTest,
                         ::testing::Values("LlamaGroupedTied", "LlamaBiasesUntied", "Gpt2",
                                           "Qwen3WideHeads", "FiveBlocksTied"));

// Layer by layer over all micro-batches, where the calls by hand go micro-batch by micro-batch: the
// additions to each gradient are the same, in the same order. A tied embedding is the exception:
// all that its gradient gets from the loss comes first.
TEST_P(DecoderComputeTest, AStepOfSeveralMicroBatchesGivesTheBitsOfCallsByHand) {
  const std::vector<MicroBatch> batches = Batches();
  const std::vector<Operation> step = ChainSchedule(ChainOf(model_.config)).operations;
  for (const DType dtype : kActivationDTypes) {
    SCOPED_TRACE(NameOf(dtype));
    runner_.RoundActivationsTo(dtype);
    const auto compute = ComputeFor(40 + 48 + 40, {}, dtype);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const auto gradients = Run(*compute, step, batches);
      runner_.ZeroGradients();
      for (size_t b = 0; b < batches.size(); ++b) {
        EXPECT_EQ(*compute->LossSumOf(b), runner_.LossAndGradients(batches[b], kScale)) << b;
      }
      ExpectGradientsOfRunner(gradients);
    }
    // A shorter step in the same memory.
    const auto gradients = Run(*compute, step, std::span(batches).first(1));
    runner_.ZeroGradients();
    runner_.LossAndGradients(batches[0], kScale);
    EXPECT_EQ(gradients, runner_.gradients());
  }
}

// The distance of two vectors, of the length of the first.
double Distance(std::span<const float> a, std::span<const float> b) {
  double difference = 0, length = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    length += double{a[i]} * a[i];
  }
  return std::sqrt(difference / length);
}

TEST_P(DecoderComputeTest, ActivationsInBf16AreNearlyThoseInFp32AndTakeHalf) {
  const std::vector<MicroBatch> batches = Batches();
  const std::vector<Operation> step = ChainSchedule(ChainOf(model_.config)).operations;
  const auto wide = ComputeFor(128), narrow = ComputeFor(128, {}, DType::kBF16);
  const auto expected = Run(*wide, step, batches), gradients = Run(*narrow, step, batches);
  for (size_t layer = 0; layer < gradients.size(); ++layer) {
    const double distance = Distance(expected[layer], gradients[layer]);
    EXPECT_GT(distance, 0) << layer;
    EXPECT_LT(distance, 0.05) << layer;
  }
  for (size_t b = 0; b < batches.size(); ++b) {
    EXPECT_NEAR(*narrow->LossSumOf(b) / *wide->LossSumOf(b), 1, 1e-3) << b;
  }
  const auto bytes = [&](DType dtype) {
    return StepMemoryFor(model_.config, model_.inventory, 128, {}, dtype).checkpoint_bytes;
  };
  EXPECT_EQ(2 * bytes(DType::kBF16), bytes(DType::kF32));
}

// Values that are saved are those that would be computed again, to the bit, in passes one after the
// other too.
TEST_P(DecoderComputeTest, WhateverIsComputedAgainGivesTheSameBits) {
  for (const DType dtype : kActivationDTypes) ExpectTheSameBits(dtype);
}

void DecoderComputeTest::ExpectTheSameBits(DType dtype) {
  const std::vector<MicroBatch> batches = Batches();
  const auto all = ComputeFor(128, {}, dtype);
  const auto expected = Run(*all, ChainSchedule(ChainOf(model_.config)).operations, batches);
  for (const BlockRecompute& recompute : EveryRecompute()) {
    SCOPED_TRACE(fmt::format("{} of {}, segments of {}, {}", NameOf(recompute.recompute),
                             recompute.num_blocks, recompute.segment_blocks, NameOf(dtype)));
    const auto compute = ComputeFor(128, recompute, dtype);
    const std::vector<Operation> step = ChainSchedule(ChainOf(model_.config, recompute)).operations;
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_EQ(Run(*compute, step, batches), expected);
      for (size_t b = 0; b < batches.size(); ++b) {
        EXPECT_EQ(*compute->LossSumOf(b), *all->LossSumOf(b)) << b;
      }
      // An evaluation, which saves nothing, and a shorter step in the same memory.
      Run(*compute, ForwardOperations(ChainOf(model_.config)), batches);
      Run(*compute, step, std::span(batches).first(1));
    }
  }
}

class LargeVocabularyTest : public ::testing::TestWithParam<std::tuple<bool, cpu::Precision>> {
 protected:
  std::vector<std::vector<float>> Run(const BlockRecompute& recompute, DType activations,
                                      std::vector<double>& losses) {
    MemoryBudget budget(0);
    const auto compute = DecoderCompute::CreateForTraining(&runner_.decoder(), 128, &budget,
                                                           nullptr, recompute, activations);
    FOREBAY_CHECK(compute.ok());
    std::vector<std::vector<float>> gradients(static_cast<size_t>(model_.inventory.num_layers()));
    num_parts_ = 0;
    WalkHooks hooks;
    hooks.hand = [&](const LayerGradient& gradient) {
      const LayerSpec& layer = model_.inventory.layers()[static_cast<size_t>(gradient.layer)];
      num_parts_ += gradient.num_elems() < layer.num_elems ? 1 : 0;
      EXPECT_EQ(gradient.num_elems() % kLayerAlignElems, 0);
      return Append(gradient, gradients);
    };
    LayerWalk walk(ChainSchedule(ChainOf(model_.config, recompute)).operations);
    PiecewiseSource in_pieces(&runner_.source(), PieceElemsOf(model_.config));
    ParamSource& source =
        recompute.vocabulary_in_pieces ? static_cast<ParamSource&>(in_pieces) : runner_.source();
    // Twice, so that what a pass leaves behind shows.
    for (const size_t count : {size_t{1}, batches_.size()}) {
      for (std::vector<float>& gradient : gradients) gradient.clear();
      num_parts_ = 0;
      losses.clear();
      const auto batches = std::span(batches_).first(count);
      EXPECT_TRUE((*compute)->BeginPass(batches, kScale).ok());
      walk.Announce(source);
      EXPECT_TRUE(walk.Run(source, **compute, hooks).ok());
      for (size_t b = 0; b < count; ++b) losses.push_back(*(*compute)->LossSumOf(b));
    }
    pieces_read_ = in_pieces.pieces_read();
    LayerWalk forward(ForwardOperations(ChainOf(model_.config)));
    EXPECT_TRUE((*compute)->BeginPass(batches_, 1).ok());
    forward.Announce(source);
    EXPECT_TRUE(forward.Run(source, **compute, {}).ok());
    for (size_t b = 0; b < batches_.size(); ++b) losses.push_back(*(*compute)->LossSumOf(b));
    return gradients;
  }

  const bool tied_ = std::get<0>(GetParam());
  const cpu::Precision precision_ = std::get<1>(GetParam());
  const DType dtype_ = cpu::WeightDType(precision_);
  const TinyModel model_ = MakeLargeVocabularyModel(tied_, dtype_);
  Runner runner_{model_, {.num_threads = 2, .precision = precision_, .max_tokens = 64}, dtype_};
  const std::vector<MicroBatch> batches_ = {MakeBatch(model_, {{30, 9}}, 40, 3),
                                            MakeBatch(model_, {{5, 17}, {11}}, 24, 4),
                                            MakeBatch(model_, {{40}}, 40, 5)};
  int num_parts_ = 0;
  std::vector<int> pieces_read_;  // by two steps
};
INSTANTIATE_TEST_SUITE_P(Models, LargeVocabularyTest,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(cpu::Precision::kFp32,
                                                              cpu::Precision::kBf16,
                                                              cpu::Precision::kFp16)));

TEST_P(LargeVocabularyTest, ItsGradientsHaveTheSameBitsInParts) {
  ASSERT_TRUE(MayCutVocabulary(model_.config));
  for (const DType activations : kActivationDTypes) {
    std::vector<double> losses, losses_in_parts;
    const auto whole = Run({}, activations, losses);
    EXPECT_EQ(num_parts_, 0);
    const auto in_parts = Run({.vocabulary_in_parts = true}, activations, losses_in_parts);
    EXPECT_EQ(losses_in_parts, losses);
    EXPECT_EQ(in_parts, whole);
    const BlockRecompute in_a_segment = {.segment_blocks = 2, .vocabulary_in_parts = true};
    EXPECT_EQ(Run(in_a_segment, activations, losses_in_parts), whole);
    EXPECT_EQ(losses_in_parts, losses);
    // Five of each table, and the norm of the output layer, which is all of that if tables are
    // tied.
    EXPECT_EQ(num_parts_, tied_ ? 5 : 5 + 1 + 5);
  }
}

TEST_P(LargeVocabularyTest, ItHasTheSameBitsWithWeightsInPieces) {
  ASSERT_TRUE(MayLendInPieces(model_.config, model_.inventory, kLayerAlignElems));
  for (const DType activations : kActivationDTypes) {
    std::vector<double> losses, losses_in_pieces;
    const auto whole = Run({}, activations, losses);
    const auto in_pieces = Run({.vocabulary_in_parts = true, .vocabulary_in_pieces = true},
                               activations, losses_in_pieces);
    EXPECT_EQ(losses_in_pieces, losses);
    EXPECT_EQ(in_pieces, whole);
    // The embedding; of the head the norm, the sums of logits, the gradient of the input, that of
    // the weights. As CountTransfers has it, however many micro-batches there are.
    std::vector<int> expected;
    for (int step = 0; step < 2; ++step) {
      for (int pass = 0; pass < 4; ++pass) {
        if (pass == 1 && !tied_) expected.push_back(4);
        for (int piece = 0; piece < 5; ++piece) expected.push_back(piece);
      }
    }
    EXPECT_EQ(pieces_read_, expected);
  }
}

TEST_P(LargeVocabularyTest, TakesTheMemoryThatThePlannerCountsWhichIsLess) {
  const auto bytes = [&](bool vocabulary_in_parts) {
    MemoryBudget budget(0);
    const BlockRecompute recompute = {.vocabulary_in_parts = vocabulary_in_parts,
                                      .vocabulary_in_pieces = vocabulary_in_parts};
    const auto compute =
        DecoderCompute::CreateForTraining(&runner_.decoder(), 128, &budget, nullptr, recompute);
    FOREBAY_CHECK(compute.ok());
    const DecoderStepMemory memory = StepMemoryFor(model_.config, model_.inventory, 128, recompute);
    EXPECT_EQ(budget.used_bytes(), HostBuffer::ChargedBytes(memory.checkpoint_bytes) +
                                       HostBuffer::ChargedBytes(memory.activation_gradient_bytes) +
                                       HostBuffer::ChargedBytes(memory.layer_gradient_bytes) +
                                       HostBuffer::ChargedBytes(memory.embedding_gradient_bytes) +
                                       HostBuffer::ChargedBytes(memory.projection_input_bytes) +
                                       HostBuffer::ChargedBytes(memory.log_sum_exp_bytes) +
                                       HostBuffer::ChargedBytes(memory.small_gradient_bytes) +
                                       HostBuffer::ChargedBytes(memory.logit_sums_bytes));
    return budget.used_bytes();
  };
  const int64_t table_bytes = model_.config.vocab_size * model_.config.hidden_size * 4;
  EXPECT_LT(bytes(true), bytes(false) - table_bytes / 2);
}

TEST(MayCutVocabulary, OfLargeOnesWithRotatedPositions) {
  EXPECT_FALSE(MayCutVocabulary(MakeTinyModel("Gpt2").config));
  EXPECT_FALSE(MayCutVocabulary(MakeTinyModel("LlamaGroupedTied").config));
}

using DecoderSpillTest = DecoderComputeTest;
INSTANTIATE_TEST_SUITE_P(Models, DecoderSpillTest,
                         ::testing::Values("FiveBlocksTied", "FiveBlocksUntied"));

TEST_P(DecoderSpillTest, AStepThatSpillsActivationsGivesTheSameBits) {
  for (const DType dtype : kActivationDTypes) ExpectTheSameBitsFromStorage(dtype);
}

void DecoderComputeTest::ExpectTheSameBitsFromStorage(DType dtype) {
  SCOPED_TRACE(NameOf(dtype));
  const std::vector<MicroBatch> batches = Batches();
  Chain chain = ChainOf(model_.config);
  const auto kept = ComputeFor(40 + 48 + 40, {}, dtype);
  const auto expected = Run(*kept, ChainSchedule(chain).operations, batches);
  ASSERT_GT(MostSpilledActivations(chain), 0);
  for (int spilled = 1; spilled <= MostSpilledActivations(chain); ++spilled) {
    // Beside what some of the blocks save.
    const BlockRecompute recompute = {Recompute::kAll, 5 - spilled};
    chain = ChainOf(model_.config, recompute);
    chain.num_spilled_activations = spilled;
    CopyingStorage storage(NumActivationBuffers(chain),
                           ForwardBytes(model_.config, 128, dtype) + 4096);
    const auto compute = ComputeFor(128, recompute, dtype, &storage);
    for (int repeat = 0; repeat < 2; ++repeat) {
      EXPECT_EQ(Run(*compute, ChainSchedule(chain).operations, batches, &storage), expected);
      for (size_t b = 0; b < batches.size(); ++b) {
        EXPECT_EQ(*compute->LossSumOf(b), *kept->LossSumOf(b)) << b;
      }
      // An evaluation in between uses the same memory.
      Run(*compute, ForwardOperations(ChainOf(model_.config)), batches);
    }
  }
}

TEST_P(DecoderComputeTest, AnEvaluationHasTheLossOfAStepAndRoomForMore) {
  const std::vector<MicroBatch> batches = Batches();
  const auto compute = ComputeFor(64);
  EXPECT_EQ(compute->most_forward_tokens(), 64 * (model_.config.num_layers + 1));
  Run(*compute, ForwardOperations(ChainOf(model_.config)), batches);
  for (size_t b = 0; b < batches.size(); ++b) {
    EXPECT_EQ(*compute->LossSumOf(b), runner_.LossAndGradients(batches[b], kScale)) << b;
  }
}

TEST_P(DecoderComputeTest, ChargesWhatThePlannerCounts) {
  int64_t less_bytes = -1;
  for (const BlockRecompute& recompute :
       {BlockRecompute(), BlockRecompute{Recompute::kAttention, model_.config.num_layers},
        BlockRecompute{Recompute::kAll, 0}, BlockRecompute{.segment_blocks = 2}}) {
    const int64_t before = budget_.used_bytes();
    const bool halves = recompute.num_blocks == 0;  // one of them
    const DType dtype = halves ? DType::kBF16 : DType::kF32;
    const auto compute = ComputeFor(1000, recompute, dtype);
    const DecoderStepMemory memory =
        StepMemoryFor(model_.config, model_.inventory, 1000, recompute, dtype);
    const int64_t wide = HostBuffer::ChargedBytes(
        WideActivationBytes(model_.config, runner_.decoder().options().max_tokens, dtype));
    EXPECT_EQ(wide > 0, halves);
    EXPECT_EQ(budget_.used_bytes() - before - wide,
              HostBuffer::ChargedBytes(memory.checkpoint_bytes) +
                  HostBuffer::ChargedBytes(memory.activation_gradient_bytes) +
                  HostBuffer::ChargedBytes(memory.layer_gradient_bytes) +
                  HostBuffer::ChargedBytes(memory.embedding_gradient_bytes) +
                  HostBuffer::ChargedBytes(memory.saved_bytes));
    EXPECT_TRUE(memory.saved_bytes > less_bytes || recompute.segment_blocks > 1);
    less_bytes = memory.saved_bytes;
  }
}

TEST_P(DecoderComputeTest, AListThatSavesMoreThanThereIsRoomForIsABug) {
  const BlockRecompute none = {Recompute::kAll, 0};
  const std::vector<Operation> step = ChainSchedule(ChainOf(model_.config, none)).operations;
  const std::vector<MicroBatch> batches = Batches();
  const auto without_room = ComputeFor(128);
  EXPECT_DEATH(Run(*without_room, step, batches), "Recompute::kAll");
}

TEST_P(DecoderComputeTest, AStepForWhichThereIsNoMemoryIsABug) {
  const std::vector<Operation> step = ChainSchedule(ChainOf(model_.config)).operations;
  const std::vector<MicroBatch> batches = Batches();
  const auto compute = ComputeFor(100);
  EXPECT_DEATH(Run(*compute, step, batches), "slot_bytes_");
  auto forward_only = DecoderCompute::CreateForEvaluation(&runner_.decoder(), 1000, &budget_);
  ASSERT_TRUE(forward_only.ok());
  EXPECT_DEATH(Run(**forward_only, step, batches), "num_slots_");
}

}  // namespace
}  // namespace forebay::testing
