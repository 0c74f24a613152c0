#include "forebay/data/packed_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>

#include "fmt/format.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "packed_bytes.h"

namespace forebay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PackedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + "/" +
            testing::UnitTest::GetInstance()->current_test_info()->name() + ".packed";
  }
  void TearDown() override { std::filesystem::remove(path_); }

  absl::StatusOr<std::unique_ptr<PackedFile>> OpenBytes(const std::string& bytes) {
    std::filesystem::remove(
        path_);  // ext4 flushes files that are truncated and written again: 3 ms each
    std::ofstream(path_, std::ios::binary) << bytes;
    return PackedFile::Open(path_);
  }
  // The message that a file with one change is refused with.
  std::string Refusal(const std::function<void(PackedBytes&)>& change) {
    PackedBytes fields;
    change(fields);
    const auto file = OpenBytes(fields.Encode());
    EXPECT_FALSE(file.ok());
    EXPECT_EQ(ExitCodeOf(file.status()), ExitCode::kBadInput);
    EXPECT_THAT(MessageOf(file.status()), HasSubstr(path_));
    return MessageOf(file.status());
  }

  std::string path_;
};

TEST_F(PackedFileTest, HeaderValuesAreGiven) {
  const auto file = OpenBytes(PackedBytes().Encode());
  ASSERT_TRUE(file.ok()) << file.status();
  const PackedFileInfo& info = (*file)->info();
  EXPECT_EQ(info.num_rows, 2);
  EXPECT_EQ(info.seq, 4);
  EXPECT_EQ(info.vocab_size, 10);
  EXPECT_EQ(info.num_tokens, 7);
  EXPECT_EQ(info.num_trained, 3);
  EXPECT_EQ(info.num_samples, 3);
  EXPECT_EQ(info.longest_segment, 3);
  EXPECT_EQ(info.digest.size(), 32u);
  EXPECT_EQ(info.tokenizer_digest, "abc");
  EXPECT_EQ(info.provenance, Json({{"seq", 4}}));
  EXPECT_EQ((*file)->path(), path_);
}

TEST_F(PackedFileTest, TargetsAreTheNextTrainedTokensOfTheSameSegment) {
  const auto file = OpenBytes(PackedBytes().Encode());
  ASSERT_TRUE(file.ok());
  MicroBatch batch;
  ASSERT_TRUE((*file)->ReadRows(std::vector<int64_t>{0, 1}, batch).ok());
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3, 4, 5, 6, 7, 0));
  EXPECT_THAT(batch.targets, ElementsAre(2, -1, -1, -1, 6, 7, -1, -1));
  EXPECT_EQ(batch.num_trained, 3);
  EXPECT_EQ(batch.num_tokens, 7);
}

TEST_F(PackedFileTest, PositionsRestartWithEverySegment) {
  const auto file = OpenBytes(PackedBytes().Encode());
  ASSERT_TRUE(file.ok());
  MicroBatch batch;
  ASSERT_TRUE((*file)->ReadRows(std::vector<int64_t>{0, 1}, batch).ok());
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 0, 1, 0, 1, 2, 0));
}

TEST_F(PackedFileTest, PaddingBelongsToNoSegment) {
  const auto file = OpenBytes(PackedBytes().Encode());
  ASSERT_TRUE(file.ok());
  MicroBatch batch;
  ASSERT_TRUE((*file)->ReadRows(std::vector<int64_t>{1, 0}, batch).ok());
  const auto is = [](int64_t begin, int64_t length) {
    return testing::AllOf(testing::Field(&Segment::begin, begin),
                          testing::Field(&Segment::length, length));
  };
  EXPECT_THAT(batch.segments, ElementsAre(is(0, 3), is(4, 2), is(6, 2)));
}

TEST_F(PackedFileTest, RowsComeInTheOrderAskedForAndReplaceTheBatch) {
  const auto file = OpenBytes(PackedBytes().Encode());
  ASSERT_TRUE(file.ok());
  MicroBatch batch;
  ASSERT_TRUE((*file)->ReadRows(std::vector<int64_t>{1, 0}, batch).ok());
  EXPECT_THAT(batch.tokens, ElementsAre(5, 6, 7, 0, 1, 2, 3, 4));
  ASSERT_TRUE((*file)->ReadRows(std::vector<int64_t>{0}, batch).ok());
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(batch.num_trained, 1);
  EXPECT_EQ(batch.segments.size(), 2u);
}

TEST_F(PackedFileTest, MemoryOfTheBatchIsReused) {
  const auto file = OpenBytes(PackedBytes().Encode());
  ASSERT_TRUE(file.ok());
  MicroBatch batch;
  ASSERT_TRUE((*file)->ReadRows(std::vector<int64_t>{0, 1}, batch).ok());
  const int32_t* tokens = batch.tokens.data();
  const Segment* segments = batch.segments.data();
  ASSERT_TRUE((*file)->ReadRows(std::vector<int64_t>{1, 0}, batch).ok());
  EXPECT_EQ(batch.tokens.data(), tokens);
  EXPECT_EQ(batch.segments.data(), segments);
}

TEST_F(PackedFileTest, FileThatShrankSinceOpenIsRefused) {
  const auto file = OpenBytes(PackedBytes().Encode());
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path_, 8192);
  MicroBatch batch;
  const absl::Status status = (*file)->ReadRows(std::vector<int64_t>{0}, batch);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), HasSubstr("ends before row 0"));
}

// Writes the whole file in its place, as a reader has it open.
void Overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::in) << bytes;
}

TEST_F(PackedFileTest, AnyByteOfARowThatChangedSinceOpenIsRefusedWithTheRow) {
  const std::string good = PackedBytes().Encode();
  const auto file = OpenBytes(good);
  ASSERT_TRUE(file.ok());
  MicroBatch batch;
  const size_t flags_at = 8192 + 8 * 4;
  const size_t checksums_at = flags_at + 8;
  for (size_t at = 8192; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    Overwrite(path_, bad);
    const int64_t row = at < flags_at       ? (at - 8192) / 16
                        : at < checksums_at ? (at - flags_at) / 4
                                            : (at - checksums_at) / 8;
    const absl::Status status = (*file)->ReadRows(std::vector<int64_t>{0, 1}, batch);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput) << "byte " << at;
    EXPECT_THAT(MessageOf(status), HasSubstr(path_));
    EXPECT_THAT(MessageOf(status), HasSubstr(fmt::format("row {} does not match", row)));
    EXPECT_TRUE((*file)->ReadRows(std::vector<int64_t>{1 - row}, batch).ok()) << "the other row";
  }
}

TEST_F(PackedFileTest, AnotherFileInThePlaceOfTheOpenOneIsRefused) {
  const auto file = OpenBytes(PackedBytes().Encode());
  ASSERT_TRUE(file.ok());
  PackedBytes other;
  other.tokens[5] = 9;  // of row 1; its checksums are right
  Overwrite(path_, other.Encode());
  MicroBatch batch;
  for (const int64_t row : {0, 1}) {
    const absl::Status status = (*file)->ReadRows(std::vector<int64_t>{row}, batch);
    EXPECT_THAT(MessageOf(status), HasSubstr(fmt::format("row {} does not match", row)));
  }
  Overwrite(path_, PackedBytes().Encode());
  EXPECT_TRUE((*file)->ReadRows(std::vector<int64_t>{0, 1}, batch).ok()) << "the same again";
}

TEST_F(PackedFileTest, RowsThatChangedPlacesAreRefused) {
  const auto file = OpenBytes(PackedBytes().Encode());
  ASSERT_TRUE(file.ok());
  std::string swapped = PackedBytes().Encode();
  const auto swap_rows = [&](size_t begin, size_t size) {
    std::swap_ranges(swapped.begin() + begin, swapped.begin() + begin + size,
                     swapped.begin() + begin + size);
  };
  swap_rows(8192, 16);
  swap_rows(8192 + 32, 4);
  swap_rows(8192 + 40, 8);
  Overwrite(path_, swapped);
  MicroBatch batch;
  EXPECT_FALSE((*file)->ReadRows(std::vector<int64_t>{0}, batch).ok());
  EXPECT_FALSE((*file)->ReadRows(std::vector<int64_t>{1}, batch).ok());
}

TEST_F(PackedFileTest, MissingFileIsBadInput) {
  EXPECT_EQ(ExitCodeOf(PackedFile::Open("/nonexistent.packed").status()), ExitCode::kBadInput);
}

TEST_F(PackedFileTest, MagicTellsPackedFiles) {
  ASSERT_TRUE(OpenBytes(PackedBytes().Encode()).ok());
  EXPECT_TRUE(IsPackedFile(path_));
  ASSERT_FALSE(OpenBytes("{\"text\": \"FBPACKED\"}").ok());
  EXPECT_FALSE(IsPackedFile(path_));
  EXPECT_FALSE(IsPackedFile("/nonexistent.packed"));
}

TEST_F(PackedFileTest, RowLengthIsReadFromTheHeaderAlone) {
  ASSERT_TRUE(OpenBytes(PackedBytes().Encode()).ok());
  EXPECT_EQ(PackedRowTokens(path_), 4);
  ASSERT_FALSE(OpenBytes(PackedBytes().Encode().substr(0, 200)).ok());
  EXPECT_EQ(PackedRowTokens(path_), 4);
  PackedBytes old;
  old.version = 1;
  ASSERT_FALSE(OpenBytes(old.Encode()).ok());
  EXPECT_EQ(PackedRowTokens(path_), 4);
  PackedBytes absurd;
  absurd.seq = uint64_t{1} << 40;
  ASSERT_FALSE(OpenBytes(absurd.Encode()).ok());
  EXPECT_EQ(PackedRowTokens(path_), std::nullopt);
  EXPECT_EQ(PackedRowTokens("/nonexistent.packed"), std::nullopt);
}

// Whoever opened it would wait for a writer, and spoil it for the one who is meant to read it.
TEST_F(PackedFileTest, NoPipeIsOpenedToSeeWhetherItIsPacked) {
  std::remove(path_.c_str());
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_FALSE(IsPackedFile(path_));
  EXPECT_EQ(PackedRowTokens(path_), std::nullopt);
}

TEST_F(PackedFileTest, OtherFormatsAreRefused) {
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.magic = "PK\3\4ABCD"; }),
              HasSubstr("not a packed token file"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.version = 1; }), HasSubstr("version 1"));
}

TEST_F(PackedFileTest, ImpossibleSizesAreRefused) {
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.num_rows = 0; }), HasSubstr("claims 0 rows"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.num_rows = uint64_t{1} << 63; }), HasSubstr("claims"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.seq = 1; }), HasSubstr("claims"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.seq = uint64_t{1} << 62; }), HasSubstr("claims"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.vocab_size = 0; }), HasSubstr("claims"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.vocab_size = uint64_t{1} << 31; }),
              HasSubstr("claims"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.num_rows = 3; }), HasSubstr("bytes, its header says"));
}

TEST_F(PackedFileTest, CountsThatContradictTheContentAreRefused) {
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.num_tokens = 6; }),
              HasSubstr("counts its tokens wrong"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.num_tokens = 9; }), HasSubstr("contradict"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.num_trained = 2; }),
              HasSubstr("counts its trained tokens wrong"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.num_samples = 0; }), HasSubstr("contradict"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.longest_segment = 4; }),
              HasSubstr("longest segment wrong"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.num_trained = 0; }), HasSubstr("no trained token"));
}

TEST_F(PackedFileTest, TokensOutsideTheVocabularyAreRefused) {
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.tokens[3] = 10; }), HasSubstr("has the token 10"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.tokens[7] = 0xffffffff; }),
              HasSubstr("has the token 4294967295"));
}

TEST_F(PackedFileTest, FlagsThatMakeNoSenseAreRefused) {
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.flags[0] = 0; }),
              HasSubstr("does not start with a segment"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.flags[4] = 4; }), HasSubstr("all padding"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.flags[5] = 4; }), HasSubstr("follows padding"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.flags[2] = 3; }), HasSubstr("do not go together"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.flags[7] = 5; }), HasSubstr("do not go together"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.flags[1] = 128; }), HasSubstr("do not go together"));
}

TEST_F(PackedFileTest, InfoMustBeTheExpectedObject) {
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.info = "{"; }), HasSubstr("not valid JSON"));
  EXPECT_THAT(Refusal([](PackedBytes& f) { f.info = "[]"; }), HasSubstr("lacks"));
  EXPECT_THAT(
      Refusal([](PackedBytes& f) { f.info = R"({"tokenizer_digest": 1, "provenance": {}})"; }),
      HasSubstr("lacks"));
}

TEST_F(PackedFileTest, EveryChangedByteOfTheHeaderIsNoticed) {
  const std::string good = PackedBytes().Encode();
  const size_t info_end = 4096 + PackedBytes().info.size();
  for (size_t i = 0; i < info_end; i = i == 100 ? 4080 : i + 1) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_FALSE(OpenBytes(bad).ok()) << "byte " << i;
  }
}

TEST_F(PackedFileTest, EveryChangedByteOfTheContentIsNoticed) {
  const std::string good = PackedBytes().Encode();
  for (size_t i = 8192; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x01);
    EXPECT_FALSE(OpenBytes(bad).ok()) << "byte " << i;
  }
}

TEST_F(PackedFileTest, EveryTruncationIsNoticed) {
  const std::string good = PackedBytes().Encode();
  for (const size_t size : {size_t{0}, size_t{7}, size_t{4095}, size_t{4096}, size_t{4100},
                            size_t{8192}, good.size() - 1}) {
    EXPECT_FALSE(OpenBytes(good.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(OpenBytes(good + "x").ok());
}

// Random headers with right checksums: whatever opens must also be readable.
TEST_F(PackedFileTest, RandomFieldsNeverLeadOutsideTheFile) {
  const CounterRng rng(7);
  uint64_t draw = 0;
  int num_opened = 0;
  for (int round = 0; round < 3000; ++round) {
    PackedBytes fields;
    const auto small = [&](uint64_t bound) { return rng.Below(draw++, bound); };
    uint64_t* const values[] = {&fields.num_rows,       &fields.seq,         &fields.vocab_size,
                                &fields.num_tokens,     &fields.num_trained, &fields.num_samples,
                                &fields.longest_segment};
    for (uint64_t changes = small(3); changes > 0; --changes) {
      *values[small(std::size(values))] = small(4) == 0 ? rng.Bits64(draw++) : small(9);
    }
    for (uint64_t changes = small(3); changes > 0; --changes) {
      fields.flags[small(8)] = static_cast<uint8_t>(small(6));
    }
    const auto file = OpenBytes(fields.Encode());
    if (!file.ok()) continue;
    ++num_opened;
    MicroBatch batch;
    for (int64_t row = 0; row < (*file)->info().num_rows; ++row) {
      EXPECT_TRUE((*file)->ReadRows(std::vector<int64_t>{row}, batch).ok());
    }
  }
  EXPECT_GT(num_opened, 0);
}

}  // namespace
}  // namespace forebay
