#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "forebay/base/errors.h"
#include "forebay/model/files/safetensors.h"
#include "gmock/gmock.h"
#include "sample_files.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

class CheckpointReaderTest : public FolderTest {
 protected:
  std::unique_ptr<CheckpointReader> Open() const {
    absl::StatusOr<std::unique_ptr<CheckpointReader>> reader = CheckpointReader::Open(directory_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? *std::move(reader) : nullptr;
  }
  std::string OpenError() const {
    const absl::Status status = CheckpointReader::Open(directory_).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput) << status;
    return MessageOf(status);
  }
};

TEST_F(CheckpointReaderTest, ReadsEveryTypeAsFloats) {
  const std::vector<float> values = {1.5f, -2.0f, 0.0f, 65504.0f, 6.103515625e-05f};
  Write("model.safetensors", MakeSafetensors({{"f32", DType::kF32, {5}, values},
                                              {"bf16", DType::kBF16, {5}, values},
                                              {"f16", DType::kF16, {5}, values}}));
  const auto reader = Open();
  for (const char* name : {"f32", "f16"}) {
    std::vector<float> read(5);
    ASSERT_TRUE(reader->ReadF32(*reader->Find(name), 0, read).ok());
    EXPECT_EQ(read, values) << name;
  }
  std::vector<float> read(5);
  ASSERT_TRUE(reader->ReadF32(*reader->Find("bf16"), 0, read).ok());
  EXPECT_THAT(read, ElementsAre(1.5f, -2.0f, 0.0f, 65536.0f, 6.103515625e-05f));
}

TEST_F(CheckpointReaderTest, ReadsEveryTypeAsEitherHalf) {
  const std::vector<float> values = {1.5f, -2.0f, 1.00390625f, 1e-7f};
  Write("model.safetensors", MakeSafetensors({{"f32", DType::kF32, {4}, values},
                                              {"bf16", DType::kBF16, {4}, values},
                                              {"f16", DType::kF16, {4}, values}}));
  const auto reader = Open();
  const auto narrowed = [](float value, DType dtype) {
    return dtype == DType::kBF16 ? FloatToBf16(value) : FloatToFp16(value);
  };
  for (const char* name : {"f32", "bf16", "f16"}) {
    std::vector<float> exact(4);
    ASSERT_TRUE(reader->ReadF32(*reader->Find(name), 0, exact).ok());
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      std::vector<uint16_t> read(4);
      const auto bytes = std::as_writable_bytes(std::span(read));
      ASSERT_TRUE(reader->ReadAs(dtype, *reader->Find(name), 0, bytes).ok());
      for (size_t i = 0; i < read.size(); ++i) {
        EXPECT_EQ(read[i], narrowed(exact[i], dtype)) << name << " as " << NameOf(dtype);
      }
    }
  }
}

TEST_F(CheckpointReaderTest, ReadsPartsOfTensorsLargerThanItsStaging) {
  SampleTensor tensor{"w", DType::kBF16, {200, 1000}, {}};
  for (int i = 0; i < 200000; ++i) tensor.values.push_back(static_cast<float>(i % 251));
  Write("model.safetensors", MakeSafetensors({tensor}));
  const auto reader = Open();
  std::vector<float> read(150001);
  ASSERT_TRUE(reader->ReadF32(*reader->Find("w"), 777, read).ok());
  EXPECT_THAT(read,
              ElementsAreArray(tensor.values.begin() + 777, tensor.values.begin() + 777 + 150001));
}

TEST_F(CheckpointReaderTest, FindReturnsNullForUnknownNames) {
  Write("model.safetensors", MakeSafetensors({{"a", DType::kF32, {1}, {1}}}));
  EXPECT_EQ(Open()->Find("b"), nullptr);
}

TEST_F(CheckpointReaderTest, OtherTypesCannotBeReadAsNumbers) {
  Write("model.safetensors",
        RawSafetensors(R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})",
                       std::string(8, '\0')));
  const auto reader = Open();
  std::vector<float> read(1);
  const absl::Status status = reader->ReadF32(*reader->Find("ids"), 0, read);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr("'ids' has dtype I64"), HasSubstr("F32, BF16 and F16")));
}

TEST_F(CheckpointReaderTest, ReadsShards) {
  Write("model-00001-of-00002.safetensors", MakeSafetensors({{"a", DType::kF32, {2}, {1, 2}}}));
  Write("model-00002-of-00002.safetensors", MakeSafetensors({{"b", DType::kF32, {2}, {3, 4}}}));
  WriteIndex(
      {{"a", "model-00001-of-00002.safetensors"}, {"b", "model-00002-of-00002.safetensors"}});
  const auto reader = Open();
  std::vector<float> read(2);
  ASSERT_TRUE(reader->ReadF32(*reader->Find("b"), 0, read).ok());
  EXPECT_THAT(read, ElementsAre(3, 4));
  EXPECT_EQ(reader->ShardPath(reader->Find("b")->shard), Path("model-00002-of-00002.safetensors"));
}

TEST_F(CheckpointReaderTest, FollowsTheLinksOfHuggingFacesCache) {
  Write("blob", MakeSafetensors({{"a", DType::kF32, {1}, {5}}}));
  ASSERT_EQ(::symlink("blob", Path("model.safetensors").c_str()), 0);
  EXPECT_NE(Open(), nullptr);
}

TEST_F(CheckpointReaderTest, SaysThatAFolderHasNoWeights) {
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(directory_), HasSubstr("no safetensors weights")));
  Write("pytorch_model.bin", "x");
  EXPECT_THAT(OpenError(), HasSubstr("save_pretrained"));
}

TEST_F(CheckpointReaderTest, NamesWeightsThatHaveAnotherName) {
  Write("model-00001-of-00002.safetensors", MakeSafetensors({{"a", DType::kF32, {2}, {1, 2}}}));
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("has 'model-00001-of-00002.safetensors', but neither"),
                                 HasSubstr("copy the index there")));
}

TEST_F(CheckpointReaderTest, SaysThatAFolderHasTheWeightsOfAnAdapterAlone) {
  Write("adapter_config.json", "{}");
  Write("adapter_model.safetensors", MakeSafetensors({{"a", DType::kF32, {1}, {5}}}));
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("has an adapter"), HasSubstr("merge_and_unload")));
}

TEST_F(CheckpointReaderTest, SaysThatAFileIsAPointerOfGitLfs) {
  constexpr std::string_view kPointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
  Write("model.safetensors", kPointer);
  EXPECT_THAT(OpenError(), HasSubstr("model.safetensors': this is a Git LFS pointer"));
  std::filesystem::remove(Path("model.safetensors"));
  Write("model.safetensors.index.json", kPointer);
  EXPECT_THAT(OpenError(), HasSubstr("index.json': this is a Git LFS pointer"));
}

TEST_F(CheckpointReaderTest, RefusesATruncatedFile) {
  std::string file = MakeSafetensors({{"a", DType::kF32, {4}, {1, 2, 3, 4}}});
  file.pop_back();
  Write("model.safetensors", file);
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("model.safetensors"), HasSubstr("15 bytes of data")));
}

TEST_F(CheckpointReaderTest, RefusesAnEmptyFile) {
  Write("model.safetensors", "");
  EXPECT_THAT(OpenError(), HasSubstr("too few"));
}

TEST_F(CheckpointReaderTest, RefusesWhatIsNoFileWithoutWaitingForIt) {
  ASSERT_EQ(::mkfifo(Path("model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(OpenError(), HasSubstr("not a regular file"));
}

TEST_F(CheckpointReaderTest, NamesAShardThatIsNotThere) {
  WriteIndex({{"a", "model-1.safetensors"}});
  EXPECT_THAT(OpenError(),
              AllOf(HasSubstr("index.json"), HasSubstr("'a'"), HasSubstr("'model-1.safetensors'")));
}

TEST_F(CheckpointReaderTest, NamesATensorThatItsShardLacks) {
  Write("1.safetensors", MakeSafetensors({{"a", DType::kF32, {1}, {1}}}));
  WriteIndex({{"a", "1.safetensors"}, {"b", "1.safetensors"}});
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("'b'"), HasSubstr("does not hold it")));
}

TEST_F(CheckpointReaderTest, RefusesATensorThatIsInAnotherShardThanTheIndexSays) {
  Write("1.safetensors", MakeSafetensors({{"a", DType::kF32, {1}, {1}}}));
  Write("2.safetensors", MakeSafetensors({{"b", DType::kF32, {1}, {1}}}));
  WriteIndex({{"a", "2.safetensors"}, {"b", "1.safetensors"}});
  EXPECT_THAT(OpenError(), HasSubstr("does not hold it"));
}

TEST_F(CheckpointReaderTest, RefusesATensorInTwoShards) {
  Write("1.safetensors",
        MakeSafetensors({{"a", DType::kF32, {1}, {1}}, {"b", DType::kF32, {1}, {1}}}));
  Write("2.safetensors", MakeSafetensors({{"a", DType::kF32, {1}, {2}}}));
  WriteIndex({{"a", "2.safetensors"}, {"b", "1.safetensors"}});
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("'a' is in two files"), HasSubstr("1.safetensors"),
                                 HasSubstr("2.safetensors")));
}

TEST_F(CheckpointReaderTest, RefusesATensorThatTheIndexDoesNotKnow) {
  Write("1.safetensors",
        MakeSafetensors({{"a", DType::kF32, {1}, {1}}, {"hidden", DType::kF32, {1}, {1}}}));
  WriteIndex({{"a", "1.safetensors"}});
  EXPECT_THAT(OpenError(), HasSubstr("'hidden'"));
}

TEST_F(CheckpointReaderTest, AFileCutWhileOpenIsCorruptAndNoCrash) {
  const std::string file =
      MakeSafetensors({{"a", DType::kF32, {1024}, std::vector<float>(1024, 1.0f)}});
  Write("model.safetensors", file);
  const auto reader = Open();
  ASSERT_EQ(::truncate(Path("model.safetensors").c_str(), 100), 0);
  std::vector<float> read(1024);
  const absl::Status status = reader->ReadF32(*reader->Find("a"), 0, read);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("truncated"));
}

TEST_F(CheckpointReaderTest, AFileChangedWhileOpenIsCorrupt) {
  Write("model.safetensors", MakeSafetensors({{"a", DType::kF32, {1}, {1}}}));
  const auto reader = Open();
  {
    const absl::StatusOr<UniqueFd> fd = OpenFile(Path("model.safetensors"), O_WRONLY | O_APPEND);
    ASSERT_TRUE(fd.ok());
    ASSERT_EQ(::write(fd->get(), "x", 1), 1);
  }
  std::vector<float> read(1);
  const absl::Status status = reader->ReadF32(*reader->Find("a"), 0, read);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("changed while it was being read"));
}

TEST_F(CheckpointReaderTest, AFileReplacedWhileOpenIsStillReadAsItWas) {
  Write("model.safetensors", MakeSafetensors({{"a", DType::kF32, {1}, {1}}}));
  const auto reader = Open();
  Write("model.safetensors", MakeSafetensors({{"a", DType::kF32, {1}, {2}}}));
  std::vector<float> read(1);
  ASSERT_TRUE(reader->ReadF32(*reader->Find("a"), 0, read).ok());
  EXPECT_THAT(read, ElementsAre(1));
}

}  // namespace
}  // namespace forebay
