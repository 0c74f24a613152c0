#include "forebay/model/files/json_reader.h"

#include "fmt/format.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

bool Accepts(std::string_view text) {
  JsonRule anything;
  anything.any_depth = 64;
  return JsonReader().Read(text, anything);
}

// The problem that a text has which is to be a list of numbers; "" for none.
std::string ProblemOfNumbers(std::string_view text, std::vector<int64_t>* values = nullptr) {
  JsonRule number, numbers;
  number.number = [&](int64_t value) {
    if (values != nullptr) values->push_back(value);
    return true;
  };
  numbers.element = &number;
  JsonReader reader;
  const bool is_read = reader.Read(text, numbers);
  EXPECT_EQ(is_read, reader.problem().empty());
  return reader.problem();
}

TEST(JsonReader, RefusesWhatIsNoJson) {
  for (const std::string_view text : {"nul",         "01",
                                      "1.",          ".5",
                                      "1e",          "-",
                                      "+1",          "1 2",
                                      "\"\\q\"",     "\"\\u12g4\"",
                                      "\"\\ud83d\"", "\"\\ude00\"",
                                      "\"a",         "[",
                                      "[1,]",        "[1 2]",
                                      "[1]]",        "{\"a\"}",
                                      "{\"a\":1,}",  "{a:1}",
                                      "\"\t\"",      "",
                                      " ",           "\"\xC3\"",
                                      "NaN",         "'a'",
                                      "// x\n1",     "\xEF\xBB\xBF{}"}) {
    EXPECT_FALSE(Accepts(text)) << text;
  }
  EXPECT_FALSE(Accepts(std::string_view("{}\0", 3)));
  EXPECT_FALSE(Accepts(std::string_view("{\0}", 3)));
}

TEST(JsonReader, TakesAnythingWhereItMayBeAnything) {
  for (const std::string_view text :
       {"null", "true", "-0", "1.5e+3", "18446744073709551616", "\"\\ud83d\\ude00\\u0000\"", "[]",
        " { \"a\" : [ 1 , null, {} ] } ", "\"\xC3\xA9\""}) {
    EXPECT_TRUE(Accepts(text)) << text;
  }
}

TEST(JsonReader, BoundsTheDepthOfWhatMayBeAnything) {
  EXPECT_TRUE(Accepts(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(Accepts(std::string(65, '[') + std::string(65, ']')));
}

TEST(JsonReader, GoesOnWithTheRulesBehindWhatMayBeAnything) {
  JsonRule object, any, text;
  std::string key, value;
  any.any_depth = 2;
  text.string = [&](std::string& found) {
    value = found;
    return true;
  };
  object.member = [&](std::string& name) {
    key = name;
    return name == "any" ? &any : &text;
  };
  JsonReader reader;
  EXPECT_TRUE(reader.Read(R"({"any":{"text":[1,2]},"any":[{}],"text":"\u00e9"})", object));
  EXPECT_EQ(key, "text");
  EXPECT_EQ(value, "é");
  EXPECT_FALSE(reader.Read(R"({"any":{},"text":[]})", object));
  EXPECT_EQ(reader.problem(), "a string is expected");
}

TEST(JsonReader, GivesNumbersThatAreWholeWithoutSignAndOf63Bits) {
  std::vector<int64_t> values;
  EXPECT_EQ(ProblemOfNumbers("[0, 9223372036854775807]", &values), "");
  EXPECT_THAT(values, testing::ElementsAre(0, INT64_MAX));
  for (const char* number :
       {"-1", "-0", "-1.5", "-18446744073709551616", "\"1\"", "null", "true", "[1]", "{}"}) {
    EXPECT_EQ(ProblemOfNumbers(fmt::format("[{}]", number)),
              "a whole number without sign is expected")
        << number;
  }
  for (const char* number : {"1.5", "1.0", "1e3", "0E0"})
    EXPECT_EQ(ProblemOfNumbers(fmt::format("[{}]", number)), "the number is not whole") << number;
  for (const char* number :
       {"9223372036854775808", "18446744073709551615", "18446744073709551616"}) {
    EXPECT_EQ(ProblemOfNumbers(fmt::format("[{}]", number)), "the number does not fit 63 bits")
        << number;
  }
}

TEST(JsonReader, NamesThePlaceOfWhatIsNoJsonAndNoneOfItsBytes) {
  EXPECT_EQ(ProblemOfNumbers("[1, \xFF]"), "no JSON at byte 4: invalid literal");
  EXPECT_EQ(ProblemOfNumbers("[1] x"), "no JSON at byte 4: invalid literal");
  EXPECT_EQ(ProblemOfNumbers("[1e999]"), "no JSON at byte 5: a number is too large");
}

TEST(JsonReader, KeepsTheFirstProblem) {
  JsonReader reader;
  EXPECT_FALSE(reader.Fail("first"));
  EXPECT_FALSE(reader.Fail("second"));
  EXPECT_EQ(reader.problem(), "first");
}

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(Printable("a\nb'c"), "a\\x0ab\\x27c");
  EXPECT_EQ(Printable(std::string(200, 'x')), std::string(100, 'x') + "... (200 bytes)");
}

}  // namespace
}  // namespace forebay
