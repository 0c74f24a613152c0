#include "forebay/base/json.h"

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(std::string_view text, const JsonParseOptions& options = {}) {
  const auto parsed = ParseJson(text, "a.json", options);
  EXPECT_FALSE(parsed.ok()) << text;
  EXPECT_EQ(ExitCodeOf(parsed.status()), ExitCode::kBadInput);
  return MessageOf(parsed.status());
}

TEST(ParseJson, KeepsTheOrderOfKeysAndTheKindOfNumbers) {
  const auto parsed = ParseJson(R"({"b": 1, "a": 1.0, "big": 9007199254740993})", "a.json");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->dump(), R"({"b":1,"a":1.0,"big":9007199254740993})");
}

TEST(ParseJson, NamesFileLineAndColumnOfASyntaxError) {
  EXPECT_EQ(ErrorOf("{\n  \"a\": 1,\n  \"b\": }"), "a.json: not valid JSON at line 3, column 8");
}

TEST(ParseJson, EmptyTextIsAnError) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("line 1, column 1"));
}

TEST(ParseJson, RefusesAKeyThatAppearsTwice) {
  EXPECT_EQ(ErrorOf(R"({"a": 1, "b": {}, "a": 2})"), "a.json: the key 'a' appears twice");
  EXPECT_EQ(ErrorOf(R"({"x": {"k": 1, "k": 1}})"), "a.json: the key 'k' appears twice");
}

TEST(ParseJson, TheSameKeyInDifferentObjectsIsFine) {
  EXPECT_TRUE(ParseJson(R"({"a": {"k": 1}, "b": {"k": 2}, "c": [{"k": 3}, {"k": 4}]})", "a").ok());
}

TEST(ParseJson, RefusesBytesAfterTheValue) {
  EXPECT_THAT(ErrorOf("{} x"), HasSubstr("not valid JSON"));
}

TEST(ParseJson, RefusesNestingBeyondTheLimit) {
  EXPECT_TRUE(ParseJson(std::string(60, '[') + std::string(60, ']'), "a").ok());
  EXPECT_EQ(ErrorOf(std::string(100'000, '[') + std::string(100'000, ']')),
            "a.json: nested deeper than 64 levels");
}

TEST(ParseJson, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(ErrorOf("{\"a\": \"\xff\"}"), HasSubstr("not valid JSON at line 1, column 8"));
}

TEST(ParseJson, RefusesNumbersThatNoDoubleHolds) {
  EXPECT_THAT(ErrorOf("[1e999]"), HasSubstr("not valid JSON (number overflow parsing '1e999')"));
}

TEST(ParseJson, CommentsAreForConfigurationFilesAlone) {
  constexpr std::string_view kText = "{ // why\n \"a\": /* what */ 1 }";
  EXPECT_THAT(ErrorOf(kText), HasSubstr("line 1"));
  const auto parsed = ParseJson(kText, "a.json", {.allow_comments = true});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ((*parsed)["a"], 1);
}

TEST(IntegerOf, IsTheIntegerOrNothing) {
  EXPECT_EQ(IntegerOf(Json(3)), 3);
  EXPECT_EQ(IntegerOf(Json(int64_t{-1} << 62)), int64_t{-1} << 62);
  EXPECT_EQ(IntegerOf(*ParseJson("9223372036854775807", "x")), INT64_MAX);
  for (const char* text : {"9223372036854775808", "18446744073709551616", "1e30", "3.0", "2.5",
                           "\"3\"", "null", "true", "[3]", "{}"}) {
    EXPECT_EQ(IntegerOf(*ParseJson(text, "x")), std::nullopt) << text;
  }
}

TEST(ReadJsonFile, AMissingFileIsNamed) {
  const auto parsed = ReadJsonFile("/nonexistent/config.json", 100);
  EXPECT_EQ(MessageOf(parsed.status()), "'/nonexistent/config.json' does not exist");
}

}  // namespace
}  // namespace forebay
