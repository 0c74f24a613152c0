#include <limits>

#include "forebay/base/errors.h"
#include "forebay/model/files/safetensors.h"
#include "gmock/gmock.h"
#include "sample_files.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

absl::StatusOr<SafetensorsHeader> ParseFile(std::string_view file) {
  return ParseSafetensorsHeader(BytesOf(file), static_cast<int64_t>(file.size()),
                                "dir/model.safetensors");
}
absl::StatusOr<SafetensorsHeader> Parse(std::string_view header, size_t data_bytes) {
  return ParseFile(RawSafetensors(header, std::string(data_bytes, 'x')));
}

// The message of the refusal, which must name the file and be one of bad input.
std::string ErrorOfFile(std::string_view file) {
  const absl::Status status = ParseFile(file).status();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kBadInput);
  EXPECT_THAT(MessageOf(status), HasSubstr("dir/model.safetensors"));
  EXPECT_LT(MessageOf(status).size(), 1500u);
  return MessageOf(status);
}
std::string HeaderErrorOf(std::string_view header, size_t data_bytes = 0) {
  return ErrorOfFile(RawSafetensors(header, std::string(data_bytes, 'x')));
}

// A file whose length field says `length`.
std::string WithLength(uint64_t length, std::string_view rest) {
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file.append(rest);
}

std::string Entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return std::string("{\"dtype\":\"")
      .append(dtype)
      .append("\",\"shape\":")
      .append(shape)
      .append(",\"data_offsets\":")
      .append(offsets)
      .append("}");
}
std::string OneTensor(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return "{\"a\":" + Entry(dtype, shape, offsets) + "}";
}

TEST(SafetensorsHeader, ReadsNamesTypesShapesOffsetsAndMetadata) {
  const auto header =
      Parse("{\"__metadata__\":{\"format\":\"pt\"},\"b\":" + Entry("F32", "[2,1]", "[6,14]") +
                ",\"a\":" + Entry("BF16", "[3]", "[0,6]") + "}",
            14);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->entries.size(), 2u);
  EXPECT_EQ(header->entries[0].name, "a");
  EXPECT_EQ(header->entries[0].dtype_name, "BF16");
  EXPECT_EQ(header->entries[1].shape, (Shape{2, 1}));
  EXPECT_EQ(header->entries[1].begin_bytes, 6);
  EXPECT_EQ(header->entries[1].end_bytes, 14);
  EXPECT_THAT(header->metadata, ElementsAre(testing::Pair("format", "pt")));
}

// What the reference reader accepts and we do, too.

TEST(SafetensorsHeader, AcceptsAnEmptyObject) {
  const auto header = Parse("{}", 0);
  ASSERT_TRUE(header.ok());
  EXPECT_THAT(header->entries, IsEmpty());
  EXPECT_EQ(header->data_begin_bytes, 10);
}
TEST(SafetensorsHeader, AcceptsSpacePadding) {
  const auto header = Parse("{}" + std::string(4086, ' '), 0);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->data_begin_bytes, 4096);
}
TEST(SafetensorsHeader, AcceptsScalars) {
  EXPECT_TRUE(Parse(OneTensor("F32", "[]", "[0,4]"), 4).ok());
}
TEST(SafetensorsHeader, AcceptsSeveralEmptyTensorsAtOneOffset) {
  EXPECT_TRUE(Parse("{\"a\":" + Entry("F32", "[0]", "[0,0]") +
                        ",\"b\":" + Entry("F32", "[3,0]", "[0,0]") +
                        ",\"c\":" + Entry("U8", "[2]", "[0,2]") + "}",
                    2)
                  .ok());
}
TEST(SafetensorsHeader, AcceptsUnknownFieldsOfAnEntry) {
  EXPECT_TRUE(
      Parse(
          R"({"a":{"dtype":"U8","note":{"x":[1.5,-2e3,null,true]},"shape":[1],"data_offsets":[0,1]}})",
          1)
          .ok());
}
TEST(SafetensorsHeader, AcceptsNullMetadata) {
  EXPECT_TRUE(Parse(R"({"__metadata__":null})", 0).ok());
}
TEST(SafetensorsHeader, AcceptsEscapedNames) {
  const auto header =
      Parse("{\"\\u00e9\\ud83d\\ude00\\/\":" + Entry("U8", "[1]", "[0,1]") + "}", 1);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->entries[0].name, "é😀/");
}
TEST(SafetensorsHeader, AcceptsFourBitElementsThatFillBytes) {
  EXPECT_TRUE(Parse(OneTensor("F4", "[4]", "[0,2]"), 2).ok());
}

// Known bad inputs, one test each.

TEST(SafetensorsHeader, RefusesFilesShorterThanTheLength) {
  EXPECT_THAT(ErrorOfFile(""), HasSubstr("too few"));
  EXPECT_THAT(ErrorOfFile("1234567"), HasSubstr("too few"));
}
TEST(SafetensorsHeader, RefusesAnEmptyHeader) {
  EXPECT_THAT(HeaderErrorOf(""), HasSubstr("does not start with '{'"));
}
TEST(SafetensorsHeader, RefusesAHugeHeader) {
  EXPECT_THAT(ErrorOfFile(WithLength(100'000'001, "{}")),
              HasSubstr("100000001 bytes; at most 100000000"));
}
TEST(SafetensorsHeader, RefusesALengthWhoseSumWouldOverflow) {
  EXPECT_THAT(ErrorOfFile(WithLength(std::numeric_limits<uint64_t>::max(), "{}")),
              HasSubstr("18446744073709551615"));
}
TEST(SafetensorsHeader, RefusesAHeaderLongerThanTheFile) {
  EXPECT_THAT(ErrorOfFile(WithLength(3, "{}")), HasSubstr("truncated"));
}
TEST(SafetensorsHeader, RefusesAHeaderThatWasNotReadWhole) {
  const std::string file = RawSafetensors("{}");
  EXPECT_FALSE(
      ParseSafetensorsHeader(BytesOf(file).first(9), static_cast<int64_t>(file.size()), "f").ok());
}
TEST(SafetensorsHeader, RefusesAHeaderThatIsNoObject) {
  EXPECT_THAT(HeaderErrorOf("[]"), HasSubstr("does not start with"));
}
TEST(SafetensorsHeader, RefusesLeadingWhiteSpace) {
  EXPECT_THAT(HeaderErrorOf(" {}"), HasSubstr("does not start with"));
}
TEST(SafetensorsHeader, RefusesAByteOrderMark) {
  EXPECT_THAT(HeaderErrorOf("\xEF\xBB\xBF{}"), HasSubstr("does not start"));
}
TEST(SafetensorsHeader, RefusesBytesAfterTheObject) {
  EXPECT_THAT(HeaderErrorOf("{}{}"), HasSubstr("byte 2: unexpected '{'; expected end of input"));
  EXPECT_THAT(HeaderErrorOf(std::string_view("{}\0", 3)), HasSubstr("byte 2: a NUL"));
}
TEST(SafetensorsHeader, RefusesInvalidUtf8) {
  for (const char* name :
       {"\xFF", "\xC0\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\x80"}) {
    EXPECT_THAT(
        HeaderErrorOf("{\"" + std::string(name) + "\":" + Entry("U8", "[0]", "[0,0]") + "}"),
        HasSubstr("UTF-8"));
  }
}
TEST(SafetensorsHeader, RefusesHalfASurrogatePair) {
  EXPECT_THAT(HeaderErrorOf("{\"\\ud800\":" + Entry("U8", "[0]", "[0,0]") + "}"),
              HasSubstr("surrogate"));
}
TEST(SafetensorsHeader, RefusesDeepNesting) {
  EXPECT_THAT(HeaderErrorOf("{\"a\":{\"x\":" + std::string(100000, '[')),
              HasSubstr("nested too deeply"));
}
TEST(SafetensorsHeader, RefusesDuplicateTensors) {
  const std::string entry = Entry("U8", "[1]", "[0,1]");
  EXPECT_THAT(HeaderErrorOf("{\"a\":" + entry + ",\"a\":" + entry + "}", 1),
              HasSubstr("'a' appears twice"));
}
TEST(SafetensorsHeader, RefusesDuplicatesThatOnlyDifferInSpelling) {
  const std::string entry = Entry("U8", "[1]", "[0,1]");
  EXPECT_THAT(HeaderErrorOf("{\"a\":" + entry + ",\"\\u0061\":" + entry + "}", 1),
              HasSubstr("appears twice"));
}
TEST(SafetensorsHeader, RefusesAnEmptyDuplicateBeforeTheRealOne) {
  EXPECT_THAT(HeaderErrorOf("{\"a\":" + Entry("U8", "[0]", "[0,0]") +
                                ",\"a\":" + Entry("U8", "[1]", "[0,1]") + "}",
                            1),
              HasSubstr("appears twice"));
}
TEST(SafetensorsHeader, RefusesDuplicateFields) {
  EXPECT_THAT(
      HeaderErrorOf(R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
      HasSubstr("'dtype' appears twice"));
}
TEST(SafetensorsHeader, RefusesDuplicateMetadata) {
  EXPECT_THAT(HeaderErrorOf(R"({"__metadata__":{},"__metadata__":{}})"),
              HasSubstr("appears twice"));
  EXPECT_THAT(HeaderErrorOf(R"({"__metadata__":{"k":"1","k":"2"}})"), HasSubstr("appears twice"));
}
TEST(SafetensorsHeader, RefusesMetadataThatIsNoText) {
  EXPECT_THAT(HeaderErrorOf(R"({"__metadata__":{"k":1}})"), HasSubstr("a string is expected"));
}
TEST(SafetensorsHeader, RefusesNegativeOffsets) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[1]", "[-1,0]"), 1),
              HasSubstr("whole number without sign"));
}
TEST(SafetensorsHeader, RefusesFractionsAndExponents) {
  for (const char* end : {"1.9", "1.0", "1e3", "1E0"}) {
    EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[1]", "[0," + std::string(end) + "]"), 1),
                HasSubstr("not whole"));
  }
}
TEST(SafetensorsHeader, RefusesNumbersAbove63Bits) {
  for (const char* end : {"9223372036854775808", "18446744073709551615", "18446744073709551616"}) {
    EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[1]", "[0," + std::string(end) + "]"), 1),
                HasSubstr("63 bits"));
  }
}
TEST(SafetensorsHeader, RefusesLeadingZeros) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[01]", "[0,1]"), 1),
              HasSubstr("unexpected number literal"));
}
TEST(SafetensorsHeader, RefusesNumbersAsText) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[\"1\"]", "[0,1]"), 1), HasSubstr("whole number"));
}
TEST(SafetensorsHeader, RefusesOneOrThreeOffsets) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[1]", "[0]"), 1), HasSubstr("two numbers"));
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[1]", "[0,1,1]"), 1), HasSubstr("two numbers"));
}
TEST(SafetensorsHeader, RefusesAnEndBeforeTheBeginning) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[1]", "[1,0]"), 1),
              HasSubstr("ends before it begins"));
}
TEST(SafetensorsHeader, RefusesHoles) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[1]", "[1,2]"), 2), HasSubstr("hole"));
  EXPECT_THAT(HeaderErrorOf("{\"a\":" + Entry("U8", "[1]", "[0,1]") +
                                ",\"b\":" + Entry("U8", "[1]", "[2,3]") + "}",
                            3),
              AllOf(HasSubstr("'b'"), HasSubstr("hole")));
}
TEST(SafetensorsHeader, RefusesOverlaps) {
  EXPECT_THAT(HeaderErrorOf("{\"a\":" + Entry("U8", "[2]", "[0,2]") +
                                ",\"b\":" + Entry("U8", "[2]", "[1,3]") + "}",
                            3),
              AllOf(HasSubstr("'b'"), HasSubstr("overlap")));
}
TEST(SafetensorsHeader, RefusesTwoNamesForTheSameBytes) {
  EXPECT_THAT(HeaderErrorOf("{\"a\":" + Entry("U8", "[2]", "[0,2]") +
                                ",\"b\":" + Entry("U8", "[2]", "[0,2]") + "}",
                            2),
              HasSubstr("overlap"));
}
TEST(SafetensorsHeader, RefusesBytesAfterTheLastTensor) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[1]", "[0,1]"), 9), HasSubstr("the file has 9 bytes"));
  EXPECT_THAT(HeaderErrorOf("{}", 1), HasSubstr("the file has 1 bytes"));
}
TEST(SafetensorsHeader, RefusesTruncatedData) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("F32", "[4]", "[0,16]"), 15),
              HasSubstr("ends at 16, but the file has 15"));
}
TEST(SafetensorsHeader, RefusesShapesWhoseProductOverflows) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[4194305,4194305,211106198978564]", "[0,4]"), 4),
              HasSubstr("too many elements"));
  EXPECT_THAT(HeaderErrorOf(OneTensor("F32", "[4611686018427387904]", "[0,0]")),
              HasSubstr("too many elements"));
}
TEST(SafetensorsHeader, RefusesOverflowWhereverAZeroExtentStands) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[0,4611686018427387904,8]", "[0,0]")),
              HasSubstr("too many elements"));
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", "[4611686018427387904,8,0]", "[0,0]")),
              HasSubstr("too many elements"));
}
TEST(SafetensorsHeader, RefusesAShapeThatIsNotItsRange) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("F32", "[1000]", "[0,4]"), 4),
              HasSubstr("takes 4000 bytes, but data_offsets spans 4"));
}
TEST(SafetensorsHeader, RefusesUnknownTypes) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("Q4_K", "[1]", "[0,1]"), 1), HasSubstr("'Q4_K' is unknown"));
}
TEST(SafetensorsHeader, RefusesElementsThatDoNotFillBytes) {
  EXPECT_THAT(HeaderErrorOf(OneTensor("F4", "[3]", "[0,2]"), 2), HasSubstr("whole bytes"));
  EXPECT_THAT(HeaderErrorOf(OneTensor("F6_E2M3", "[3]", "[0,2]"), 2), HasSubstr("whole bytes"));
}
TEST(SafetensorsHeader, RefusesMissingFields) {
  EXPECT_THAT(HeaderErrorOf(R"({"a":{"dtype":"U8","shape":[0]}})"),
              HasSubstr("needs dtype, shape and data_offsets"));
}
TEST(SafetensorsHeader, RefusesEntriesThatAreNoObjects) {
  EXPECT_THAT(HeaderErrorOf(R"({"a":[1]})"), HasSubstr("'{'"));
}
TEST(SafetensorsHeader, RefusesEmptyNames) {
  EXPECT_THAT(HeaderErrorOf("{\"\":" + Entry("U8", "[0]", "[0,0]") + "}"), HasSubstr("empty name"));
}
TEST(SafetensorsHeader, RefusesNulAndControlCharactersInNames) {
  for (const char* name : {"a\\u0000b", "\\n", "\\u001f", "\x7f"}) {
    EXPECT_THAT(
        HeaderErrorOf("{\"" + std::string(name) + "\":" + Entry("U8", "[0]", "[0,0]") + "}"),
        HasSubstr("control characters"));
  }
  EXPECT_THAT(HeaderErrorOf("{\"a\nb\":" + Entry("U8", "[0]", "[0,0]") + "}"),
              HasSubstr("control character"));
}
TEST(SafetensorsHeader, RefusesNamesOfAMegabyte) {
  EXPECT_THAT(
      HeaderErrorOf("{\"" + std::string(1 << 20, 'a') + "\":" + Entry("U8", "[0]", "[0,0]") + "}"),
      HasSubstr("more than 4096 bytes"));
}
TEST(SafetensorsHeader, RefusesTooManyDimensions) {
  std::string shape = "[1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  EXPECT_THAT(HeaderErrorOf(OneTensor("U8", shape + "]", "[0,1]"), 1),
              HasSubstr("more than 64 dimensions"));
}
TEST(SafetensorsHeader, RefusesMoreThanAMillionTensors) {
  std::string header = "{";
  for (int i = 0; i <= 1 << 20; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  EXPECT_THAT(HeaderErrorOf(header + "}"), HasSubstr("more than 1048576 tensors"));
}
TEST(SafetensorsHeader, NamesTheTensorWhoseEntryIsWrong) {
  EXPECT_THAT(HeaderErrorOf("{\"model.norm.weight\":" + Entry("X", "[1]", "[0,1]") + "}", 1),
              HasSubstr("in the entry of tensor 'model.norm.weight'"));
}

}  // namespace
}  // namespace forebay
