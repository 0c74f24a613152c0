#include "forebay/model/files/checkpoint_stream.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/round_up.h"
#include "forebay/base/tensor_spec.h"
#include "gmock/gmock.h"
#include "sample_files.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int kLayers = 5;
constexpr int kPartsPerLayer = 4;
constexpr std::byte kUntouched{0x7f};

struct alignas(kIoAlignBytes) Page {
  std::array<std::byte, kIoAlignBytes> bytes;
};

// Layers whose tensors have sizes from a few elements to several pieces, in the file in another
// order than in the layers, with gaps in the layers.
class CheckpointStreamTest : public FolderTest {
 protected:
  // `residue`: of the first tensor in its file, behind a multiple of kIoAlignBytes. `size_unit`:
  // what sizes are multiples of, in elements.
  void MakeModel(DType stored, int64_t residue, int num_shards = 1, int64_t size_unit = 1) {
    std::mt19937 random(1);
    stored_ = stored;
    values_.clear();
    std::filesystem::remove(Path("model.safetensors"));  // which would come before shards
    std::vector<std::vector<SampleTensor>> shards(static_cast<size_t>(num_shards));
    std::map<std::string, std::string> weight_map;
    for (int i = 0; i < kLayers * kPartsPerLayer; ++i) {
      SampleTensor tensor{.name = "t" + std::to_string(i), .dtype = stored};
      const int64_t num_elems =
          i % kPartsPerLayer == 0
              ? 3 * size_unit
              : RoundUp(1000 + static_cast<int64_t>(random() % 9000), size_unit);
      tensor.shape = {num_elems};
      for (int64_t j = 0; j < num_elems; ++j)
        tensor.values.push_back(static_cast<float>(random() % 255) - 127);
      values_.push_back(tensor.values);
      const auto shard = static_cast<size_t>(i % num_shards);
      weight_map[tensor.name] = FileOf(static_cast<int>(shard), num_shards);
      shards[shard].insert(shards[shard].begin(), std::move(tensor));
    }
    for (int shard = 0; shard < num_shards; ++shard) {
      Write(FileOf(shard, num_shards),
            WithTensorsAt(MakeSafetensors(shards[static_cast<size_t>(shard)]), residue));
    }
    if (num_shards > 1) WriteIndex(weight_map);
    reader_ = CheckpointReader::Open(directory_).value();
  }
  static std::string FileOf(int shard, int num_shards) {
    return num_shards == 1 ? "model.safetensors" : "shard" + std::to_string(shard) + ".safetensors";
  }
  void Open(DType dtype, int64_t layer_bytes = 40'000) {
    stream_.reset();  // before its memory
    options_ = {dtype, layer_bytes, stored_ != dtype};
    layers_.clear();
    memory_.clear();
    std::vector<std::vector<CheckpointStream::Part>> layers(kLayers);
    for (int i = 0; i < kLayers * kPartsPerLayer; ++i) {
      std::vector<CheckpointStream::Part>& parts = layers[static_cast<size_t>(i / kPartsPerLayer)];
      const int64_t offset =
          parts.empty()
              ? 0
              : RoundUp(parts.back().offset_elems + parts.back().num_elems, kTensorAlignElems);
      parts.push_back({reader_->Find("t" + std::to_string(i)), offset,
                       std::ssize(values_[static_cast<size_t>(i)])});
    }
    layers_ = layers;
    stream_ = CheckpointStream::Create(*reader_, layers, options_, &budget_).value();
    for (int layer = 0; layer < kLayers; ++layer) {
      const int64_t end_bytes = stream_->ShiftBytes(layer) + VectorBytes(layer);
      memory_.emplace_back(static_cast<size_t>(end_bytes / kIoAlignBytes + 2));
    }
  }
  int64_t VectorBytes(int layer) const {
    const CheckpointStream::Part& last = layers_[static_cast<size_t>(layer)].back();
    return (last.offset_elems + last.num_elems) * SizeOf(options_.dtype);
  }
  std::span<std::byte> MemoryOf(int layer) {
    return std::as_writable_bytes(std::span(memory_[static_cast<size_t>(layer)]));
  }
  std::span<std::byte> VectorOf(int layer) {
    return MemoryOf(layer).subspan(static_cast<size_t>(stream_->ShiftBytes(layer)),
                                   static_cast<size_t>(VectorBytes(layer)));
  }
  void Start(int layer) {
    std::ranges::fill(MemoryOf(layer), kUntouched);
    stream_->Start(layer, VectorOf(layer));
  }
  // Finishes the layer, and looks at every element, every gap, and what lies around it.
  void ExpectLayer(int layer) {
    const absl::Status status = stream_->Finish(layer);
    ASSERT_TRUE(status.ok()) << status;
    const auto& parts = layers_[static_cast<size_t>(layer)];
    std::string expected(MemoryOf(layer).size(), '\x7f');
    for (size_t part = 0; part < parts.size(); ++part) {
      const std::string encoded =
          Encode(options_.dtype, values_[static_cast<size_t>(layer) * kPartsPerLayer + part]);
      const int64_t offset_bytes = parts[part].offset_elems * SizeOf(options_.dtype);
      expected.replace(static_cast<size_t>(stream_->ShiftBytes(layer) + offset_bytes),
                       encoded.size(), encoded);
    }
    ASSERT_TRUE(std::ranges::equal(MemoryOf(layer), BytesOf(expected))) << "layer " << layer;
  }
  bool DiskIsDirect() const {
    const UniqueFd fd = OpenFile(Path("model.safetensors"), O_RDONLY).value();
    return SwitchToDirect(fd.get()).empty();
  }
  int64_t MemoryAlign() const {
    const UniqueFd fd = OpenFile(Path("model.safetensors"), O_RDONLY).value();
    return DirectMemoryAlign(fd.get());
  }

  std::vector<std::vector<float>> values_;  // by tensor
  DType stored_ = DType::kF32;
  std::unique_ptr<CheckpointReader> reader_;
  std::vector<std::vector<CheckpointStream::Part>> layers_;
  std::vector<std::vector<Page>> memory_;  // by layer
  CheckpointStream::Options options_;
  MemoryBudget budget_{0};
  std::unique_ptr<CheckpointStream> stream_;
};

TEST_F(CheckpointStreamTest, EveryOrderOfCallsGivesTheLayers) {
  // 6: elements at odd addresses of fp32. 1: of every type.
  for (const auto& [stored, dtype, residue, num_shards, size_unit] :
       {std::tuple(DType::kBF16, DType::kBF16, 0, 1, 1),
        std::tuple(DType::kBF16, DType::kBF16, 8, 1, 2048),
        std::tuple(DType::kBF16, DType::kBF16, 504, 2, 256),
        std::tuple(DType::kBF16, DType::kBF16, 2, 1, 64),
        std::tuple(DType::kF32, DType::kF32, 504, 1, 64),
        std::tuple(DType::kF32, DType::kBF16, 6, 2, 1),
        std::tuple(DType::kF32, DType::kBF16, 8, 1, 2048),
        std::tuple(DType::kF16, DType::kF32, 1, 1, 1),
        std::tuple(DType::kBF16, DType::kBF16, 4090, 3, 1)}) {
    SCOPED_TRACE(testing::Message() << "residue " << residue << ", unit " << size_unit);
    MakeModel(stored, residue, num_shards, size_unit);
    Open(dtype);
    std::mt19937 random(7);
    std::vector<int> started;
    for (int call = 0; call < 400; ++call) {
      const int layer = static_cast<int>(random() % kLayers);
      const bool is_started = std::ranges::count(started, layer) > 0;
      const unsigned what = random() % 8;
      if (!is_started) {
        Start(layer);
        started.push_back(layer);
      } else if (what == 0) {
        ASSERT_TRUE(stream_->FinishPart(random() % 4 == 0 ? layer : started.front()).ok());
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
  EXPECT_EQ(budget_.used_bytes(), CheckpointStream::StagingBytes(options_));
  Open(DType::kBF16, 0);
  EXPECT_FALSE(stream_->reads_ahead());
  EXPECT_EQ(budget_.used_bytes(), 0);
}

TEST_F(CheckpointStreamTest, WithoutReadingAheadLayersAreReadAsTheyAreAskedFor) {
  MakeModel(DType::kF16, 0);
  Open(DType::kBF16, 0);
  for (const int layer : {3, 0, 1}) {
    Start(layer);
    ExpectLayer(layer);
  }
}

TEST_F(CheckpointStreamTest, LayersBeginWhereTheyNeedNoCopy) {
  for (const int64_t residue : {0, 8, 504, 2}) {
    MakeModel(DType::kBF16, residue, 1, 2048);
    if (!DiskIsDirect())
      GTEST_SKIP() << testing::TempDir() << " is on a file system without direct I/O";
    Open(DType::kBF16);
    for (int layer = 0; layer < kLayers; ++layer) {
      EXPECT_EQ(stream_->ShiftBytes(layer), residue % MemoryAlign());
    }
    // What is converted, and what is not read ahead, may lie as the kernels like it.
    Open(DType::kF32);
    EXPECT_EQ(stream_->ShiftBytes(0), 0);
    Open(DType::kBF16, 0);
    EXPECT_EQ(stream_->ShiftBytes(0), 0);
  }
}

TEST_F(CheckpointStreamTest, WithoutConversionStagingIsSmall) {
  const int64_t layer_bytes = int64_t{100} << 20;
  EXPECT_EQ(CheckpointStream::StagingBytes({DType::kBF16, layer_bytes, false}), 1 << 20);
  EXPECT_EQ(CheckpointStream::StagingBytes({DType::kBF16, layer_bytes, true}), 32 << 20);
}

TEST_F(CheckpointStreamTest, AFileSystemWithoutDirectIoGivesTheLayersToo) {
  std::string folder = "/dev/shm/forebay-model-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) GTEST_SKIP() << "/dev/shm cannot be written to";
  std::filesystem::remove_all(std::exchange(directory_, folder));
  MakeModel(DType::kBF16, 8, 2, 2048);
  Open(DType::kBF16);
  for (int layer = 0; layer < kLayers; ++layer) Start(layer);
  for (int layer = 0; layer < kLayers; ++layer) {
    while (*stream_->FinishPart(layer)) continue;
    ExpectLayer(layer);
  }
}

TEST_F(CheckpointStreamTest, NothingIsReadIntoALayerThatWasDropped) {
  MakeModel(DType::kBF16, 8, 1, int64_t{1} << 18);
  Open(DType::kBF16);
  for (int layer = 0; layer < kLayers; ++layer) Start(layer);
  for (int layer = kLayers - 1; layer >= 0; --layer) {
    stream_->Drop(layer);
    std::ranges::fill(MemoryOf(layer), kUntouched);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for what it should not do
  for (int layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(std::ranges::count(MemoryOf(layer), kUntouched), std::ssize(MemoryOf(layer)));
  }
}

TEST_F(CheckpointStreamTest, AFileThatTakesItsPlaceIsNotRead) {
  MakeModel(DType::kBF16, 0);
  std::string other(static_cast<size_t>(std::filesystem::file_size(Path("model.safetensors"))),
                    'x');
  Write("model.safetensors", other);  // another file of this name
  Open(DType::kBF16);
  for (int layer = 0; layer < kLayers; ++layer) {
    Start(layer);
    ExpectLayer(layer);
  }
}

TEST_F(CheckpointStreamTest, AModelThatChangesWhileItIsReadIsNoticed) {
  for (const int64_t size_unit : {1, 2048}) {
    MakeModel(DType::kBF16, 0, 1, size_unit);
    Open(DType::kBF16);
    ASSERT_EQ(::truncate(Path("model.safetensors").c_str(), 10'000), 0);
    absl::Status status;
    for (int layer = 0; layer < kLayers; ++layer) {
      Start(layer);
      status.Update(stream_->Finish(layer));
      if (!status.ok()) stream_->Drop(layer);
      if (!status.ok()) break;
    }
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
    EXPECT_THAT(status.message(), HasSubstr("model.safetensors"));
  }
}

}  // namespace
}  // namespace forebay
