#include "forebay/train/files/store_owner.h"

#include <filesystem>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/train/files/run_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class StoreOwnerTest : public testing::Test {
 protected:
  StoreOwnerTest() {
    MakeRun(run_);
    EXPECT_TRUE(MakeDirectories(store_).ok());
    EXPECT_EQ(WriteOwner(store_, run_, uuid_), absl::OkStatus());
  }
  void MakeRun(const std::string& path) const {
    ASSERT_TRUE(MakeDirectories(path).ok());
    ASSERT_EQ(WriteRunJson(RunPaths(path), {{"format", kRunFormat},
                                            {"state", kRunReady},
                                            {"stores", {store_}},
                                            {"store_uuid", uuid_},
                                            {"model", "m"},
                                            {"fingerprint", nullptr}}),
              absl::OkStatus());
  }
  Ownership Of(const std::string& store, const std::string& run) const {
    return FindOwner(store, run, uuid_).ownership;
  }

  const TemporaryFolder folder_;
  const std::string uuid_ = std::string(32, 'a');
  const std::string run_ = folder_.Path("run");
  const std::string copy_ = folder_.Path("copy");
  const std::string store_ = folder_.Path("store");
};

TEST_F(StoreOwnerTest, IsTheRunThatItWasWrittenForUnderAnyName) {
  EXPECT_TRUE(IsOwner(store_, run_, uuid_));
  EXPECT_EQ(Of(store_, run_), Ownership::kOurs);
  std::filesystem::rename(run_, copy_);
  std::filesystem::rename(store_, folder_.Path("moved"));
  EXPECT_EQ(Of(folder_.Path("moved"), copy_), Ownership::kOurs);
}

TEST_F(StoreOwnerTest, IsNotACopyOfTheRunWhileThatIsThere) {
  MakeRun(copy_);
  EXPECT_EQ(Of(store_, copy_), Ownership::kOfAnother);
  EXPECT_THAT(FindOwner(store_, copy_, uuid_).why, HasSubstr("the run in '" + run_ + "'"));
  const absl::Status status = CheckIsNotOfAnother(store_, copy_, uuid_);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status), HasSubstr("'" + store_ + "' belongs to another run"));
  std::filesystem::rename(run_, folder_.Path("renamed"));
  EXPECT_EQ(Of(store_, copy_), Ownership::kOfAnother);
  EXPECT_THAT(FindOwner(store_, copy_, uuid_).why, HasSubstr(folder_.Path("renamed")));
  // In its place, too.
  std::filesystem::rename(copy_, run_);
  EXPECT_EQ(Of(store_, run_), Ownership::kOfAnother);
}

TEST_F(StoreOwnerTest, IsUnknownOnceTheRunIsGoneOrAnother) {
  MakeRun(copy_);
  std::filesystem::remove(RunPaths(run_).run_json);
  std::filesystem::remove(RunPaths(run_).run_json_copy);
  EXPECT_EQ(Of(store_, copy_), Ownership::kUnknown) << "another run may begin in the old folder";
  std::filesystem::remove_all(run_);
  EXPECT_EQ(Of(store_, copy_), Ownership::kUnknown);
  EXPECT_EQ(CheckIsNotOfAnother(store_, copy_, uuid_), absl::OkStatus());
  EXPECT_FALSE(IsOwner(store_, copy_, uuid_));
  EXPECT_EQ(WriteOwner(store_, copy_, uuid_), absl::OkStatus());
  EXPECT_EQ(Of(store_, copy_), Ownership::kOurs);
}

TEST_F(StoreOwnerTest, OfACopiedStoreIsUnknown) {
  MakeRun(copy_);
  const std::string copied = folder_.Path("copied");
  std::filesystem::copy(store_, copied);
  EXPECT_EQ(Of(copied, copy_), Ownership::kUnknown);
  EXPECT_EQ(Of(copied, run_), Ownership::kOurs);
}

TEST_F(StoreOwnerTest, IsTheRunInWhichTheStoreLies) {
  MakeRun(copy_);
  const std::string inside = JoinPath(copy_, "swap");
  std::filesystem::copy(store_, inside);
  EXPECT_EQ(Of(inside, copy_), Ownership::kOurs);
  std::filesystem::remove_all(inside);
  std::filesystem::create_directory_symlink(store_, inside);
  EXPECT_EQ(Of(inside, copy_), Ownership::kOfAnother) << "a link leads out";
}

TEST_F(StoreOwnerTest, IsUnknownWhereNothingUsableSaysSo) {
  const std::string path = JoinPath(store_, "owner.json");
  for (const char* text :
       {"", "{", "[]", "{}", R"({"store_uuid": 3})", R"({"store_uuid": "a"})",
        R"({"store_uuid": "a", "run": 3, "run_folder": [], "store_folder": {}})",
        R"({"store_uuid": "a", "run": "", "run_folder": "", "store_folder": ""})"}) {
    ASSERT_TRUE(WriteFileAtomically(path, text).ok());
    EXPECT_EQ(Of(store_, run_), Ownership::kUnknown) << text;
    EXPECT_EQ(Of(store_, folder_.Path("nowhere")), Ownership::kUnknown) << text;
  }
  std::filesystem::remove(path);
  EXPECT_EQ(Of(store_, run_), Ownership::kUnknown);
}

}  // namespace
}  // namespace forebay
