#include "forebay/model/json_scanner.h"

#include "forebay/base/json.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

bool Accepts(std::string_view text) {
  JsonScanner scanner(text);
  return scanner.SkipValue(64) && scanner.End();
}

TEST(JsonScanner, AgreesWithNlohmannOnWhatIsJson) {
  const std::string_view texts[] = {"null",
                                    "true",
                                    "false",
                                    "nul",
                                    "tru",
                                    "0",
                                    "-0",
                                    "01",
                                    "1.",
                                    ".5",
                                    "1.5e+3",
                                    "1e",
                                    "-",
                                    "+1",
                                    "1 2",
                                    "\"a\"",
                                    "\"\\q\"",
                                    "\"\\u12g4\"",
                                    "\"\\ud83d\\ude00\"",
                                    "\"\\ud83d\"",
                                    "\"\\ude00\"",
                                    "\"a",
                                    "[",
                                    "[]",
                                    "[1,]",
                                    "[,]",
                                    "[1 2]",
                                    "{",
                                    "{}",
                                    "{\"a\"}",
                                    "{\"a\":}",
                                    "{\"a\":1,}",
                                    "{a:1}",
                                    " { \"a\" : [ 1 , null ] } ",
                                    "\"\t\"",
                                    "",
                                    " ",
                                    "\xEF\xBB\xBF{}",
                                    "\"\xC3\xA9\"",
                                    "\"\xC3\"",
                                    "[1]]",
                                    "NaN",
                                    "Infinity",
                                    "'a'",
                                    "// x\n1",
                                    "\"\\u0000\""};
  for (const std::string_view text : texts) {
    // nlohmann forgives a byte order mark; RFC 8259 lets a parser do either.
    if (text.starts_with("\xEF\xBB\xBF")) continue;
    EXPECT_EQ(Accepts(text), Json::accept(text)) << text;
  }
}

TEST(JsonScanner, DecodesEscapes) {
  JsonScanner scanner(R"("\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00")");
  std::string value;
  ASSERT_TRUE(scanner.String(&value)) << scanner.problem();
  EXPECT_EQ(value, "\"\\/\b\f\n\r\tAé€😀");
}

TEST(JsonScanner, KeepsTheFirstProblem) {
  JsonScanner scanner("x");
  EXPECT_FALSE(scanner.Fail("first"));
  EXPECT_FALSE(scanner.Fail("second"));
  EXPECT_EQ(scanner.problem(), "first");
  EXPECT_FALSE(scanner.ok());
}

TEST(JsonScanner, ReadsTheLargestNumberAndNotTheNext) {
  int64_t value = 0;
  EXPECT_TRUE(JsonScanner("9223372036854775807").NonNegativeInt(&value));
  EXPECT_EQ(value, INT64_MAX);
  EXPECT_FALSE(JsonScanner("9223372036854775808").NonNegativeInt(&value));
}

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(Printable("a\nb'c"), "a\\x0ab\\x27c");
  EXPECT_EQ(Printable(std::string(200, 'x')), std::string(100, 'x') + "... (200 bytes)");
}

}  // namespace
}  // namespace forebay
