#include "forebay/train/start/resolve_options.h"

#include <filesystem>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/data/packed_bytes.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

// What a train command needs, plus `flags`.
OptionInputs TrainInputs(std::vector<std::pair<std::string, std::string>> flags = {}) {
  OptionInputs inputs;
  inputs.flags = {{"model", "m"}, {"data", "d.txt"}, {"out", "o"}};
  inputs.flags.insert(inputs.flags.end(), flags.begin(), flags.end());
  return inputs;
}

std::string MessageFor(const OptionInputs& inputs) {
  const absl::StatusOr<ResolvedOptions> resolved = ResolveOptions(inputs, OptionsUse::kTrain);
  EXPECT_EQ(ExitCodeOf(resolved.status()), ExitCode::kUsage);
  return MessageOf(resolved.status());
}

class ConfigFile : public testing::Test {
 protected:
  OptionInputs WithConfig(std::string_view text) {
    OptionInputs inputs = TrainInputs();
    inputs.config_file = folder_.Path("config.json");
    EXPECT_TRUE(WriteFileAtomically(inputs.config_file, text).ok());
    return inputs;
  }
  TemporaryFolder folder_;
};

TEST_F(ConfigFile, EachSourceOverridesTheOnesBeforeIt) {
  OptionInputs inputs = WithConfig(R"({"data": {"batch": 2, "accum": 2, "seq": 64}})");
  inputs.flags.emplace_back("accum", "3");
  inputs.flags.emplace_back("seq", "128");
  inputs.sets = {"data.seq=256"};
  const auto resolved = ResolveOptions(inputs, OptionsUse::kTrain);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->options.batch, 2);
  EXPECT_EQ(resolved->options.accum, 3);
  EXPECT_EQ(resolved->options.seq, 256);
  const Json& data = resolved->resolved["data"];
  EXPECT_EQ(data["batch"]["origin"], "config " + inputs.config_file);
  EXPECT_EQ(data["accum"]["origin"], "flag");
  EXPECT_EQ(data["seq"]["origin"], "--set");
  EXPECT_EQ(data["seq"]["value"], 256);
  EXPECT_EQ(data["seed"]["origin"], "default");
}

TEST_F(ConfigFile, PackedDataSaysHowLongRowsAre) {
  const std::string packed = folder_.Path("data.packed");
  ASSERT_TRUE(WriteFileAtomically(packed, PackedBytes().Encode()).ok());
  const auto derived = ResolveOptions(TrainInputs({{"data", packed}}), OptionsUse::kTrain);
  ASSERT_TRUE(derived.ok()) << derived.status();
  EXPECT_EQ(derived->options.seq, 4);
  EXPECT_EQ(derived->resolved["data"]["seq"]["origin"], "planner");
  // What somebody said stays; the data will be refused with both lengths named.
  const auto given =
      ResolveOptions(TrainInputs({{"data", packed}, {"seq", "64"}}), OptionsUse::kTrain);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->options.seq, 64);
}

TEST_F(ConfigFile, CommentsListsAndSizesAreUnderstood) {
  const auto resolved = ResolveOptions(WithConfig(R"({
    // a comment
    "optim": {"betas": [0.8, 0.9], "lr": 1},  /* another */
    "offload": {"ram": "2GiB", "tile_elems": "64K"}
  })"),
                                       OptionsUse::kTrain);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->options.beta1, 0.8);
  EXPECT_EQ(resolved->options.lr, 1.0);
  EXPECT_EQ(resolved->options.ram_bytes, int64_t{2} << 30);
  EXPECT_EQ(resolved->options.tile_elems, 64 << 10);
}

TEST_F(ConfigFile, AResolvedConfigurationIsOneToo) {
  OptionInputs first = TrainInputs({{"lr", "3e-4"}, {"precision", "fp32"}});
  const auto resolved = ResolveOptions(first, OptionsUse::kTrain);
  ASSERT_TRUE(resolved.ok());
  const auto again = ResolveOptions(WithConfig(resolved->resolved.dump()), OptionsUse::kTrain);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->options.lr, 3e-4);
  EXPECT_EQ(again->options.layout, Layout::kFp32);
  EXPECT_EQ(again->resolved["offload"]["layout"]["origin"], "planner");
}

TEST_F(ConfigFile, UnknownNamesAreNamedWithTheNearest) {
  EXPECT_THAT(MessageFor(WithConfig(R"({"optm": {"lr": 1}})")),
              HasSubstr("unknown section 'optm'; did you mean 'optim'?"));
  EXPECT_THAT(MessageFor(WithConfig(R"({"data": {"bacth": 1}})")),
              HasSubstr("unknown key 'data.bacth'; did you mean 'batch'?"));
}

TEST_F(ConfigFile, AKeyInTheWrongPlaceIsToldWhereItBelongs) {
  EXPECT_THAT(MessageFor(WithConfig(R"({"data": {"lr": 1}})")),
              HasSubstr("'lr' belongs into the section 'optim'"));
  EXPECT_THAT(MessageFor(WithConfig(R"({"lr": 1})")),
              HasSubstr("'lr' belongs into the section 'optim'"));
}

TEST_F(ConfigFile, AValueThatIsNotAllowedIsNamedWithItsFile) {
  const std::string message = MessageFor(WithConfig(R"({"data": {"batch": -4}})"));
  EXPECT_THAT(message, HasSubstr("data.batch in "));
  EXPECT_THAT(message, HasSubstr("is -4; allowed: a whole number from 1 to 65536"));
}

TEST_F(ConfigFile, AParameterGroupThatMakesNoSenseIsNamedWithWhatIsWrong) {
  const auto message_for = [](const std::string& groups) {
    return MessageFor(TrainInputs({{"param_groups", groups}}));
  };
  EXPECT_THAT(message_for(R"([{"match": "a", "lr": 0}, {"match": "b", "weigth_decay": 0}])"),
              HasSubstr("group 2: unknown key 'weigth_decay'; did you mean 'weight_decay'?"));
  EXPECT_THAT(message_for(R"([{"lr": 0}])"), HasSubstr("group 1: it has no 'match'"));
  EXPECT_THAT(message_for(R"([{"match": 3, "lr": 0}])"), HasSubstr("group 1: 'match' is 3"));
  EXPECT_THAT(message_for(R"([{"match": "a", "lr": 11}])"),
              HasSubstr("group 1: 'lr' is 11, and has to be a number from 0 to 10"));
  EXPECT_THAT(message_for(R"([{"match": "a"}])"), HasSubstr("neither 'lr' nor 'weight_decay'"));
  EXPECT_THAT(message_for(R"({"match": "a", "lr": 0})"), HasSubstr("it is no list"));
  EXPECT_THAT(message_for("[\"a\"]"), HasSubstr("group 1: \"a\" is no object"));
  // What a shell leaves of quotes.
  EXPECT_THAT(message_for("[{match: *.bias, lr: 0}]"),
              HasSubstr("not valid JSON at line 1, column 3. In a shell it stands between single"));
  EXPECT_THAT(MessageFor(WithConfig(R"({"optim": {"param_groups": [{"match": "a", "l": 0}]}})")),
              HasSubstr("group 1: unknown key 'l'"));
}

TEST_F(ConfigFile, ACycleOfMomentumNeedsAnOptimizerThatHasIt) {
  const auto one_cycle = [](std::vector<std::pair<std::string, std::string>> flags) {
    flags.emplace_back("schedule", "one_cycle");
    return TrainInputs(std::move(flags));
  };
  EXPECT_THAT(MessageFor(one_cycle({{"optimizer", "sgd"}})),
              HasSubstr("Give --optimizer_args=momentum, or --schedule_args=cycle_momentum=false"));
  EXPECT_THAT(MessageFor(one_cycle({{"optimizer", "adagrad"}})),
              HasSubstr("--optimizer=adagrad has none. Give --schedule_args=cycle_momentum=false"));
  for (const auto& inputs :
       {one_cycle({}), one_cycle({{"optimizer", "sgd"}, {"momentum", "0.5"}}),
        one_cycle({{"optimizer", "adagrad"}, {"schedule_args", "cycle_momentum=false"}})}) {
    const auto resolved = ResolveOptions(inputs, OptionsUse::kTrain);
    EXPECT_TRUE(resolved.ok()) << resolved.status();
  }
}

TEST_F(ConfigFile, AnArgumentOfAScheduleThatIsNoNumberIsShownAsItWasTyped) {
  for (const std::string typed : {"nan", "inf", "1e999"}) {
    EXPECT_THAT(
        MessageFor(TrainInputs({{"schedule", "polynomial"}, {"schedule_args", "power=" + typed}})),
        HasSubstr("power=" + typed + " is not allowed; give a number above 0"));
  }
}

TEST_F(ConfigFile, AFileThatIsNoConfigurationIsAUsageError) {
  EXPECT_THAT(MessageFor(WithConfig("{\"data\": ")), HasSubstr("not valid JSON at line 1"));
  EXPECT_THAT(MessageFor(WithConfig("[1]")),
              HasSubstr("an object of sections (model, data, optim, offload, io)"));
  EXPECT_THAT(MessageFor(WithConfig(R"({"data": 3})")),
              HasSubstr("the section 'data' is not an object"));
  EXPECT_THAT(MessageFor(WithConfig(R"({"data": {"batch": 1, "batch": 2}})")),
              HasSubstr("appears twice"));
  OptionInputs missing = TrainInputs();
  missing.config_file = folder_.Path("nowhere.json");
  EXPECT_THAT(MessageFor(missing), HasSubstr("nowhere.json' does not exist. Check the path"));
}

class ResumedRun : public ConfigFile {
 protected:
  OptionInputs InRun(std::vector<std::pair<std::string, std::string>> flags) {
    OptionInputs inputs;
    inputs.flags = {{"out", folder_.path()}};
    inputs.flags.insert(inputs.flags.end(), flags.begin(), flags.end());
    return inputs;
  }
  void SaveRun(std::vector<std::pair<std::string, std::string>> flags) {
    OptionInputs inputs = InRun(flags);
    inputs.flags.emplace_back("model", "m");
    inputs.flags.emplace_back("data", "d.txt");
    const auto resolved = ResolveOptions(inputs, OptionsUse::kTrain);
    ASSERT_TRUE(resolved.ok()) << resolved.status();
    ASSERT_TRUE(
        WriteFileAtomically(folder_.Path("resolved_config.json"), resolved->resolved.dump()).ok());
    // What makes it a run folder.
    ASSERT_TRUE(WriteFileAtomically(folder_.Path("run.json"), "{}").ok());
  }
};

TEST_F(ResumedRun, WhatWasRemovedSinceIsIgnored) {
  SaveRun({{"lr", "0.5"}});
  const std::string file = folder_.Path("resolved_config.json");
  Json settings = *ReadJsonFile(file, 1 << 20);
  settings["offload"]["scrub_every"] = {{"value", 5}, {"origin", "--scrub_every"}};
  settings["offload"]["share_gpu"] = {{"value", false}, {"origin", "default"}};
  ASSERT_TRUE(WriteFileAtomically(file, settings.dump()).ok());
  const auto resumed = ResolveOptions(InRun({{"resume", "true"}}), OptionsUse::kTrain);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->options.lr, 0.5);
  // As the configuration of another run it is noted if somebody gave it.
  OptionInputs of_another = TrainInputs();
  of_another.config_file = file;
  const auto begun = ResolveOptions(of_another, OptionsUse::kTrain);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_THAT(begun->notes, testing::ElementsAre(HasSubstr("'scrub_every' of the run is no more")));
}

TEST_F(ResumedRun, TakesOverTheSettingsOfTheRun) {
  SaveRun({{"lr", "0.5"},
           {"steps", "20"},
           {"stop_after", "4"},
           {"max_tbw", "3"},
           {"trace", "t.json"},
           {"trace_steps", "2-4"}});
  const auto resolved =
      ResolveOptions(InRun({{"resume", "true"}, {"threads", "2"}}), OptionsUse::kTrain);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->options.model, "m");
  EXPECT_EQ(resolved->options.lr, 0.5);
  EXPECT_EQ(resolved->options.steps, 20);
  EXPECT_EQ(resolved->options.stop_after, 0);
  EXPECT_EQ(resolved->options.max_tbw, 3);
  EXPECT_EQ(resolved->options.trace, "");
  EXPECT_EQ(resolved->options.trace_steps.first, 0);
  EXPECT_EQ(resolved->options.threads, 2);
  EXPECT_EQ(resolved->resolved["optim"]["lr"]["origin"], "run " + folder_.path());
}

TEST_F(ResumedRun, FlagsOverrideTheSettingsOfTheRun) {
  SaveRun({{"ram", "2GiB"}});
  const auto resolved =
      ResolveOptions(InRun({{"resume", "true"}, {"ram", "3GiB"}}), OptionsUse::kTrain);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->options.ram_bytes, int64_t{3} << 30);
}

TEST_F(ResumedRun, IsNamedInAnyPlaceWhereOptionsAreSaid) {
  SaveRun({{"lr", "0.5"}});
  const auto lr = [](const OptionInputs& inputs) {
    const auto resolved = ResolveOptions(inputs, OptionsUse::kTrain);
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return resolved.ok() ? resolved->options.lr : 0.0;
  };
  OptionInputs by_set;
  by_set.sets = {"resume=true", "io.out=" + folder_.path()};
  EXPECT_EQ(lr(by_set), 0.5);
  OptionInputs by_config;
  by_config.flags = {{"resume", "true"}};
  by_config.config_file = folder_.Path("config.json");
  ASSERT_TRUE(
      WriteFileAtomically(by_config.config_file, Json({{"io", {{"out", folder_.path()}}}}).dump())
          .ok());
  EXPECT_EQ(lr(by_config), 0.5);
  OptionInputs nowhere;
  nowhere.sets = {"resume=true"};
  EXPECT_THAT(MessageFor(nowhere), HasSubstr("--resume needs --out"));
}

TEST_F(ResumedRun, WithoutResumeTheRunIsNotRead) {
  SaveRun({});
  EXPECT_THAT(MessageFor(InRun({})), HasSubstr("--model is required"));
}

TEST(ResolveOptions, AllProblemsAreReportedAtOnce) {
  OptionInputs inputs;
  inputs.flags = {{"batch", "0"}, {"lr", "fast"}};
  inputs.unknown_flags = {"--eval_dta=x"};
  inputs.sets = {"warmpu=1", "nonsense", "io.lr=1"};
  const std::string message = MessageFor(inputs);
  EXPECT_THAT(message, HasSubstr("9 problems with the options:"));
  EXPECT_THAT(message, HasSubstr("unknown flag '--eval_dta=x'; did you mean '--eval_data'?"));
  EXPECT_THAT(message, HasSubstr("--batch is 0; allowed: a whole number from 1 to 65536"));
  EXPECT_THAT(message, HasSubstr("--lr is 'fast'; allowed: a number above 0 to 10"));
  EXPECT_THAT(message, HasSubstr("--set warmpu=1: unknown key 'warmpu'; did you mean 'warmup'?"));
  EXPECT_THAT(message, HasSubstr("--set nonsense: write it as section.key=value or key=value"));
  EXPECT_THAT(message, HasSubstr("--set io.lr=1: the key 'lr' belongs into the section 'optim'"));
  EXPECT_THAT(message, HasSubstr("--model is required"));
  EXPECT_THAT(message, HasSubstr("--data is required"));
  EXPECT_THAT(message, HasSubstr("--out is required"));
}

TEST(ResolveOptions, APlanNeedsOnlyAModel) {
  OptionInputs inputs;
  inputs.flags = {{"model", "m"}};
  EXPECT_TRUE(ResolveOptions(inputs, OptionsUse::kPlan).ok());
}

TEST(ResolveOptions, LayoutAndGradientsFollowThePrecision) {
  const auto fp32 = ResolveOptions(TrainInputs({{"precision", "fp32"}}), OptionsUse::kTrain);
  ASSERT_TRUE(fp32.ok());
  EXPECT_EQ(fp32->options.layout, Layout::kFp32);
  EXPECT_EQ(fp32->options.grad_dtype, DType::kF32);
  const auto mixed = ResolveOptions(TrainInputs({{"grad_dtype", "fp32"}}), OptionsUse::kTrain);
  ASSERT_TRUE(mixed.ok());
  EXPECT_EQ(mixed->options.layout, Layout::kBf16);
  EXPECT_EQ(mixed->options.grad_dtype, DType::kF32);
  const auto fp16 = ResolveOptions(TrainInputs({{"precision", "fp16"}}), OptionsUse::kTrain);
  ASSERT_TRUE(fp16.ok());
  EXPECT_EQ(fp16->options.layout, Layout::kFp16);
  EXPECT_EQ(fp16->options.grad_dtype, DType::kF16);
  EXPECT_EQ(fp16->options.export_dtype, DType::kF16);
}

TEST(ResolveOptions, ApexLevelsArePresets) {
  const auto options_of = [](std::vector<std::pair<std::string, std::string>> flags) {
    const auto resolved = ResolveOptions(TrainInputs(flags), OptionsUse::kTrain);
    EXPECT_TRUE(resolved.ok()) << resolved.status();
    return resolved->options;
  };
  EXPECT_EQ(options_of({{"opt_level", "O0"}}).precision, cpu::Precision::kFp32);
  for (const char* level : {"O1", "O2", "O3"}) {
    const TrainOptions options = options_of({{"opt_level", level}});
    EXPECT_EQ(options.precision, cpu::Precision::kFp16) << level;
    EXPECT_EQ(options.layout, Layout::kFp16) << level;
    EXPECT_EQ(options.loss_scaling, LossScaling::kTorch) << level;
    EXPECT_EQ(options.loss_scale_window, 2000) << level;
    EXPECT_EQ(options.loss_scale, std::string_view(level) == "O3" ? 1 : 0) << level;
  }
  // What is said counts, as with Apex's own.
  EXPECT_EQ(options_of({{"opt_level", "O3"}, {"loss_scale", "128"}}).loss_scale, 128);
  EXPECT_EQ(options_of({{"opt_level", "O2"}, {"precision", "bf16"}}).layout, Layout::kBf16);
  EXPECT_EQ(options_of({{"opt_level", "O2"}, {"loss_scale_window", "7"}}).loss_scale_window, 7);
}

TEST(ResolveOptions, LossScalingThatNeverActsIsRefused) {
  EXPECT_THAT(MessageFor(TrainInputs({{"loss_scale", "128"}})),
              HasSubstr("--loss_scaling_args=loss_scale=128 is of --precision=fp16"));
  EXPECT_THAT(MessageFor(TrainInputs({{"precision", "fp32"}, {"hysteresis", "3"}})),
              HasSubstr("--precision=fp32 scales no loss"));
  EXPECT_THAT(MessageFor(TrainInputs(
                  {{"precision", "fp16"}, {"loss_scale", "128"}, {"loss_scale_window", "9"}})),
              HasSubstr("--loss_scaling_args=loss_scale_window=9 moves no loss scale that "
                        "--loss_scaling_args=loss_scale=128 fixes"));
  EXPECT_THAT(MessageFor(TrainInputs(
                  {{"precision", "fp16"}, {"loss_scaling", "stage0"}, {"hysteresis", "3"}})),
              HasSubstr("--loss_scaling_args=hysteresis=3 is of --loss_scaling=zero"));
  EXPECT_THAT(MessageFor(TrainInputs(
                  {{"precision", "fp16"}, {"loss_scaling", "torch"}, {"min_loss_scale", "2"}})),
              HasSubstr("--loss_scaling_args=min_loss_scale=2 is not of --loss_scaling=torch"));
  EXPECT_THAT(MessageFor(TrainInputs(
                  {{"precision", "fp16"}, {"initial_scale_power", "3"}, {"min_loss_scale", "16"}})),
              HasSubstr("--loss_scaling_args=min_loss_scale=16 is above the scale"));
}

TEST(ResolveOptions, OptionsThatExcludeOneAnotherAreRefused) {
  EXPECT_THAT(MessageFor(TrainInputs({{"layout", "fp32"}})),
              HasSubstr("--layout=fp32 does not go with --precision=bf16"));
  EXPECT_THAT(MessageFor(TrainInputs({{"layout", "bf16"}, {"precision", "fp32"}})),
              HasSubstr("--layout=bf16 does not go with --precision=fp32"));
  EXPECT_THAT(MessageFor(TrainInputs({{"layout", "int8-moments"}, {"precision", "fp16"}})),
              HasSubstr("Give --layout=fp16, or --precision=bf16"));
  EXPECT_THAT(MessageFor(TrainInputs({{"grad_dtype", "fp16"}})),
              HasSubstr("--set=grad_dtype=fp16 does not go with --precision=bf16"));
  EXPECT_THAT(MessageFor(TrainInputs({{"steps", "5"}, {"epochs", "2"}})),
              HasSubstr("--steps and --epochs exclude"));
  EXPECT_THAT(MessageFor(TrainInputs({{"steps", "5"}, {"warmup", "6"}})),
              HasSubstr("--warmup=6 is longer than the run"));
  EXPECT_THAT(MessageFor(TrainInputs({{"eval_every", "5"}})),
              HasSubstr("--eval_every=5 needs --eval_data"));
  EXPECT_THAT(MessageFor(TrainInputs({{"save_every", "5"}, {"export", "none"}})),
              HasSubstr("--save_every=5 does not go with --export=none"));
}

TEST(ResolveOptions, ArgumentsOfTheOptimizerComeInOneFlag) {
  const auto resolved = ResolveOptions(
      TrainInputs({{"optimizer_args", "betas=0.8,0.95,eps=1e-6,decay_all"},
                   {"precision", "fp16"},
                   {"loss_scaling_args", "hysteresis=3,consecutive_hysteresis=true"}}),
      OptionsUse::kTrain);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  const TrainOptions& options = resolved->options;
  EXPECT_EQ(options.beta1, 0.8);
  EXPECT_EQ(options.beta2, 0.95);
  EXPECT_EQ(options.eps, 1e-6);
  EXPECT_TRUE(options.decay_all);
  EXPECT_EQ(options.hysteresis, 3);
  EXPECT_TRUE(options.consecutive_hysteresis);
  EXPECT_EQ(resolved->resolved["optim"]["eps"]["origin"], "flag");
}

TEST(ResolveOptions, WrongArgumentsOfTheOptimizerAreNamed) {
  EXPECT_THAT(MessageFor(TrainInputs({{"optimizer_args", "eps=1e-6,bets=0.8,0.9"}})),
              HasSubstr("there is no argument 'bets'; did you mean 'betas'? It has "));
  EXPECT_THAT(MessageFor(TrainInputs({{"optimizer_args", "lr=1"}})),
              HasSubstr("there is no argument 'lr'"));
  EXPECT_THAT(MessageFor(TrainInputs({{"optimizer_args", "eps"}})),
              HasSubstr("'eps' has no value: write eps=VALUE"));
  EXPECT_THAT(MessageFor(TrainInputs({{"optimizer_args", "betas=0.8"}})),
              HasSubstr("--optimizer_args=betas is '0.8'; allowed: two numbers"));
  EXPECT_THAT(MessageFor(TrainInputs({{"loss_scaling_args", "eps=1"}})),
              HasSubstr("--loss_scaling_args: there is no argument 'eps'"));
}

TEST(ResolveOptions, AFlagThatBecameAnArgumentSaysHowItIsGivenNow) {
  OptionInputs inputs = TrainInputs();
  inputs.unknown_flags = {"--tile_elems=4096", "--betas=0.9,0.95", "--nesterov", "--hysteresis=3"};
  EXPECT_THAT(MessageFor(inputs),
              AllOf(HasSubstr("'--tile_elems=4096' is no more: write --set=tile_elems=VALUE"),
                    HasSubstr("write --optimizer_args=betas=VALUE"),
                    HasSubstr("write --optimizer_args=nesterov=true"),
                    HasSubstr("write --loss_scaling_args=hysteresis=VALUE")));
}

TEST(ResolveOptions, WhatWasRemovedIsAnErrorThatSaysWhatToDoInstead) {
  const TemporaryFolder folder;
  OptionInputs inputs = TrainInputs();
  inputs.unknown_flags = {"--scrub-every=5"};
  inputs.sets = {"offload.scrub_every=3"};
  inputs.config_file = folder.Path("config.json");
  ASSERT_TRUE(WriteFileAtomically(inputs.config_file, R"({"offload": {"share_gpu": true}})").ok());
  EXPECT_THAT(MessageFor(inputs),
              AllOf(HasSubstr("flag '--scrub-every=5' is no more: 'forebay inspect RUN --verify'"),
                    HasSubstr("--set offload.scrub_every=3: key 'scrub_every' is no more"),
                    HasSubstr("key 'offload.share_gpu' is no more: give each rank a GPU")));
}

TEST(ResolveOptions, CommasPartTheFoldersOfTheSwapArea) {
  const auto resolved = ResolveOptions(TrainInputs({{"nvme", "/a,b c"}, {"nvme_weights", "2,1.5"}}),
                                       OptionsUse::kTrain);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_THAT(resolved->options.nvme, testing::ElementsAre("/a", "b c"));
  EXPECT_THAT(resolved->options.nvme_weights, testing::ElementsAre(2, 1.5));
  EXPECT_EQ(resolved->resolved["offload"]["nvme"]["value"], Json({"/a", "b c"}));
}

TEST(ResolveOptions, AFolderWithACommaCanBeNamedInAList) {
  TemporaryFolder folder;
  const std::string config = folder.Path("config.json");
  const std::string path = folder.Path("a,b");
  const Json json = {{"offload", {{"nvme", Json::array({path})}}}};
  ASSERT_TRUE(WriteFileAtomically(config, json.dump()).ok());
  OptionInputs inputs = TrainInputs({});
  inputs.config_file = config;
  const auto resolved = ResolveOptions(inputs, OptionsUse::kTrain);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_THAT(resolved->options.nvme, testing::ElementsAre(path));
  EXPECT_EQ(resolved->resolved["offload"]["nvme"]["value"], Json::array({path}));
  ASSERT_TRUE(MakeDirectories(path).ok());
  EXPECT_THAT(MessageFor(TrainInputs({{"nvme", path}})), HasSubstr("is one folder. Name it"));
}

TEST(ResolveOptions, ImpossibleFoldersOfTheSwapAreaAreRefused) {
  EXPECT_THAT(MessageFor(TrainInputs({{"nvme", "/a,,/b"}})),
              HasSubstr("--nvme is /a,,/b; allowed: 1 to 64 paths"));
  EXPECT_THAT(MessageFor(TrainInputs({{"nvme", "/a,/b,/x/../a"}})),
              HasSubstr("'/a' and '/x/../a' are the same folder"));
  EXPECT_THAT(MessageFor(TrainInputs({{"nvme", "/a,/b"}, {"nvme_weights", "1"}})),
              HasSubstr("--set=nvme_weights=1 has 1 numbers for 2 folders"));
  EXPECT_THAT(MessageFor(TrainInputs({{"nvme_weights", "1,1"}})), HasSubstr("for 1 folder of"));
  // A run that goes on has its folders and their shares; a plan has none but those that it is told.
  const TemporaryFolder run;
  ASSERT_TRUE(WriteFileAtomically(run.Path("run.json"), "{}").ok());
  ASSERT_TRUE(WriteFileAtomically(run.Path("resolved_config.json"), "{}").ok());
  OptionInputs going_on =
      TrainInputs({{"nvme", "/a"}, {"nvme_weights", "1,1"}, {"out", run.path()}});
  going_on.sets = {"resume=true"};
  EXPECT_TRUE(ResolveOptions(going_on, OptionsUse::kTrain).ok());
  EXPECT_THAT(MessageOf(ResolveOptions(going_on, OptionsUse::kPlan).status()),
              HasSubstr("--set=nvme_weights=1,1 has 2 numbers for 1 folder of"));
  EXPECT_THAT(MessageFor(TrainInputs({{"nvme", "/a,/b"}, {"nvme_weights", "1,0"}})),
              HasSubstr("--set=nvme_weights is 1,0; allowed: numbers from 0.001 to 1000000"));
}

TEST(ResolveOptions, TheModelFolderIsNeverTheOutput) {
  EXPECT_THAT(MessageFor(TrainInputs({{"out", "x/../m"}})),
              HasSubstr("--out=x/../m is the model folder"));
}

TEST(ResolveOptions, TheLastOfRepeatedFlagsCounts) {
  const auto resolved =
      ResolveOptions(TrainInputs({{"seed", "1"}, {"seed", "2"}}), OptionsUse::kTrain);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->options.seed, 2u);
}

}  // namespace
}  // namespace forebay
