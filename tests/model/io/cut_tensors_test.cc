#include "forebay/model/files/cut_tensors.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/base/round_up.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using How = TensorPiece::How;

constexpr int64_t kGapElems = 64;

// Tensors that follow one another in a file, in another order than in their layer.
class CutTensorsTest : public testing::Test {
 protected:
  // `begin_bytes`: of the first tensor in the file. `tail_bytes`: of the file behind the last.
  void Lay(int64_t begin_bytes, std::vector<int64_t> sizes, std::string_view stored = "BF16",
           int64_t tail_bytes = 0) {
    sources_.assign(sizes.size(), {});
    tensors_.clear();
    const int64_t elem_bytes = stored == "F32" ? 4 : 2;
    int64_t file_at = begin_bytes;
    for (size_t i = 0; i < sizes.size(); ++i) {
      sources_[i].entry.dtype_name = stored;
      const int64_t end = file_at + sizes[i] * elem_bytes;
      tensors_.push_back({&sources_[i], {file_at, end, 0}, 0, sizes[i], true});
      file_at = end;
    }
    int64_t vector_at = 0;
    for (size_t i = tensors_.size(); i-- > 0;) {
      tensors_[i].offset_elems = vector_at;
      vector_at = RoundUp(vector_at + tensors_[i].num_elems, kGapElems);
      tensors_[i].place.file_bytes = file_at + tail_bytes;
    }
  }
  CutLayer Cut(DType dtype, int64_t memory_align_bytes, int64_t piece_bytes = 8192) {
    const CutOptions options{dtype, piece_bytes, memory_align_bytes};
    CutLayer layer = CutTensors(tensors_, options);
    Check(layer, options);
    return layer;
  }
  int64_t BytesInPlace(const CutLayer& layer, bool moved) const {
    int64_t bytes = 0;
    for (const TensorPiece& piece : layer.pieces) {
      if (piece.how == How::kInPlace && (piece.before_bytes > 0) == moved)
        bytes += piece.until_bytes - piece.from_bytes;
    }
    return bytes;
  }

 private:
  // Every element comes to its place once, and nothing is written outside of its tensor.
  void Check(const CutLayer& layer, const CutOptions& options) const {
    const int64_t elem_bytes = SizeOf(options.dtype);
    EXPECT_TRUE(std::ranges::is_sorted(
        layer.pieces, {}, [](const TensorPiece& piece) { return piece.how != How::kInPlace; }));
    for (const PlacedTensor& tensor : tensors_) {
      const int64_t stored_bytes =
          tensor.num_elems == 0
              ? 1
              : (tensor.place.end_bytes - tensor.place.begin_bytes) / tensor.num_elems;
      std::vector<std::pair<int64_t, int64_t>> elems;  // of the pieces: from, until
      for (const TensorPiece& piece : layer.pieces) {
        if (piece.source != tensor.source) continue;
        elems.emplace_back(piece.first_elem, piece.first_elem + piece.num_elems);
        EXPECT_EQ(piece.target_elem, tensor.offset_elems + piece.first_elem);
        const int64_t at = tensor.place.begin_bytes + piece.first_elem * stored_bytes;
        if (piece.how == How::kByReader) continue;
        EXPECT_EQ(piece.from_bytes % kIoAlignBytes, 0);
        EXPECT_EQ(piece.until_bytes % kIoAlignBytes, 0);
        EXPECT_LE(piece.until_bytes, tensor.place.file_bytes);
        EXPECT_EQ(piece.from_bytes + piece.skip_bytes, at);
        EXPECT_GE(piece.until_bytes, at + piece.num_elems * stored_bytes);
        if (piece.how == How::kStaged) {
          EXPECT_LE(piece.until_bytes - piece.from_bytes, options.piece_bytes);
          continue;
        }
        EXPECT_EQ(piece.skip_bytes, 0);
        EXPECT_EQ(piece.until_bytes - piece.from_bytes, piece.num_elems * elem_bytes);
        const int64_t target =
            layer.shift_bytes + piece.target_elem * elem_bytes - piece.before_bytes;
        EXPECT_EQ(target % options.memory_align_bytes, 0);
        EXPECT_GE(target, layer.shift_bytes + tensor.offset_elems * elem_bytes);
      }
      std::ranges::sort(elems);
      int64_t covered = 0;
      for (const auto& [from, until] : elems) {
        EXPECT_EQ(from, covered);
        covered = until;
      }
      EXPECT_EQ(covered, tensor.num_elems);
    }
    EXPECT_GE(layer.shift_bytes, 0);
    EXPECT_LT(layer.shift_bytes, kIoAlignBytes);
    EXPECT_EQ(layer.shift_bytes % elem_bytes, 0);
  }

  std::vector<CheckpointReader::Tensor> sources_;
  std::vector<PlacedTensor> tensors_;
};

TEST_F(CutTensorsTest, TensorsOfWholeBlocksAreReadInPlaceWhereverTheFileBegins) {
  for (const int64_t begin : {0, 8, 504, 2, 4094}) {
    for (const int64_t align : {4, 512, 4096}) {
      Lay(8192 + begin, {2048 * 5, 2048, 2048 * 3}, "BF16", 4096);
      const CutLayer layer = Cut(DType::kBF16, align);
      EXPECT_EQ(layer.shift_bytes, begin % align);
      // A tensor that begins inside of a block loses one to its ends.
      EXPECT_EQ(BytesInPlace(layer, false), begin == 0 ? 9 * 4096 : 6 * 4096) << begin;
      EXPECT_EQ(BytesInPlace(layer, true), 0);
    }
  }
}

TEST_F(CutTensorsTest, WhatDoesNotSuitTheOthersIsMoved) {
  // The norm between them moves the second by 1152 bytes in the file, and not in the layer.
  Lay(8, {2048 * 8, 576, 2048 * 4}, "BF16", 8192);
  for (const int64_t align : {512, 4096}) {
    const CutLayer layer = Cut(DType::kBF16, align);
    EXPECT_EQ(BytesInPlace(layer, false), 7 * 4096);
    EXPECT_GE(BytesInPlace(layer, true), 2 * 4096);
  }
  EXPECT_EQ(BytesInPlace(Cut(DType::kBF16, 4), true), 0);
}

TEST_F(CutTensorsTest, WhatIsConvertedAndWhatIsShortIsStaged) {
  Lay(8, {2048 * 8, 4000}, "F32", 4096);
  CutLayer layer = Cut(DType::kBF16, 4);
  EXPECT_EQ(layer.shift_bytes, 0);
  EXPECT_THAT(layer.pieces, testing::Each(testing::Field(&TensorPiece::how, How::kStaged)));
  Lay(504, {100, 1500, 3}, "BF16", 8192);
  layer = Cut(DType::kBF16, 4);
  EXPECT_THAT(layer.pieces, testing::Each(testing::Field(&TensorPiece::how, How::kStaged)));
}

TEST_F(CutTensorsTest, TheReaderReadsTheEndOfTheFileAndElementsAtOddAddresses) {
  Lay(8, {2048 * 3}, "BF16");
  CutLayer layer = Cut(DType::kBF16, 4);
  EXPECT_EQ(BytesInPlace(layer, false), 2 * 4096);
  EXPECT_EQ(layer.pieces.back().how, How::kByReader);
  EXPECT_EQ(layer.pieces.back().num_elems, 4);
  Lay(7, {2048 * 3}, "BF16", 8192);
  layer = Cut(DType::kBF16, 4);
  ASSERT_EQ(layer.pieces.size(), 1u);
  EXPECT_EQ(layer.pieces[0].how, How::kByReader);
}

TEST_F(CutTensorsTest, LongTensorsComeInSeveralParts) {
  Lay(4096, {10 << 20}, "BF16");
  const CutLayer layer = Cut(DType::kBF16, 4);
  EXPECT_EQ(layer.pieces.size(), 3u);
  EXPECT_EQ(BytesInPlace(layer, false), 20 << 20);
}

TEST_F(CutTensorsTest, EveryLayoutIsCovered) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    std::vector<int64_t> sizes(1 + random() % 6);
    for (int64_t& size : sizes) {
      size = random() % 4 == 0 ? static_cast<int64_t>(random() % 200)
                               : static_cast<int64_t>(1 + random() % 24) * 1024;
      if (random() % 2 == 0) size += static_cast<int64_t>(random() % 3000);
    }
    const bool is_wide = random() % 3 == 0;
    Lay(static_cast<int64_t>(random() % 9000), sizes, is_wide ? "F32" : "BF16",
        static_cast<int64_t>(random() % 9000));
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const int64_t align : {1, 4, 512, 4096}) Cut(dtype, align, 4096 << (random() % 3));
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace forebay
