#include "forebay/train/files/run_files.h"

#include <filesystem>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RunFilesTest : public testing::Test {
 protected:
  RunFilesTest() {
    EXPECT_TRUE(MakeDirectories(model_).ok());
    Write(model_, "config.json", R"({"hidden_size": 8, "torch_dtype": "float32"})");
    Write(model_, "tokenizer.json", "{}");
    Write(model_, "spiece.model", "pieces");
    Write(model_, "model.safetensors", "weights");
    const auto read = ReadModelFiles(model_);
    EXPECT_TRUE(read.ok()) << read.status();
    files_ = DescribeFiles(*read);
    EXPECT_EQ(WriteRunFiles(own_, *read), absl::OkStatus());
  }
  static void Write(const std::string& folder, const char* name, const char* contents) {
    ASSERT_TRUE(WriteFileAtomically(JoinPath(folder, name), contents).ok());
  }
  static std::string Read(const std::string& folder, const char* name) {
    return ReadWholeFile(JoinPath(folder, name), 1000).value_or("nothing");
  }

  const TemporaryFolder folder_;
  const std::string model_ = folder_.Path("model");
  const std::string own_ = folder_.Path("files");
  RunFiles files_;
};

TEST_F(RunFilesTest, AreAllButTheWeights) {
  EXPECT_THAT(*ListFolder(own_), ElementsAre("config.json", "spiece.model", "tokenizer.json"));
  EXPECT_THAT(*CheckRunFiles(own_, files_), IsEmpty());
  const auto read = ReadModelFiles(own_);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(DigestOf(DescribeFiles(*read)), DigestOf(files_));
  const RunFiles back = RunFilesOf({{"files", ToJson(files_)}});
  EXPECT_EQ(DigestOf(back), DigestOf(files_));
  EXPECT_THAT(RunFilesOf({{"files", nullptr}}), IsEmpty());
}

TEST_F(RunFilesTest, OfAnEarlierStartAreRemovedAndOthersStay) {
  Write(own_, "merges.txt", "of another model");
  Write(own_, "run.json", "{}");
  ASSERT_EQ(WriteRunFiles(own_, *ReadModelFiles(model_)), absl::OkStatus());
  EXPECT_THAT(*ListFolder(own_),
              ElementsAre("config.json", "run.json", "spiece.model", "tokenizer.json"));
}

TEST_F(RunFilesTest, ThatAreNotWhatTheyWereAreNamedAndRestoredWhereTheModelHasThem) {
  const std::string path = JoinPath(own_, "tokenizer.json");
  for (const bool is_lost : {false, true}) {
    Write(own_, "tokenizer.json", "[]");
    if (is_lost) std::filesystem::remove(path);
    const absl::Status status = CheckRunFiles(own_, files_).status();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
    EXPECT_THAT(MessageOf(status), HasSubstr("'" + path + "'"));
    const std::string before = Read(own_, "tokenizer.json");
    EXPECT_THAT(RestoreRunFiles(own_, files_, model_, /*dry_run=*/true)->written,
                ElementsAre(path));
    EXPECT_EQ(Read(own_, "tokenizer.json"), before);
    EXPECT_THAT(RestoreRunFiles(own_, files_, model_)->written, ElementsAre(path));
    EXPECT_EQ(Read(own_, "tokenizer.json"), "{}");
    EXPECT_THAT(RestoreRunFiles(own_, files_, model_)->written, IsEmpty());
  }
  Write(own_, "tokenizer.json", "[]");
  Write(model_, "tokenizer.json", "[[]]");
  EXPECT_EQ(ExitCodeOf(RestoreRunFiles(own_, files_, model_).status()), ExitCode::kCorrupt);
  EXPECT_EQ(Read(own_, "tokenizer.json"), "[]") << "nothing else is put there";
}

TEST_F(RunFilesTest, AreRestoredPastOneThatIsLost) {
  Write(own_, "config.json", "[]");
  Write(own_, "tokenizer.json", "[]");
  std::filesystem::remove(JoinPath(model_, "config.json"));
  const absl::Status status = RestoreRunFiles(own_, files_, model_).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr(JoinPath(own_, "config.json")), HasSubstr("'" + model_ + "'"),
                    HasSubstr("train --resume --model=FOLDER")));
  EXPECT_EQ(Read(own_, "tokenizer.json"), "{}");
}

TEST_F(RunFilesTest, AreNamedAndLeftOutOfAnExportWhereAModelCanDoWithoutThem) {
  std::filesystem::remove(JoinPath(model_, "spiece.model"));
  Write(own_, "spiece.model", "other pieces");
  const auto names_it = ElementsAre(HasSubstr(JoinPath(own_, "spiece.model")));
  EXPECT_THAT(*CheckRunFiles(own_, files_), names_it);
  EXPECT_THAT(RestoreRunFiles(own_, files_, model_)->lost, names_it);
  const std::string to = folder_.Path("exported");
  ASSERT_TRUE(MakeDirectories(to).ok());
  ASSERT_EQ(ExportRunFiles(own_, files_, DType::kBF16, to), absl::OkStatus());
  EXPECT_THAT(*ListFolder(to), ElementsAre("config.json", "tokenizer.json"));
}

TEST_F(RunFilesTest, AreWhatAnExportTakes) {
  const std::string to = folder_.Path("exported");
  ASSERT_TRUE(MakeDirectories(to).ok());
  Write(own_, "vocab.json", "somebody's");
  ASSERT_EQ(ExportRunFiles(own_, files_, DType::kBF16, to), absl::OkStatus());
  EXPECT_THAT(*ListFolder(to), ElementsAre("config.json", "spiece.model", "tokenizer.json"));
  EXPECT_THAT(Read(to, "config.json"), HasSubstr("bfloat16"));
  Write(own_, "config.json", R"({"hidden_size": 9})");
  EXPECT_EQ(ExitCodeOf(ExportRunFiles(own_, files_, DType::kBF16, to)), ExitCode::kCorrupt);
}

TEST_F(RunFilesTest, OfAModelThatIsNamedMustBeTheSameWhereTheyChangeTheResult) {
  EXPECT_THAT(*CompareModelFiles(model_, files_), IsEmpty());
  Write(model_, "spiece.model", "other pieces");
  Write(model_, "added_tokens.json", "{}");
  EXPECT_THAT(*CompareModelFiles(model_, files_), ElementsAre("added_tokens.json", "spiece.model"));
  Write(model_, "tokenizer.json", "[]");
  const absl::Status status = CompareModelFiles(model_, files_).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("tokenizer in --model"),
                                       HasSubstr(JoinPath(model_, "tokenizer.json"))));
  std::filesystem::remove(JoinPath(model_, "config.json"));
  EXPECT_EQ(ExitCodeOf(CompareModelFiles(model_, files_).status()), ExitCode::kBadInput);
}

}  // namespace
}  // namespace forebay
