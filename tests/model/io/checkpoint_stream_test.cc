#include "forebay/model/files/checkpoint_stream.h"

#include <fcntl.h>

#include <algorithm>
#include <random>
#include <tuple>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "sample_files.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int kLayers = 5;
constexpr int kPartsPerLayer = 4;

// Layers whose tensors have sizes from a few elements to several pieces, in the file in another
// order than in the layers, with gaps in the layers.
class CheckpointStreamTest : public FolderTest {
 protected:
  // `blanks`: at the end of the header, which move all tensors.
  void MakeModel(DType stored, size_t blanks, int num_shards = 1) {
    std::mt19937 random(1);
    std::vector<std::vector<SampleTensor>> shards(static_cast<size_t>(num_shards));
    std::map<std::string, std::string> weight_map;
    for (int i = 0; i < kLayers * kPartsPerLayer; ++i) {
      SampleTensor tensor{.name = "t" + std::to_string(i), .dtype = stored};
      const int64_t num_elems =
          i % kPartsPerLayer == 0 ? 3 : 1000 + static_cast<int64_t>(random() % 9000);
      tensor.shape = {num_elems};
      for (int64_t j = 0; j < num_elems; ++j)
        tensor.values.push_back(static_cast<float>(random() % 255) - 127);
      values_.push_back(tensor.values);
      const auto shard = static_cast<size_t>(i % num_shards);
      weight_map[tensor.name] = FileOf(static_cast<int>(shard), num_shards);
      shards[shard].insert(shards[shard].begin(), std::move(tensor));
    }
    for (int shard = 0; shard < num_shards; ++shard) {
      std::string file = MakeSafetensors(shards[static_cast<size_t>(shard)]);
      uint64_t header = 0;
      std::memcpy(&header, file.data(), sizeof(header));
      file.insert(sizeof(header) + header, blanks, ' ');
      header += blanks;
      std::memcpy(file.data(), &header, sizeof(header));
      Write(FileOf(shard, num_shards), file);
    }
    if (num_shards > 1) WriteIndex(weight_map);
    reader_ = CheckpointReader::Open(directory_).value();
  }
  static std::string FileOf(int shard, int num_shards) {
    return num_shards == 1 ? "model.safetensors" : "shard" + std::to_string(shard) + ".safetensors";
  }
  void Open(DType dtype, int64_t layer_bytes = 40'000) {
    dtype_ = dtype;
    std::vector<std::vector<CheckpointStream::Part>> layers(kLayers);
    for (int i = 0; i < kLayers * kPartsPerLayer; ++i) {
      std::vector<CheckpointStream::Part>& parts = layers[static_cast<size_t>(i / kPartsPerLayer)];
      const int64_t offset =
          parts.empty() ? 0 : parts.back().offset_elems + parts.back().num_elems + kGap;
      parts.push_back({reader_->Find("t" + std::to_string(i)), offset,
                       std::ssize(values_[static_cast<size_t>(i)])});
    }
    layers_ = layers;
    stream_ = CheckpointStream::Create(*reader_, layers, dtype, layer_bytes, &budget_).value();
  }
  // Finishes the layer, and looks at every element and every gap.
  void ExpectLayer(int layer) {
    const auto& parts = layers_[static_cast<size_t>(layer)];
    const auto num_elems = static_cast<size_t>(parts.back().offset_elems + parts.back().num_elems);
    std::vector<float> out(num_elems, kUntouched);  // room for any dtype
    const auto bytes = std::as_writable_bytes(std::span(out))
                           .first(num_elems * static_cast<size_t>(SizeOf(dtype_)));
    if (dtype_ != DType::kF32) std::ranges::fill(bytes, std::byte{0x7f});
    const absl::Status status = stream_->Finish(layer, bytes);
    ASSERT_TRUE(status.ok()) << status;
    std::string expected(bytes.size(), '\x7f');
    if (dtype_ == DType::kF32) expected = Encode(dtype_, std::vector<float>(num_elems, kUntouched));
    for (size_t part = 0; part < parts.size(); ++part) {
      const std::string encoded =
          Encode(dtype_, values_[static_cast<size_t>(layer) * kPartsPerLayer + part]);
      expected.replace(static_cast<size_t>(parts[part].offset_elems * SizeOf(dtype_)),
                       encoded.size(), encoded);
    }
    ASSERT_TRUE(std::ranges::equal(bytes, BytesOf(expected))) << "layer " << layer;
  }
  bool DiskIsDirect() const {
    const UniqueFd fd = OpenFile(Path("model.safetensors"), O_RDONLY).value();
    return SwitchToDirect(fd.get()).empty();
  }

  static constexpr int64_t kGap = 7;
  static constexpr float kUntouched = -4096;
  std::vector<std::vector<float>> values_;  // by tensor
  std::unique_ptr<CheckpointReader> reader_;
  std::vector<std::vector<CheckpointStream::Part>> layers_;
  DType dtype_ = DType::kF32;
  MemoryBudget budget_{0};
  std::unique_ptr<CheckpointStream> stream_;
};

TEST_F(CheckpointStreamTest, EveryOrderOfCallsGivesTheLayers) {
  // 6: elements at odd addresses of fp32. 1: of every type.
  for (const auto& [stored, dtype, blanks, num_shards] :
       {std::tuple(DType::kBF16, DType::kBF16, 0, 1), std::tuple(DType::kF32, DType::kBF16, 6, 2),
        std::tuple(DType::kF16, DType::kF32, 1, 1),
        std::tuple(DType::kBF16, DType::kBF16, 4090, 3)}) {
    values_.clear();
    MakeModel(stored, static_cast<size_t>(blanks), num_shards);
    Open(dtype);
    std::mt19937 random(7);
    std::vector<int> started;
    for (int call = 0; call < 400; ++call) {
      const int layer = static_cast<int>(random() % kLayers);
      const bool is_started = std::ranges::count(started, layer) > 0;
      const unsigned what = random() % 8;
      if (what == 0) {
        stream_->Expect(layer);
      } else if (!is_started) {
        stream_->Start(layer);
        started.push_back(layer);
      } else if (what == 1) {
        stream_->Drop(layer);
        std::erase(started, layer);
      } else {
        // Mostly in order.
        const int next = what == 2 ? layer : started.front();
        ExpectLayer(next);
        std::erase(started, next);
      }
      if (HasFatalFailure()) return;
    }
    stream_.reset();  // with transfers on their way
    EXPECT_EQ(budget_.used_bytes(), 0);
  }
}

TEST_F(CheckpointStreamTest, ReadsAheadWhereTheDiskIsDirect) {
  MakeModel(DType::kBF16, 0);
  if (!DiskIsDirect())
    GTEST_SKIP() << testing::TempDir() << " is on a file system without direct I/O";
  Open(DType::kBF16);
  EXPECT_TRUE(stream_->reads_ahead());
  EXPECT_EQ(budget_.used_bytes(), CheckpointStream::StagingBytes(40'000));
  Open(DType::kBF16, 0);
  EXPECT_FALSE(stream_->reads_ahead());
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(CheckpointStreamTest, WithoutReadingAheadLayersAreReadAsTheyAreAskedFor) {
  MakeModel(DType::kF16, 0);
  Open(DType::kBF16, 0);
  for (const int layer : {3, 0, 1}) {
    stream_->Start(layer);
    ExpectLayer(layer);
  }
}

TEST_F(CheckpointStreamTest, AFileThatTakesItsPlaceIsNotRead) {
  MakeModel(DType::kBF16, 0);
  std::string other(static_cast<size_t>(std::filesystem::file_size(Path("model.safetensors"))),
                    'x');
  Write("model.safetensors", other);  // another file of this name
  Open(DType::kBF16);
  for (int layer = 0; layer < kLayers; ++layer) {
    stream_->Start(layer);
    ExpectLayer(layer);
  }
}

TEST_F(CheckpointStreamTest, AModelThatChangesWhileItIsReadIsNoticed) {
  MakeModel(DType::kBF16, 0);
  Open(DType::kBF16);
  ASSERT_EQ(::truncate(Path("model.safetensors").c_str(), 10'000), 0);
  std::vector<std::byte> out(200'000);
  absl::Status status;
  for (int layer = 0; layer < kLayers && status.ok(); ++layer) {
    stream_->Start(layer);
    status = stream_->Finish(layer, out);
  }
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
  EXPECT_THAT(status.message(), HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace forebay
