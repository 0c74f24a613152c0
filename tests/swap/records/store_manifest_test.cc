#include "forebay/swap/records/store_manifest.h"

#include <filesystem>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

StoreManifest SmallManifest() {
  StoreManifest manifest;
  manifest.uuid = {0xab, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0xff};
  manifest.layout = Layout::kFp32;
  manifest.tile_elems = kSmallTileElems;
  manifest.inventory = SmallInventory();
  return manifest;
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(StoreManifest, DecodesToWhatWasEncoded) {
  const StoreManifest manifest = SmallManifest();
  const auto decoded = DecodeManifest(EncodeManifest(manifest), "manifest.json");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->uuid, manifest.uuid);
  EXPECT_EQ(decoded->layout, manifest.layout);
  EXPECT_EQ(decoded->tile_elems, manifest.tile_elems);
  ASSERT_EQ(decoded->inventory.tensors().size(), manifest.inventory.tensors().size());
  for (size_t i = 0; i < manifest.inventory.tensors().size(); ++i) {
    const TensorSpec& expected = manifest.inventory.tensors()[i];
    const TensorSpec& actual = decoded->inventory.tensors()[i];
    EXPECT_EQ(actual.name, expected.name);
    EXPECT_EQ(actual.shape, expected.shape);
    EXPECT_EQ(actual.role, expected.role);
    EXPECT_EQ(actual.decay, expected.decay);
    EXPECT_EQ(actual.layer, expected.layer);
    EXPECT_EQ(actual.offset_elems, expected.offset_elems);
  }
  EXPECT_EQ(decoded->inventory.layers()[1].name, "layers.0");
}

TEST(StoreManifest, KeepsEveryLayoutAndSetOfMoments) {
  for (const Layout layout : kLayouts) {
    for (const MomentSet moments : {MomentSet{true, true}, MomentSet{true, false},
                                    MomentSet{false, true}, MomentSet{false, false}}) {
      StoreManifest manifest = SmallManifest();
      manifest.layout = layout;
      manifest.moment_set = moments;
      const auto decoded = DecodeManifest(EncodeManifest(manifest), "manifest.json");
      ASSERT_TRUE(decoded.ok()) << decoded.status();
      EXPECT_EQ(decoded->layout, layout);
      EXPECT_EQ(decoded->moment_set, moments);
    }
  }
}

TEST(StoreManifest, KeepsTheStripesAndItsOwn) {
  StoreManifest manifest = SmallManifest();
  manifest.stripe_weights = {3, 1, kMaxStripeWeight};
  manifest.stripe = 2;
  const auto decoded = DecodeManifest(EncodeManifest(manifest), "manifest.json");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->stripe_weights, manifest.stripe_weights);
  EXPECT_EQ(decoded->stripe, 2);
}

TEST(StoreManifest, AChangedValueIsFoundByTheChecksum) {
  const std::string text = Replaced(EncodeManifest(SmallManifest()), "layers.1.up", "layers.1.uq");
  const auto decoded = DecodeManifest(text, "manifest.json");
  EXPECT_EQ(ExitCodeOf(decoded.status()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(decoded.status()), HasSubstr("'manifest.json'"));
  EXPECT_THAT(MessageOf(decoded.status()), HasSubstr("checksum"));
}

TEST(StoreManifest, EveryFlippedBitIsFoundOrHarmless) {
  const std::string good = EncodeManifest(SmallManifest());
  for (size_t bit = 0; bit < 8 * good.size(); bit += 11) {
    std::string text = good;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    const auto decoded = DecodeManifest(text, "manifest.json");
    if (decoded.ok()) {
      EXPECT_EQ(EncodeManifest(*decoded), good) << bit;
    } else {
      EXPECT_EQ(ExitCodeOf(decoded.status()), ExitCode::kCorrupt) << bit;
    }
  }
}

TEST(StoreManifest, EveryTruncationIsFound) {
  const std::string good = EncodeManifest(SmallManifest());
  for (size_t size = 0; size + 1 < good.size(); size += 13) {
    EXPECT_EQ(ExitCodeOf(DecodeManifest(good.substr(0, size), "manifest.json").status()),
              ExitCode::kCorrupt);
  }
}

TEST(StoreManifest, AnUnknownVersionIsNamed) {
  for (const char* const version : {"5", "8"}) {
    const std::string text = Replaced(EncodeManifest(SmallManifest()), "\"version\": 6",
                                      std::string("\"version\": ") + version);
    const auto decoded = DecodeManifest(text, "manifest.json");
    EXPECT_EQ(ExitCodeOf(decoded.status()), ExitCode::kCorrupt);
    EXPECT_THAT(MessageOf(decoded.status()),
                HasSubstr(std::string("version ") + version + "; this program reads version 6"));
  }
}

TEST(StoreManifest, AnotherProgramsFileIsNoStore) {
  const auto decoded = DecodeManifest(R"({"format": "something else"})", "manifest.json");
  EXPECT_EQ(ExitCodeOf(decoded.status()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(decoded.status()), HasSubstr("forebay store"));
}

// With a right checksum, as damage alone cannot make.
std::string Encoded(Json json) {
  json.erase("xxh3_128");
  Xxh3_128 hash;
  hash.Update(json.dump());
  json["xxh3_128"] = hash.Hex();
  return json.dump();
}

TEST(StoreManifest, NumbersThatAreNoIntegersOfOursAreRefused) {
  const Json good = Json::parse(EncodeManifest(SmallManifest()));
  for (const char* const place : {"/version", "/tile_elems", "/stripe", "/stripe_weights/0",
                                  "/layers/0/num_elems", "/layers/0/tensors/0/offset_elems",
                                  "/layers/0/tensors/0/role", "/layers/0/tensors/0/shape/0"}) {
    for (const char* const number : {"1e71", "-1e71", "9223372036854775808", "0.5", "true", "-1"}) {
      Json json = good;
      json.at(Json::json_pointer(place)) = Json::parse(number);
      EXPECT_EQ(ExitCodeOf(DecodeManifest(Encoded(json), "m").status()), ExitCode::kCorrupt)
          << place << " " << number;
    }
  }
}

// Were one byte another, no store that exists would fit its commit records any more.
TEST(StoreManifest, WithoutRawLayersIsWhatItAlwaysWas) {
  EXPECT_EQ(HashOfManifest(SmallManifest()), uint64_t{0x349f94e33ac4c6c0});
}

TEST(StoreManifest, KeepsRawLayersInAVersionOfTheirOwn) {
  StoreManifest manifest = SmallManifest();
  manifest.inventory = WithRawLayers(manifest.inventory);
  const std::string text = EncodeManifest(manifest);
  EXPECT_THAT(text, HasSubstr("\"version\": 7"));
  EXPECT_NE(HashOfManifest(manifest), HashOfManifest(SmallManifest()));
  const auto decoded = DecodeManifest(text, "m");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(EncodeManifest(*decoded), text);
  const Inventory& inventory = decoded->inventory;
  EXPECT_EQ(inventory.num_raw_bytes(), manifest.inventory.num_raw_bytes());
  EXPECT_TRUE(inventory.Find("mask")->raw);
  EXPECT_EQ(inventory.Find("mask")->num_elems, 4097);
  EXPECT_EQ(inventory.Find("mask")->offset_elems, manifest.inventory.Find("mask")->offset_elems);
  EXPECT_FALSE(inventory.Find("head.norm")->raw);
  EXPECT_TRUE(inventory.layers().back().raw);
}

TEST(StoreManifest, RawLayersThatDoNotFitTogetherAreRefused) {
  StoreManifest manifest = SmallManifest();
  manifest.inventory = WithRawLayers(manifest.inventory);
  const Json good = Json::parse(EncodeManifest(manifest));
  ASSERT_TRUE(DecodeManifest(Encoded(good), "m").ok());
  const auto is_refused = [&](const char* place, const Json& value) {
    Json json = good;
    json[Json::json_pointer(place)] = value;
    return ExitCodeOf(DecodeManifest(Encoded(json), "m").status()) == ExitCode::kCorrupt;
  };
  EXPECT_TRUE(is_refused("/version", 6));
  for (const Json& no_flag : {Json(false), Json(1), Json("true"), Json(nullptr)}) {
    EXPECT_TRUE(is_refused("/layers/4/raw", no_flag)) << no_flag;
  }
  EXPECT_TRUE(is_refused("/layers/0/raw", true));
  for (const Json& no_size : {Json(-1), Json(0.5), Json((int64_t{1} << 48) + 1), Json("3")}) {
    EXPECT_TRUE(is_refused("/layers/4/tensors/1/num_bytes", no_size)) << no_size;
  }
  EXPECT_TRUE(is_refused("/layers/4/tensors/1/offset_elems", 1));
  EXPECT_TRUE(is_refused("/layers/4/num_elems", 2048));
  Json plain = Json::parse(EncodeManifest(SmallManifest()));
  plain["version"] = 7;
  EXPECT_EQ(ExitCodeOf(DecodeManifest(Encoded(plain), "m").status()), ExitCode::kCorrupt);
}

TEST(StoreManifest, UnknownMomentsAreRefused) {
  for (const Json& moments :
       {Json(1), Json("m"), Json({"v", "m"}), Json({"m", "w"}), Json(nullptr)}) {
    Json json = Json::parse(EncodeManifest(SmallManifest()));
    json["moments"] = moments;
    EXPECT_EQ(ExitCodeOf(DecodeManifest(Encoded(json), "m").status()), ExitCode::kCorrupt)
        << moments;
  }
}

TEST(StoreManifest, ImpossibleStripesAreRefused) {
  const Json good = Json::parse(EncodeManifest(SmallManifest()));
  const auto refused = [&](const Json& stripe, const Json& weights) {
    Json json = good;
    json["stripe"] = stripe;
    json["stripe_weights"] = weights;
    return ExitCodeOf(DecodeManifest(Encoded(json), "m").status()) == ExitCode::kCorrupt;
  };
  EXPECT_FALSE(refused(1, {2, 1}));
  EXPECT_TRUE(refused(2, {2, 1}));
  EXPECT_TRUE(refused(-1, {2, 1}));
  EXPECT_TRUE(refused(0, Json::array()));
  EXPECT_TRUE(refused(0, {0}));
  EXPECT_TRUE(refused(0, {1.5, 1}));
  EXPECT_TRUE(refused(0, {kMaxStripeWeight + 1}));
  EXPECT_TRUE(refused(0, Json({{"a", 1}})));
  EXPECT_TRUE(refused("0", {1}));
  EXPECT_TRUE(refused(0, Json(std::vector<int>(kMaxStripes + 1, 1))));
}

TEST(StoreManifest, SizesWhoseSumOverflowsAreRefused) {
  Json json = Json::parse(EncodeManifest(SmallManifest()));
  ASSERT_TRUE(DecodeManifest(Encoded(json), "manifest.json").ok());
  constexpr int64_t kHuge = int64_t{1} << 48;
  json["layers"] = Json::array();
  for (int layer = 0; layer < 3; ++layer) {
    json["layers"].push_back({{"name", "l"},
                              {"num_elems", kHuge},
                              {"tensors",
                               {{{"name", "t"},
                                 {"shape", {kHuge}},
                                 {"role", 1},
                                 {"decay", true},
                                 {"offset_elems", 0}}}}});
  }
  const auto decoded = DecodeManifest(Encoded(json), "manifest.json");
  EXPECT_EQ(ExitCodeOf(decoded.status()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(decoded.status()), HasSubstr("do not fit together"));
}

// Seeds that the version, or a key that is missing, keeps from what they are for would find
// nothing.
TEST(StoreManifest, TheSeedsOfItsFuzzerAreOfThisVersion) {
  int num_whole = 0;
  const std::string folder = FOREBAY_SOURCE_DIR "/tests/fuzz/corpus/store_files";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("manifest") || name == "manifest_huge_version") continue;
    SCOPED_TRACE(name);
    const std::string seed = *ReadWholeFile(entry.path(), 1 << 20);
    ASSERT_EQ(seed.front(), '\0');  // of what kind it is
    const auto decoded = DecodeManifest(Encoded(Json::parse(seed.substr(1))), "manifest.json");
    if (name.ends_with("overflow") || name == "manifest_no_layers") {
      EXPECT_THAT(MessageOf(decoded.status()), HasSubstr("do not fit together"));
    } else {
      EXPECT_TRUE(decoded.ok()) << decoded.status();
      ++num_whole;
    }
  }
  EXPECT_GE(num_whole, 4);
}

TEST(StoreManifest, MoreTilesThanCanBeCountedAreRefused) {
  Json json = Json::parse(EncodeManifest(SmallManifest()));
  constexpr int64_t kMany = int64_t{1} << 44;
  json["tile_elems"] = 2048;
  json["layers"] = Json::array({{{"name", "l"},
                                 {"num_elems", kMany},
                                 {"tensors",
                                  {{{"name", "t"},
                                    {"shape", {kMany}},
                                    {"role", 1},
                                    {"decay", true},
                                    {"offset_elems", 0}}}}}});
  const auto decoded = DecodeManifest(Encoded(json), "manifest.json");
  EXPECT_EQ(ExitCodeOf(decoded.status()), ExitCode::kCorrupt);
  json["tile_elems"] = 1 << 30;
  EXPECT_TRUE(DecodeManifest(Encoded(json), "manifest.json").ok());
}

}  // namespace
}  // namespace forebay
