#include "forebay/base/markup.h"

#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(XmlEscaped, LeavesNoTagQuoteOrControlCharacter) {
  EXPECT_EQ(XmlEscaped("<a href=\"x\" b='y'>&amp;"),
            "&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;amp;");
  EXPECT_EQ(XmlEscaped("a\x01\n\x7f\xc3\xa4"), "a???\xc3\xa4");
}

TEST(CsvField, IsQuotedWhereItHasToBe) {
  EXPECT_EQ(CsvField("runs/book"), "runs/book");
  EXPECT_EQ(CsvField("a,b"), "\"a,b\"");
  EXPECT_EQ(CsvField("say \"a\""), "\"say \"\"a\"\"\"");
  EXPECT_EQ(CsvField("two\nlines"), "\"two\nlines\"");
}

TEST(RoundStep, IsOneTwoOrFiveTimesAPowerOfTen) {
  EXPECT_DOUBLE_EQ(RoundStep(5), 1);
  EXPECT_DOUBLE_EQ(RoundStep(6), 2);
  EXPECT_DOUBLE_EQ(RoundStep(24), 5);
  EXPECT_DOUBLE_EQ(RoundStep(26), 10);
  EXPECT_DOUBLE_EQ(RoundStep(0.0009), 0.0002);
}

}  // namespace
}  // namespace forebay
