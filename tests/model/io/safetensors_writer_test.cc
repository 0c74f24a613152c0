#include <sys/stat.h>
#include <unistd.h>

#include "forebay/base/errors.h"
#include "forebay/model/files/safetensors.h"
#include "gmock/gmock.h"
#include "sample_files.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

class SafetensorsWriterTest : public FolderTest {
 protected:
  std::unique_ptr<SafetensorsWriter> Create(
      const std::vector<SafetensorsWriter::Planned>& tensors,
      const std::map<std::string, std::string>& metadata = {}) {
    auto writer = SafetensorsWriter::Create(Path("model.safetensors"), tensors, metadata);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return writer.ok() ? *std::move(writer) : nullptr;
  }
  SafetensorsHeader Header() {
    const std::string file = ReadWholeFile(Path("model.safetensors"), 1 << 20).value();
    return ParseSafetensorsHeader(BytesOf(file), static_cast<int64_t>(file.size()), "written")
        .value();
  }
};

TEST_F(SafetensorsWriterTest, WritesWhatTheReaderReads) {
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> b = {FloatToBf16(7), FloatToBf16(8), FloatToBf16(9)};
  auto writer = Create({{"a \"quoted\" é", DType::kF32, {2, 3}},
                        {"b", DType::kBF16, {3}},
                        {"empty", DType::kBF16, {0, 4}}});
  // Pieces need not be whole tensors.
  const auto bytes = std::as_bytes(std::span(a));
  ASSERT_TRUE(writer->Append(bytes.first(5)).ok());
  ASSERT_TRUE(writer->Append(bytes.subspan(5)).ok());
  ASSERT_TRUE(writer->Append(std::as_bytes(std::span(b))).ok());
  ASSERT_TRUE(writer->Finish().ok());

  const auto reader = CheckpointReader::Open(directory_).value();
  std::vector<float> read_a(6), read_b(3);
  ASSERT_TRUE(reader->ReadF32(*reader->Find("a \"quoted\" é"), 0, read_a).ok());
  ASSERT_TRUE(reader->ReadF32(*reader->Find("b"), 0, read_b).ok());
  EXPECT_EQ(read_a, a);
  EXPECT_THAT(read_b, ElementsAre(7, 8, 9));
  EXPECT_EQ(reader->Find("empty")->entry.shape, (Shape{0, 4}));
}

TEST_F(SafetensorsWriterTest, DataBeginsAtAMultipleOf4096) {
  ASSERT_TRUE(Create({})->Finish().ok());
  EXPECT_EQ(Header().data_begin_bytes, 4096);
  std::vector<SafetensorsWriter::Planned> many;
  for (int i = 0; i < 100; ++i) many.push_back({"tensor." + std::to_string(i), DType::kBF16, {0}});
  ASSERT_TRUE(Create(many)->Finish().ok());
  EXPECT_EQ(Header().data_begin_bytes, 8192);
}

TEST_F(SafetensorsWriterTest, MetadataSaysThatTheFormatIsPyTorchs) {
  ASSERT_TRUE(Create({}, {{"step", "12"}})->Finish().ok());
  EXPECT_THAT(Header().metadata, ElementsAre(Pair("format", "pt"), Pair("step", "12")));
}

TEST_F(SafetensorsWriterTest, ReplacesAnOlderFileOnlyWhenFinished) {
  Write("model.safetensors", "older");
  {
    auto writer = Create({{"a", DType::kF32, {1}}});
    const float value = 3;
    ASSERT_TRUE(writer->Append(std::as_bytes(std::span(&value, 1))).ok());
    EXPECT_EQ(ReadWholeFile(Path("model.safetensors"), 100).value(), "older");
    ASSERT_TRUE(writer->Finish().ok());
  }
  EXPECT_EQ(Header().entries.size(), 1u);
}

TEST_F(SafetensorsWriterTest, LeavesNothingWhenAbandoned) {
  Write("model.safetensors", "older");
  Create({{"a", DType::kF32, {1}}}).reset();
  EXPECT_EQ(ReadWholeFile(Path("model.safetensors"), 100).value(), "older");
  EXPECT_FALSE(FileExists(Path("model.safetensors.tmp")));
}

TEST_F(SafetensorsWriterTest, FilesAreForWhomTheUmaskLetsReadThem) {
  const mode_t old_mask = ::umask(027);
  const auto finished = Create({})->Finish();
  ::umask(old_mask);
  ASSERT_TRUE(finished.ok());
  struct stat info = {};
  ASSERT_EQ(::stat(Path("model.safetensors").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0640u);
}

TEST_F(SafetensorsWriterTest, DoesNotWriteThroughALinkInItsWay) {
  Write("victim", "precious");
  ASSERT_EQ(::symlink("victim", Path("model.safetensors.tmp").c_str()), 0);
  ASSERT_TRUE(Create({})->Finish().ok());
  EXPECT_EQ(ReadWholeFile(Path("victim"), 100).value(), "precious");
}

TEST_F(SafetensorsWriterTest, AFullDiskIsFoundBeforeWriting) {
  const auto writer = SafetensorsWriter::Create(Path("model.safetensors"),
                                                {{"a", DType::kF32, {int64_t{1} << 52}}}, {});
  EXPECT_EQ(ExitCodeOf(writer.status()), ExitCode::kDoesNotFit) << writer.status();
  EXPECT_THAT(MessageOf(writer.status()), HasSubstr("the disk has"));
  EXPECT_FALSE(FileExists(Path("model.safetensors.tmp")));
}

TEST_F(SafetensorsWriterTest, AFolderThatIsNotThereIsAStorageError) {
  const auto writer = SafetensorsWriter::Create(Path("no/model.safetensors"), {}, {});
  EXPECT_EQ(ExitCodeOf(writer.status()), ExitCode::kStorage);
}

TEST_F(SafetensorsWriterTest, TooLongHeadersAreRefused) {
  const auto writer = SafetensorsWriter::Create(Path("model.safetensors"), {},
                                                {{"notes", std::string(100'000'000, 'x')}});
  EXPECT_EQ(ExitCodeOf(writer.status()), ExitCode::kBadInput);
}

TEST_F(SafetensorsWriterTest, FilesLargerThanOneFlushAreWhole) {
  std::vector<float> values(int64_t{20} << 20 >> 2);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto count = static_cast<int64_t>(values.size());
  auto writer = Create({{"a", DType::kF32, {4, count}}});
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(writer->Append(std::as_bytes(std::span(values))).ok());
  ASSERT_TRUE(writer->Finish().ok());
  const auto reader = CheckpointReader::Open(directory_).value();
  std::vector<float> read(values.size());
  ASSERT_TRUE(reader->ReadF32(*reader->Find("a"), 3 * count, read).ok());
  EXPECT_TRUE(read == values);
}

}  // namespace
}  // namespace forebay
