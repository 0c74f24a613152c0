#include "forebay/train/files/export_files.h"

#include <cstdint>
#include <limits>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kMostBytes = std::numeric_limits<int64_t>::max();

std::string Entry(std::string_view name, uint64_t bytes) {
  return fmt::format(R"({{"name": "{}", "bytes": {}, "xxh3_128": "0a"}})", name, bytes);
}
std::string Manifest(const std::string& entries) {
  return fmt::format(R"({{"format": 1, "step": 4, "files": [{}]}})", entries);
}

TEST(ExportFiles, AreWhatTheManifestSays) {
  const auto files =
      ParseExportFiles(Manifest(Entry("config.json", 0) + "," + Entry("a", kMostBytes)), "m");
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->size(), 2u);
  EXPECT_EQ((*files)[0].name, "config.json");
  EXPECT_EQ((*files)[0].bytes, 0);
  EXPECT_EQ((*files)[1].bytes, static_cast<int64_t>(kMostBytes));
  EXPECT_EQ((*files)[1].digest, "0a");
}

TEST(ExportFiles, WhatCannotBeIsCorruptAndNamesTheManifest) {
  const std::string wrong[] = {
      "",
      "[]",
      R"({"format": 1, "files": [)",
      R"({"format": 2, "files": []})",
      R"({"format": 1, "files": {}})",
      Manifest("3"),
      Manifest(R"({"name": "a", "bytes": -1, "xxh3_128": "0a"})"),
      Manifest(R"({"name": "a", "bytes": 1.5, "xxh3_128": "0a"})"),
      Manifest(R"({"name": "a", "bytes": 1})"),
      // Of more than a file can have, alone and together.
      Manifest(Entry("a", kMostBytes + 1)),
      Manifest(Entry("a", std::numeric_limits<uint64_t>::max())),
      Manifest(Entry("a", kMostBytes) + "," + Entry("b", 1)),
      // That lead elsewhere.
      Manifest(Entry("", 1)),
      Manifest(Entry("..", 1)),
      Manifest(Entry("../a", 1)),
      Manifest(Entry("/etc/passwd", 1)),
      Manifest(Entry("a/b", 1)),
      Manifest(Entry("a\\u0000b", 1)),
  };
  for (const std::string& text : wrong) {
    const auto files = ParseExportFiles(text, "the manifest");
    EXPECT_EQ(ExitCodeOf(files.status()), ExitCode::kCorrupt) << text;
    EXPECT_THAT(MessageOf(files.status()),
                AllOf(HasSubstr("'the manifest'"), HasSubstr("Copy the folder again")));
  }
}

}  // namespace
}  // namespace forebay
