#include "forebay/train/options/option_table.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

// Whether the option accepts what a flag would give it.
bool Accepts(std::string_view name, std::string_view text) {
  const OptionSpec* spec = FindOption(name);
  const std::optional<Json> value = spec->parse(text);
  TrainOptions options;
  return value.has_value() && spec->set(*value, options);
}

TEST(OptionTable, NamesAreUnique) {
  std::set<std::string> names;
  for (const OptionSpec& spec : OptionTable())
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
}

TEST(OptionTable, EveryOptionBelongsToASection) {
  for (const OptionSpec& spec : OptionTable()) {
    EXPECT_THAT(OptionSections(), testing::Contains(spec.section)) << spec.name;
  }
}

TEST(OptionTable, EveryDefaultIsAllowedAndRoundTripsThroughItsText) {
  for (const OptionSpec& spec : OptionTable()) {
    const Json before = spec.get(TrainOptions{});
    const std::optional<Json> parsed = spec.parse(ValueText(before));
    ASSERT_TRUE(parsed.has_value()) << spec.name;
    TrainOptions options;
    ASSERT_TRUE(spec.set(*parsed, options)) << spec.name;
    EXPECT_EQ(spec.get(options), before) << spec.name;
  }
}

TEST(OptionTable, EveryValueRoundTripsThroughJson) {
  const std::vector<std::pair<std::string, std::string>> values = {
      {"model", "a b"},
      {"data", "a.jsonl:2,b"},
      {"truncate", "true"},
      {"batch", "7"},
      {"seed", "18446744073709551615"},
      {"lr", "1.5e-06"},
      {"schedule", "cosine"},
      {"betas", "0.8,0.95"},
      {"ram", "1073741824"},
      {"threads", "3"},
      {"update_threads", "1"},
      {"tile_elems", "4096"},
      {"state_tier", "nvme"},
      {"precision", "fp32"},
      {"layout", "fp32"},
      {"grad_dtype", "fp32"},
      {"export", "none"},
      {"export_dtype", "fp16"},
      {"decay_all", "true"},
      {"engine", "libaio"},
      {"recompute", "attention"},
      {"recompute_layers", "5"},
      {"number_checkpoints", "6"},
      {"engine_strict", "true"},
      {"optimizer", "lion"},
      {"momentum", "0.9"},
      {"nesterov", "true"},
      {"opt_level", "O2"},
      {"loss_scaling", "stage0"},
      {"loss_scale", "1024"},
      {"initial_scale_power", "32"},
      {"loss_scale_window", "500"},
      {"hysteresis", "4"},
      {"consecutive_hysteresis", "true"},
      {"min_loss_scale", "0.25"},
      {"from", "a/run"},
      {"trace", "a/trace.json"},
      {"trace_steps", "4-6"},
      {"max_tbw", "0.5"},
      {"param_groups", R"([{"match":"*.bias","lr":1e-06,"weight_decay":0.5}])"}};
  for (const auto& [name, text] : values) {
    const OptionSpec* spec = FindOption(name);
    TrainOptions options, copy;
    ASSERT_TRUE(spec->set(*spec->parse(text), options)) << name;
    EXPECT_EQ(OptionText(options, name), text);
    ASSERT_TRUE(spec->set(Json::parse(spec->get(options).dump()), copy)) << name;
    EXPECT_EQ(spec->get(copy), spec->get(options)) << name;
    EXPECT_NE(spec->get(copy), spec->get(TrainOptions{})) << name;
  }
}

TEST(OptionTable, ImpossibleValuesAreRefused) {
  const std::vector<std::pair<std::string, std::string>> values = {
      {"batch", "0"},
      {"batch", "-1"},
      {"batch", "4.5"},
      {"batch", ""},
      {"batch", "four"},
      {"accum", "65537"},
      {"accum", "99999999999999999999999"},
      {"seq", "1"},
      {"seed", "-1"},
      {"steps", "-1"},
      {"epochs", "0"},
      {"lr", "0"},
      {"lr", "-1e-5"},
      {"lr", "nan"},
      {"lr", "inf"},
      {"lr", "1e-5x"},
      {"eps", "0"},
      {"clip", "-1"},
      {"weight_decay", "-0.1"},
      {"betas", "0.9"},
      {"betas", "0.9,1"},
      {"betas", "1,0.9"},
      {"betas", "-0.1,0.9"},
      {"betas", "0.9,0.99,0.9"},
      {"ram", "lots"},
      {"ram", "12"},
      {"ram", "-1"},
      {"ram", "1e30"},
      {"trace_steps", "0-2"},
      {"trace_steps", "3-2"},
      {"trace_steps", "-2"},
      {"trace_steps", "2-"},
      {"trace_steps", "2-x"},
      {"max_tbw", "-1"},
      {"max_tbw", "nan"},
      {"tile_elems", "1000"},
      {"tile_elems", "0"},
      {"tile_elems", "-2048"},
      {"tile_elems", "2049"},
      {"schedule", "sine"},
      {"schedule_args", "power"},
      {"schedule_args", "power="},
      {"schedule_args", "=2"},
      {"schedule_args", "power=1,"},
      {"schedule_args", "power=1,power=2"},
      {"precision", "fp8"},
      {"layout", "fp8"},
      {"layout", "int8"},
      {"optimizer", "adamax"},
      {"opt_level", "O4"},
      {"loss_scaling", "apex"},
      {"loss_scale", "-1"},
      {"initial_scale_power", "127"},
      {"loss_scale_window", "0"},
      {"hysteresis", "0"},
      {"min_loss_scale", "0"},
      {"momentum", "1.5"},
      {"param_groups", "*.bias"},
      {"param_groups", "{}"},
      {"param_groups", "[{}]"},
      {"param_groups", R"([{"match": "*.bias"}])"},
      {"param_groups", R"([{"lr": 1}])"},
      {"param_groups", R"([{"match": "", "lr": 1}])"},
      {"param_groups", R"([{"match": "a", "lr": -1}])"},
      {"param_groups", R"([{"match": "a", "lr": "1"}])"},
      {"param_groups", R"([{"match": "a", "decay": 1}])"},
      {"weights_tier", "gpu"},
      {"keep", "0"},
      {"threads", "-1"},
      {"update_threads", "1025"},
      {"io_threads", "0"},
      {"engine", "spdk"},
      {"engine_strict", "perhaps"},
      {"truncate", "maybe"},
      {"export", "gguf"}};
  for (const auto& [name, text] : values) EXPECT_FALSE(Accepts(name, text)) << name << "=" << text;
}

TEST(OptionTable, SizesTakeSuffixes) {
  TrainOptions options;
  ASSERT_TRUE(FindOption("ram")->set(Json("1.5GiB"), options));
  EXPECT_EQ(options.ram_bytes, 3 * (int64_t{1} << 29));
  ASSERT_TRUE(FindOption("ram")->set(Json("auto"), options));
  EXPECT_EQ(options.ram_bytes, 0);
  ASSERT_TRUE(FindOption("tile_elems")->set(Json("512K"), options));
  EXPECT_EQ(options.tile_elems, 512 << 10);
}

TEST(OptionTable, ArgumentsOfTheScheduleAreTheSameInAnyOrder) {
  const auto given = [](const std::string& text) {
    const OptionSpec* spec = FindOption("schedule_args");
    TrainOptions options;
    EXPECT_TRUE(spec->set(*spec->parse(text), options));
    return OptionText(options, "schedule_args");
  };
  EXPECT_EQ(given("power=2,end_lr=0"), given("end_lr=0,power=2"));
  EXPECT_NE(given("power=2,end_lr=0"), given("power=0,end_lr=2"));
}

TEST(OptionTable, ARefusedValueChangesNothing) {
  TrainOptions options;
  EXPECT_FALSE(FindOption("betas")->set(Json::array({0.5, 1.5}), options));
  EXPECT_EQ(options.beta1, TrainOptions{}.beta1);
}

TEST(OptionTable, ValuesOfAnotherJsonTypeAreRefused) {
  TrainOptions options;
  EXPECT_FALSE(FindOption("batch")->set(Json("4"), options));
  EXPECT_FALSE(FindOption("batch")->set(Json(4.0), options));
  EXPECT_FALSE(FindOption("lr")->set(Json(nullptr), options));
  EXPECT_FALSE(FindOption("model")->set(Json(3), options));
  EXPECT_FALSE(FindOption("truncate")->set(Json(1), options));
  EXPECT_FALSE(FindOption("betas")->set(Json::array({"0.9", "0.99"}), options));
}

TEST(OptionTable, DataInAListIsThatOfATextWithCommas) {
  TrainOptions options;
  ASSERT_TRUE(FindOption("data")->set(Json::array({"a.jsonl:2", "b.txt"}), options));
  EXPECT_EQ(options.data, "a.jsonl:2,b.txt");
  for (const Json& wrong : {Json::array({"c.txt", 1}), Json::array({"c.txt", ""}), Json::array()}) {
    EXPECT_FALSE(FindOption("data")->set(wrong, options)) << wrong;
  }
  EXPECT_EQ(options.data, "a.jsonl:2,b.txt");
}

TEST(OptionTable, HyphensCountAsUnderscores) {
  EXPECT_EQ(FindOption("eval-data"), FindOption("eval_data"));
  EXPECT_EQ(FindOption("no_such_option"), nullptr);
}

}  // namespace
}  // namespace forebay
