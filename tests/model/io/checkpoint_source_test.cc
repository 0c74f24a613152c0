#include "forebay/model/files/checkpoint_source.h"

#include <unistd.h>

#include <chrono>
#include <thread>

#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/files/checkpoint_stream.h"
#include "gmock/gmock.h"
#include "sample_configs.h"
#include "sample_files.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class CheckpointSourceTest : public FolderTest {
 protected:
  // `residue`: of the first tensor in the file, behind a multiple of kIoAlignBytes.
  void UseConfig(Json json, DType stored, int num_layers, int64_t residue = 0) {
    json[json.contains("n_layer") ? "n_layer" : "num_hidden_layers"] = num_layers;
    config_ = ParseDecoderConfig(json, "config.json").value();
    inventory_ = BuildInventory(config_);
    tensors_ = RandomTensors(inventory_, stored);
    Write("model.safetensors", WithTensorsAt(MakeSafetensors(tensors_), residue));
  }
  std::unique_ptr<CheckpointSource> Create(DType dtype, int64_t max_bytes) {
    auto source = CheckpointSource::Create(directory_, config_, dtype, max_bytes, &budget_);
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? *std::move(source) : nullptr;
  }
  // The layer's flat vector as it must be: tensors at their places, zeros elsewhere.
  std::vector<float> Expected(int layer) const {
    std::vector<float> values(
        static_cast<size_t>(inventory_.layers()[static_cast<size_t>(layer)].num_elems));
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const TensorSpec& spec = inventory_.tensors()[i];
      if (spec.layer != layer) continue;
      std::copy(tensors_[i].values.begin(), tensors_[i].values.end(),
                values.begin() + static_cast<std::ptrdiff_t>(spec.offset_elems));
    }
    return values;
  }
  static std::vector<float> Values(const LayerWeights& weights) {
    std::vector<float> values(weights.data.size() / static_cast<size_t>(SizeOf(weights.dtype)));
    for (size_t i = 0; i < values.size(); ++i) {
      if (weights.dtype == DType::kF32) {
        std::memcpy(&values[i], weights.data.data() + i * 4, 4);
      } else {
        uint16_t half = 0;
        std::memcpy(&half, weights.data.data() + i * 2, 2);
        values[i] = Bf16ToFloat(half);
      }
    }
    return values;
  }
  // Their places in the layer are right. Some are asked for out of turn too.
  static std::vector<float> ValuesOfPieces(WeightPieces& pieces) {
    std::vector<float> values;
    for (int piece = 0; piece < pieces.num_pieces(); ++piece) {
      if (piece % 2 == 1) {
        EXPECT_TRUE(pieces.Get((piece * 7) % pieces.num_pieces()).ok());
      }
      const absl::StatusOr<LayerWeights> weights = pieces.Get(piece);
      EXPECT_TRUE(weights.ok()) << weights.status();
      if (!weights.ok()) return {};
      EXPECT_EQ(weights->first_elem, std::ssize(values));
      const std::vector<float> of_piece = Values(*weights);
      values.insert(values.end(), of_piece.begin(), of_piece.end());
    }
    return values;
  }
  std::vector<int> Order() const {
    std::vector<int> order;
    for (int layer = 0; layer < inventory_.num_layers(); ++layer) order.push_back(layer);
    if (config_.tied_embeddings) order.push_back(EmbedLayer());
    return order;
  }
  // A forward pass, as the decoder asks for it; every layer must be right.
  void Pass(CheckpointSource& source) {
    const std::vector<int> order = Order();
    source.Expect(order);
    WeightsLease head;
    for (const int layer : order) {
      auto lease = source.Acquire(layer);
      ASSERT_TRUE(lease.ok()) << lease.status();
      if (WeightPieces* const pieces = lease->weights().pieces; pieces != nullptr) {
        ++num_in_pieces_;
        ASSERT_TRUE(ValuesOfPieces(*pieces) == Expected(layer)) << "layer " << layer;
        continue;
      }
      ASSERT_TRUE(Values(lease->weights()) == Expected(layer)) << "layer " << layer;
      if (layer == HeadLayer(config_)) head = *std::move(lease);
    }
  }

  DecoderConfig config_;
  Inventory inventory_;
  std::vector<SampleTensor> tensors_;
  MemoryBudget budget_{0};
  int num_in_pieces_ = 0;  // leases
};

TEST_F(CheckpointSourceTest, StreamsALargeVocabularyInPieces) {
  Json json = LlamaSample();
  json["vocab_size"] = 70'000;
  for (const bool tied : {false, true}) {
    json["tie_word_embeddings"] = tied;
    for (const DType stored : {DType::kBF16, DType::kF32}) {
      for (const int64_t residue : {0, 2, 504, 4094}) {
        if (residue % SizeOf(stored) != 0) continue;
        SCOPED_TRACE(testing::Message() << tied << " " << NameOf(stored) << " " << residue);
        UseConfig(json, stored, 3, residue);
        const int64_t table_bytes = config_.vocab_size * config_.hidden_size * 2;
        const int64_t least = CheckpointSource::LeastBytes(config_, DType::kBF16);
        {
          const auto source = Create(DType::kBF16, least);
          EXPECT_LE(budget_.used_bytes(), least);
          EXPECT_LT(least, table_bytes);
          num_in_pieces_ = 0;
          for (int i = 0; i < 3; ++i) Pass(*source);
          EXPECT_EQ(num_in_pieces_, 3 * 2);
        }
        // With room for the table it is whole.
        const auto source = Create(DType::kBF16, least + table_bytes);
        num_in_pieces_ = 0;
        Pass(*source);
        EXPECT_EQ(num_in_pieces_, 0);
      }
    }
  }
}

TEST_F(CheckpointSourceTest, APieceOfAFileThatWasCutOffIsAnError) {
  Json json = LlamaSample();
  json["vocab_size"] = 70'000;
  json["tie_word_embeddings"] = true;
  UseConfig(json, DType::kBF16, 3);
  const auto source = Create(DType::kBF16, CheckpointSource::LeastBytes(config_, DType::kBF16));
  source->Expect(std::vector<int>{EmbedLayer()});
  const auto lease = source->Acquire(EmbedLayer());
  ASSERT_TRUE(lease.ok());
  WeightPieces& pieces = *lease->weights().pieces;
  ASSERT_TRUE(pieces.Get(0).ok());
  ASSERT_EQ(truncate((directory_ + "/model.safetensors").c_str(), 4096), 0);
  absl::Status status;
  for (int piece = 1; piece < pieces.num_pieces(); ++piece) {
    status.Update(pieces.Get(piece).status());
  }
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(pieces.Get(0).status(), status);
  source->Expect(std::vector<int>{1});
  EXPECT_EQ(source->Acquire(1).status(), status);
}

TEST_F(CheckpointSourceTest, KeepsEverythingWithoutALimit) {
  UseConfig(LlamaSample(), DType::kBF16, 3);
  const auto source = Create(DType::kBF16, 0);
  EXPECT_EQ(source->num_resident_layers(), 5);
  Pass(*source);
  Pass(*source);
}

TEST_F(CheckpointSourceTest, StreamsWithinTheLeastMemory) {
  UseConfig(LlamaSample(), DType::kBF16, 6);
  const int64_t least = CheckpointSource::LeastBytes(config_, DType::kBF16);
  const auto source = Create(DType::kBF16, least);
  EXPECT_EQ(source->num_resident_layers(), 0);
  EXPECT_LE(budget_.used_bytes(), least);
  for (int i = 0; i < 20; ++i) Pass(*source);
}

TEST_F(CheckpointSourceTest, StreamsWhatLiesAnywhereInItsFile) {
  Json json = LlamaSample();
  json["hidden_size"] = 128;  // matrices of several blocks
  json["intermediate_size"] = 256;
  for (const int64_t residue : {0, 2, 8, 504, 4094}) {
    UseConfig(json, DType::kBF16, 6, residue);
    const auto source = Create(DType::kBF16, CheckpointSource::LeastBytes(config_, DType::kBF16));
    for (int i = 0; i < 5; ++i) Pass(*source);
  }
}

TEST_F(CheckpointSourceTest, LayersThatAreElsewhereTakeNoMemory) {
  for (const Json& sample : {LlamaSample(), Gpt2Sample()}) {
    UseConfig(sample, DType::kBF16, 8);
    for (SampleTensor& tensor : tensors_) {
      for (float& value : tensor.values) value = Bf16ToFloat(FloatToBf16(value));
    }
    const std::vector<int> elsewhere = {EmbedLayer(), 1, 3, 4, HeadLayer(config_)};
    const std::vector<int> asked_for = {2, 5, 6, 7, 8};
    const int64_t block_bytes =
        HostBuffer::ChargedBytes(inventory_.layers()[1].num_elems * 2) + kIoAlignBytes;
    // Two buffers of the window, one block of five that stays, and what is read ahead.
    const int64_t max_bytes =
        3 * block_bytes + CheckpointStream::StagingBytes({DType::kBF16, block_bytes, false});
    const auto source = CheckpointSource::Create(directory_, config_, DType::kBF16, max_bytes,
                                                 &budget_, nullptr, elsewhere);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->num_resident_layers(), 1);
    EXPECT_EQ(budget_.used_bytes(), max_bytes);
    for (int pass = 0; pass < 3; ++pass) {
      (*source)->Expect(asked_for);
      for (const int layer : asked_for) {
        const auto lease = (*source)->Acquire(layer);
        ASSERT_TRUE(lease.ok()) << lease.status();
        EXPECT_EQ(Values(lease->weights()), Expected(layer)) << layer;
      }
    }
  }
}

TEST_F(CheckpointSourceTest, CountsWhatStreamsAsItLiesInTheFiles) {
  UseConfig(LlamaSample(), DType::kF32, 6);
  const auto all = Create(DType::kBF16, 0);
  Pass(*all);
  EXPECT_EQ(all->read_bytes(), 0);
  const auto source = Create(DType::kBF16, CheckpointSource::LeastBytes(config_, DType::kBF16));
  EXPECT_EQ(source->read_bytes(), 0);
  Pass(*source);
  int64_t file_bytes = 0;
  for (const SampleTensor& tensor : tensors_) file_bytes += std::ssize(tensor.values) * 4;
  EXPECT_EQ(source->read_bytes(), file_bytes);
  // A second pass finds what the window still holds.
  const int64_t once = source->read_bytes();
  Pass(*source);
  EXPECT_LE(source->read_bytes(), 2 * once);
}

TEST_F(CheckpointSourceTest, TiedModelsKeepTheEmbeddingAndStreamTheBlocks) {
  UseConfig(Gpt2Sample(), DType::kF16, 6);
  const int64_t least = CheckpointSource::LeastBytes(config_, DType::kBF16);
  const auto source = Create(DType::kBF16, least);
  EXPECT_EQ(source->num_resident_layers(), 2);
  EXPECT_LE(budget_.used_bytes(), least);
  // RandomTensors are exact in bf16, but fp16 has fewer exponents: what is compared is what was
  // stored.
  for (SampleTensor& tensor : tensors_) {
    for (float& value : tensor.values)
      value = Bf16ToFloat(FloatToBf16(Fp16ToFloat(FloatToFp16(value))));
  }
  for (int i = 0; i < 20; ++i) Pass(*source);
}

TEST_F(CheckpointSourceTest, WidensToFloats) {
  UseConfig(LlamaSample(), DType::kBF16, 4);
  const auto source = Create(DType::kF32, CheckpointSource::LeastBytes(config_, DType::kF32));
  Pass(*source);
}

TEST_F(CheckpointSourceTest, EveryBudgetBetweenLeastAndAllWorksAndIsKept) {
  UseConfig(LlamaSample(), DType::kF32, 5);
  const int64_t least = CheckpointSource::LeastBytes(config_, DType::kF32);
  const int64_t all = [&] {
    const auto source = Create(DType::kF32, 0);
    return budget_.used_bytes();
  }();
  int before = 0;
  for (int64_t max_bytes = least; max_bytes <= all; max_bytes += 4096) {
    const auto source = Create(DType::kF32, max_bytes);
    EXPECT_LE(budget_.used_bytes(), max_bytes);
    EXPECT_GE(source->num_resident_layers(), before);
    before = source->num_resident_layers();
    Pass(*source);
  }
  EXPECT_EQ(before, 7);
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(CheckpointSourceTest, LayersMayBeHeldWhileTheNextAreRead) {
  UseConfig(LlamaSample(), DType::kBF16, 4);
  const auto source = Create(DType::kBF16, CheckpointSource::LeastBytes(config_, DType::kBF16));
  source->Expect(Order());
  auto embed = source->Acquire(0);
  auto first = source->Acquire(1);
  // Time for the reading thread to do what it should not: overwrite what is held.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_TRUE(Values(embed->weights()) == Expected(0));
  EXPECT_TRUE(Values(first->weights()) == Expected(1));
}

TEST_F(CheckpointSourceTest, TheSameLayerMayBeHeldTwice) {
  UseConfig(LlamaSample(), DType::kBF16, 4);
  const auto source = Create(DType::kBF16, CheckpointSource::LeastBytes(config_, DType::kBF16));
  const std::vector<int> order = {2, 2, 3, 2};
  source->Expect(order);
  auto first = source->Acquire(2);
  {
    const auto second = source->Acquire(2);
    EXPECT_TRUE(Values(second->weights()) == Expected(2));
  }
  {
    const auto other = source->Acquire(3);
    EXPECT_TRUE(Values(other->weights()) == Expected(3));
  }
  EXPECT_TRUE(Values(first->weights()) == Expected(2));
  first->Release();
  EXPECT_TRUE(Values(source->Acquire(2)->weights()) == Expected(2));
}

TEST_F(CheckpointSourceTest, StoppingWithUnreadAnnouncementsDoesNotHang) {
  UseConfig(LlamaSample(), DType::kBF16, 6);
  const auto source = Create(DType::kBF16, CheckpointSource::LeastBytes(config_, DType::kBF16));
  source->Expect(Order());
  source->Expect(Order());
  EXPECT_TRUE(source->Acquire(0).ok());
}

TEST_F(CheckpointSourceTest, AReadErrorReachesAcquireAndStays) {
  UseConfig(LlamaSample(), DType::kBF16, 6);
  const auto source = Create(DType::kBF16, CheckpointSource::LeastBytes(config_, DType::kBF16));
  ASSERT_EQ(::truncate(Path("model.safetensors").c_str(), 64), 0);
  source->Expect(Order());
  EXPECT_EQ(ExitCodeOf(source->Acquire(0).status()), ExitCode::kCorrupt);
  source->Expect(Order());
  EXPECT_EQ(ExitCodeOf(source->Acquire(3).status()), ExitCode::kCorrupt);
}

TEST_F(CheckpointSourceTest, TooLittleMemoryNamesTheLeast) {
  UseConfig(LlamaSample(), DType::kBF16, 6);
  const absl::Status status =
      CheckpointSource::Create(directory_, config_, DType::kBF16, 4096, &budget_).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(status), HasSubstr("at least"));
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(CheckpointSourceTest, ABudgetThatRefusesIsReported) {
  UseConfig(LlamaSample(), DType::kBF16, 3);
  MemoryBudget small(4096);
  EXPECT_EQ(
      ExitCodeOf(CheckpointSource::Create(directory_, config_, DType::kBF16, 0, &small).status()),
      ExitCode::kOutOfMemory);
  EXPECT_EQ(small.used_bytes(), 0);
}

TEST_F(CheckpointSourceTest, AnotherModelsWeightsAreRefused) {
  UseConfig(LlamaSample(), DType::kBF16, 3);
  config_ = ParseDecoderConfig(SampleOf("Qwen3ForCausalLM"), "config.json").value();
  EXPECT_EQ(
      ExitCodeOf(CheckpointSource::Create(directory_, config_, DType::kBF16, 0, &budget_).status()),
      ExitCode::kBadInput);
}

TEST_F(CheckpointSourceTest, AModelOfOneBlockStreams) {
  UseConfig(LlamaSample(), DType::kBF16, 1);
  const auto source = Create(DType::kBF16, CheckpointSource::LeastBytes(config_, DType::kBF16));
  for (int i = 0; i < 3; ++i) Pass(*source);
}

}  // namespace
}  // namespace forebay
