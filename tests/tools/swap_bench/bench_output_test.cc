#include "forebay/tools/swap_bench/bench_output.h"

#include <string>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tools/swap_bench/svg_plot.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kResults[] = "{\n \"tool\": {\n  \"name\": \"swap-bench\"}}";
constexpr char kProfile[] = "{\n \"made_by\": \"swap-bench tune 0.1.0\"}";

class CheckReplaceableTest : public testing::Test {
 protected:
  // What it says of a file with these contents.
  std::string Of(const std::string& contents, const char* mark) {
    const std::string path = folder_.Path("file");
    EXPECT_TRUE(WriteFileAtomically(path, contents).ok());
    return MessageOf(CheckReplaceable("out", path, mark));
  }
  TemporaryFolder folder_;
};

TEST_F(CheckReplaceableTest, ItsOwnKindMayGo) {
  EXPECT_EQ(Of(kResults, kResultsMark), "");
  EXPECT_EQ(Of(kProfile, kProfileMark), "");
  EXPECT_EQ(Of(kSvgMark, kSvgMark), "");
}

TEST_F(CheckReplaceableTest, WhatAnotherCommandMadeIsNamed) {
  EXPECT_THAT(Of(kProfile, kResultsMark), HasSubstr("holds settings of swap-bench tune"));
  EXPECT_THAT(Of(kSvgMark, kResultsMark), HasSubstr("holds a picture of swap-bench"));
  EXPECT_THAT(Of(kResults, kProfileMark), HasSubstr("holds results of swap-bench run"));
  EXPECT_THAT(Of("mine", kResultsMark), HasSubstr("was not made by swap-bench"));
}

TEST_F(CheckReplaceableTest, AFolderIsAFolder) {
  const absl::Status status = CheckReplaceable("out", folder_.path(), kResultsMark);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), HasSubstr("is a folder"));
  EXPECT_THAT(MessageOf(status), Not(HasSubstr("not made")));
}

}  // namespace
}  // namespace forebay
