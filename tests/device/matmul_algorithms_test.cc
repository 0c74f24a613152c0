// What a run keeps of the algorithms of its matrix products.
#include "forebay/device/matmul_algorithms.h"

#include <string>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

MatmulAlgorithms Some() {
  MatmulAlgorithms algorithms = {.card = "NVIDIA H200", .library = "13.0.1", .chosen = {}};
  MatmulProduct product;
  product.shape = {.m = 3, .n = 4, .k = 5, .transpose_b = true, .ldd = 8, .output = DType::kF32};
  algorithms.chosen[product] = {{1, UINT64_MAX, 3, 4, 5, 6, 7, 8}};
  product.bias_alignment = 2;
  algorithms.chosen[product] = {{0, 0, 0, 0, 0, 0, 0, 9}};
  return algorithms;
}

TEST(MatmulAlgorithms, AreReadAsTheyWereWritten) {
  const auto read = AlgorithmsFrom(ToJson(Some()), "algorithms.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Some());
  EXPECT_EQ(DigestOf(*read), DigestOf(Some()));
  MatmulAlgorithms others = Some();
  others.chosen.begin()->second.data[0] = 2;
  EXPECT_NE(DigestOf(others), DigestOf(Some()));
}

TEST(MatmulAlgorithms, ThatAreDamagedAreNotTaken) {
  const Json whole = ToJson(Some());
  const auto why = [](const Json& json) {
    return MessageOf(AlgorithmsFrom(json, "algorithms.json").status());
  };
  Json json = whole;
  json["products"][0]["product"][0] = 4;
  EXPECT_THAT(why(json), HasSubstr("'algorithms.json' is damaged: its digest is of other"));
  json = whole;
  json["products"][0]["product"][8] = 3;  // no type
  EXPECT_THAT(why(json), HasSubstr("has an entry that is none"));
  json["products"][0]["product"][8] = -1;
  EXPECT_THAT(why(json), HasSubstr("has an entry that is none"));
  json["products"][0].erase("algorithm");
  EXPECT_THAT(why(json), HasSubstr("has an entry that is none"));
  json = whole;
  json["products"][1]["algorithm"] = "12";
  EXPECT_THAT(why(json), HasSubstr("has an entry that is none"));
  json.erase("products");
  EXPECT_THAT(why(json), HasSubstr("'products' is no list"));
  EXPECT_THAT(why(Json::array()), HasSubstr("'format' is not 1"));
}

}  // namespace
}  // namespace forebay
