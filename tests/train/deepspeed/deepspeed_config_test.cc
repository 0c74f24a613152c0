#include "forebay/train/deepspeed/deepspeed_config.h"

#include <cstdlib>
#include <filesystem>
#include <set>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/train/start/resolve_options.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DeepSpeedFile : public testing::Test {
 protected:
  std::string Write(std::string_view text) {
    const std::string file = folder_.Path("ds.json");
    EXPECT_TRUE(WriteFileAtomically(file, text).ok());
    return file;
  }
  Json Sections(std::string_view text) {
    const auto config = ReadDeepSpeedConfig(Write(text));
    EXPECT_TRUE(config.ok()) << config.status();
    if (!config.ok()) return {};
    EXPECT_THAT(config->problems, testing::IsEmpty());
    return config->sections;
  }
  std::vector<std::string> Notes(std::string_view text) {
    const auto config = ReadDeepSpeedConfig(Write(text));
    return config.ok() ? config->notes : std::vector<std::string>();
  }
  // The problems, or why it cannot be read.
  std::string Refused(std::string_view text) {
    const auto config = ReadDeepSpeedConfig(Write(text));
    if (config.ok()) {
      EXPECT_THAT(config->problems, testing::SizeIs(1)) << text;
      return fmt::format("{}", fmt::join(config->problems, "\n"));
    }
    EXPECT_EQ(ExitCodeOf(config.status()), ExitCode::kUsage) << text;
    return MessageOf(config.status());
  }
  TemporaryFolder folder_;
};

// With FOREBAY_WRITE_EXPECTED set, the file of what is expected is written anew: read its
// difference.
TEST(DeepSpeedConfig, PublishedConfigurationsGiveWhatIsOnFile) {
  const std::filesystem::path source = FOREBAY_SOURCE_DIR;
  const std::filesystem::path file = source / "tests/train/deepspeed/published.json";
  Json found = Json::object();
  std::set<std::filesystem::path> texts;
  for (const auto& entry : std::filesystem::directory_iterator(
           source / "tests/e2e/pytorch/deepspeed_tests/deepspeed_configs")) {
    if (entry.path().filename() != "expected.json") texts.insert(entry.path());
  }
  ASSERT_EQ(texts.size(), 21u);
  for (const std::filesystem::path& text : texts) {
    const auto config = ReadDeepSpeedConfig(text);
    Json& entry = found[text.filename()];
    ASSERT_TRUE(config.ok()) << config.status();
    entry = {{"sections", config->sections}, {"notes", config->notes}};
    for (const std::string& problem : config->problems)  // without the folder
      entry["problems"].push_back(problem.substr(problem.rfind('/') + 1));
  }
  if (std::getenv("FOREBAY_WRITE_EXPECTED") != nullptr) {
    ASSERT_TRUE(WriteFileAtomically(file, found.dump(1) + "\n").ok());
  }
  const auto expected = ReadJsonFile(file, 1 << 20);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const auto& [name, entry] : found.items()) EXPECT_EQ(entry, expected->at(name)) << name;
}

TEST_F(DeepSpeedFile, StandsBetweenTheRunsSettingsAndConfig) {
  OptionInputs inputs;
  inputs.ds_config_file = Write(R"({"train_batch_size": 8, "gradient_accumulation_steps": 4.0,
      'bf16': {'enabled': True,},  # a Python dict
      "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.9]}},})");
  inputs.config_file = folder_.Path("config.json");
  ASSERT_TRUE(WriteFileAtomically(inputs.config_file, R"({"optim": {"lr": 2e-4}})").ok());
  inputs.flags = {{"model", "m"}, {"data", "d.txt"}, {"out", "o"}, {"accum", "3"}};
  const auto resolved = ResolveOptions(inputs, OptionsUse::kTrain);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->options.batch, 2);
  EXPECT_EQ(resolved->options.accum, 3);
  EXPECT_EQ(resolved->options.lr, 2e-4);
  EXPECT_EQ(resolved->options.beta1, 0.8);
  EXPECT_EQ(resolved->options.clip, 0);
  EXPECT_EQ(resolved->options.schedule, LrSchedule::kConstant);
  EXPECT_EQ(resolved->resolved["data"]["batch"]["origin"], "ds_config " + inputs.ds_config_file);
  EXPECT_THAT(resolved->notes,
              testing::ElementsAre(HasSubstr("gradient_clipping is not given: 0")));
}

TEST_F(DeepSpeedFile, SumsOverRanksAreTranslated) {
  const auto offload_of = [&](std::string_view text) { return Sections(text)["offload"]; };
  const Json large = offload_of(R"({"zero_optimization": {"reduce_bucket_size": 5e8},
                                    "communication_data_type": "bf16"})");
  EXPECT_EQ(large["reduce_bucket"], 2000000000);  // elements, of fp32
  EXPECT_EQ(large["reduce_dtype"], "bf16");
  EXPECT_EQ(offload_of(R"({"zero_optimization": {"reduce_bucket_size": 1000}})")["reduce_bucket"],
            1 << 20);
  EXPECT_FALSE(offload_of(R"({"zero_optimization": {"reduce_bucket_size": "auto"}})")
                   .contains("reduce_bucket"));
  EXPECT_THAT(Refused(R"({"zero_optimization": {"reduce_bucket_size": 0.5}})"),
              HasSubstr("zero_optimization.reduce_bucket_size is 0.5"));
  EXPECT_THAT(Refused(R"({"communication_data_type": "fp8"})"),
              HasSubstr("communication_data_type is \"fp8\", and has to be one of: fp32, bf16"));
}

TEST_F(DeepSpeedFile, EachPartIsTranslated) {
  const Json sections = Sections(R"({
    "train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5,
    "fp16": {"enabled": true, "initial_scale_power": 1.2e1, "hysteresis": 4},
    "optimizer": {"type": "Adam", "params": {"adam_w_mode": false, "eps": 1e-6}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "verbose": true, "warmup_max_lr": null}},
    "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/a"},
                          "offload_optimizer": {"device": "nvme", "nvme_path": "/b"}}})");
  EXPECT_EQ(sections, Json::parse(R"({
    "data": {"batch": 2},
    "offload": {"zero_stage": 3, "weights_tier": "nvme", "state_tier": "nvme",
                "nvme": ["/a/forebay", "/b/forebay"], "precision": "fp16"},
    "optim": {"loss_scaling": "zero", "initial_scale_power": 12, "hysteresis": 4, "clip": 0.5,
              "optimizer": "adam", "decay_all": true, "lr": 0.001, "betas": [0.9, 0.999],
              "eps": 1e-6, "weight_decay": 0.0, "schedule": "WarmupLR",
              "schedule_args": {"warmup_num_steps": 10}}})"));
  EXPECT_EQ(Sections("{}")["offload"]["precision"], "fp32");
  EXPECT_EQ(
      Sections(R"({"fp16": {"enabled": true, "loss_scale": 128, "hysteresis": 2}})")["optim"],
      Json::parse(
          R"({"loss_scaling": "stage0", "loss_scale": 128.0, "clip": 0.0, "schedule": "constant"})"));
}

// A size per GPU is that of each rank; --batch is of all.
TEST_F(DeepSpeedFile, SizesOfSeveralRanks) {
  const auto data = [&](const std::string& text) {
    const auto config = ReadDeepSpeedConfig(Write(text), /*num_ranks=*/4);
    EXPECT_TRUE(config.ok()) << config.status();
    return config->problems.empty() ? config->sections["data"] : Json(config->problems[0]);
  };
  EXPECT_EQ(data(R"({"train_micro_batch_size_per_gpu": 2})"), Json::parse(R"({"batch": 8})"));
  EXPECT_EQ(data(R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2})"),
            Json::parse(R"({"batch": 8, "accum": 2})"));
  EXPECT_EQ(data(R"({"train_batch_size": 16, "gradient_accumulation_steps": 2})"),
            Json::parse(R"({"batch": 8, "accum": 2})"));
  EXPECT_THAT(data(R"({"train_batch_size": 9, "gradient_accumulation_steps": 2})").dump(),
              HasSubstr("of each of 4 ranks"));
}

TEST_F(DeepSpeedFile, OfAutotuningOneNoteNamesTheFlag) {
  const auto config = ReadDeepSpeedConfig(
      Write(R"({"gradient_clipping": 1, "autotuning": {"enabled": true, "fast": false,
                "metric": "latency", "tuner_num_trials": 7}})"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->notes, testing::ElementsAre(AllOf(HasSubstr("autotuning is ignored"),
                                                        HasSubstr("`forebay train --autotune`"))));
}

TEST_F(DeepSpeedFile, AutotuningSaysWhatIsTried) {
  const auto read = [&](const std::string& section) {
    return ReadDeepSpeedAutotuning(
        Write("{\"train_batch_size\": 8, \"autotuning\": " + section + "}"));
  };
  const auto tuning = read(R"({"enabled": true, "fast": true, "metric": "latency",
      "min_train_micro_batch_size_per_gpu": 2, "max_train_micro_batch_size_per_gpu": 16,
      "start_profile_step": 4, "end_profile_step": 9, "tuner_num_trials": 7})");
  ASSERT_TRUE(tuning.ok()) << tuning.status();
  EXPECT_TRUE(tuning->only_micro_batches);
  EXPECT_EQ(tuning->min_micro_batch, 2);
  EXPECT_EQ(tuning->max_micro_batch, 16);
  EXPECT_EQ(tuning->first_step, 4);
  EXPECT_EQ(tuning->last_step, 9);
  EXPECT_EQ(tuning->max_trials, 7);
  EXPECT_THAT(tuning->notes, testing::ElementsAre(HasSubstr("autotuning.enabled is ignored"),
                                                  HasSubstr("autotuning.metric is ignored")));
  EXPECT_EQ(read("null")->last_step, 5);
  for (const char* bad :
       {R"({"tuner_num_trials": 0})", R"({"end_profile_step": 2})", R"({"tuner": 1})",
        R"({"min_train_micro_batch_size_per_gpu": 8, "max_train_micro_batch_size_per_gpu": 4})"}) {
    EXPECT_EQ(ExitCodeOf(read(bad).status()), ExitCode::kUsage) << bad;
  }
}

TEST_F(DeepSpeedFile, StageAndActivationCheckpointingAreUsed) {
  for (const int stage : {0, 1, 2, 3}) {
    const std::string text = fmt::format(R"({{"zero_optimization": {{"stage": {}}}}})", stage);
    EXPECT_EQ(Sections(text)["offload"]["zero_stage"], stage);
  }
  EXPECT_EQ(Sections("{}")["offload"]["zero_stage"], 0);
  EXPECT_EQ(Sections(R"({"zero_optimization": true})")["offload"]["zero_stage"], 1);
  const Json offload = Sections(R"({"activation_checkpointing": {
      "number_checkpoints": 4, "cpu_checkpointing": true, "profile": true}})")["offload"];
  EXPECT_EQ(offload["number_checkpoints"], 4);
  EXPECT_EQ(offload["activations_tier"], "ram");
}

// As the Trainer of transformers has them in its own examples.
TEST_F(DeepSpeedFile, WhatIsAutoIsLeftToTheFlags) {
  const char* text = R"({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "steps_per_print": 2000,
    "fp16": {"enabled": "auto", "loss_scale": 0}, "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {
      "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {
      "total_num_steps": "auto", "warmup_num_steps": "auto", "warmup_min_lr": "auto"}},
    "zero_optimization": {"stage": "auto", "reduce_bucket_size": "auto",
                          "stage3_prefetch_bucket_size": "auto"}})";
  EXPECT_EQ(Sections(text), Json::parse(R"({
      "offload": {}, "optim": {"optimizer": "adamw", "decay_all": true,
                               "schedule": "WarmupDecayLR"}})"));
  EXPECT_THAT(Notes(text), testing::Contains(AllOf(HasSubstr("optimizer.params.lr"),
                                                   HasSubstr("leaves it to the flags"))));
  EXPECT_EQ(Sections(R"({"optimizer": {"type": "Adam", "params": {"lr": 2e-5}}, "scheduler":
      {"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto"}}})")["optim"]["schedule_args"],
            Json::parse(R"({"warmup_max_lr": 2e-5})"));
}

TEST_F(DeepSpeedFile, OtherNamesAndValuesAreThoseOfDeepSpeed) {
  EXPECT_EQ(Sections(R"({"bfloat16": {"enabled": "True"}})")["offload"]["precision"], "bf16");
  EXPECT_EQ(Sections(R"({"fp16": {"enabled": 1, "loss_scale": "dynamic"}, "sparse_attention": {},
                         "zero_optimization": true})")["optim"]["loss_scaling"],
            "zero");
  const Json torch_adam =
      Sections(R"({"optimizer": {"type": "Adam", "params": {"torch_adam": true}}})")["optim"];
  EXPECT_EQ(torch_adam["optimizer"], "adamw");
  EXPECT_EQ(torch_adam["weight_decay"], 0.01);  // of torch.optim.AdamW
  EXPECT_EQ(
      Sections(
          R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}})")["optim"]
                                                                                  ["optimizer"],
      "adamw");
  EXPECT_THAT(Refused(R"({"bf16": {"enabled": true}, "bfloat16": {"enabled": false}})"),
              HasSubstr("bf16.enabled and bfloat16.enabled are one setting"));
}

TEST_F(DeepSpeedFile, WhatIsRefusedMayBeOff) {
  for (const char* off : {"false", "0", R"("no")", "null"}) {
    Sections(fmt::format(R"({{"amp": {{"enabled": {0}}}, "elasticity": {{"enabled": {0}}},
                              "sequence_parallel_size": 1}})",
                         off));
  }
  EXPECT_THAT(Refused(R"({"amp": {"enabled": 1}})"), HasSubstr("amp.enabled is 1: Apex"));
  EXPECT_THAT(Refused(R"({"sequence_parallel_size": 2})"), HasSubstr("is 2: all ranks"));
}

// An error, or a note: never fp32 without a word.
TEST_F(DeepSpeedFile, Bf16ThatIsMisspelledIsNeverFp32WithoutAWord) {
  for (const char* text :
       {R"({"BF16": {"enabled": true}})", R"({"bf_16": {"enabled": true}})", R"({"bf16": true})",
        R"({"bf16": {"enable": true}})", R"({"bf16": {"Enabled": true}})", R"({"b16": {}})",
        R"({"bf16": {"enabled": "treu"}})", R"({"bf16": {"enabled": 2}})",
        R"({"torch_dtype": "bfloat16"})", R"({"precision": "bf16"})", R"({"enabled": true})"}) {
    EXPECT_FALSE(Refused(text).empty());
  }
  EXPECT_THAT(Notes(R"({"bf16": {}})"),
              testing::Contains(HasSubstr("bf16 is there without \"enabled\": true")));
}

TEST_F(DeepSpeedFile, AllProblemsAreToldAtOnceWithThoseOfTheFlags) {
  OptionInputs inputs;
  inputs.ds_config_file = Write(R"({"gradient_cliping": 1, "fp16": {"enabled": 3},
      "zero_optimization": {"stage": 7}, "optimizer": {"type": "Lamb"}})");
  inputs.flags = {{"model", "m"}, {"data", "d.txt"}, {"out", "o"}, {"batch", "none"}};
  const auto resolved = ResolveOptions(inputs, OptionsUse::kTrain);
  EXPECT_THAT(MessageOf(resolved.status()),
              AllOf(HasSubstr("5 problems"), HasSubstr("Is gradient_clipping meant?"),
                    HasSubstr("fp16.enabled is 3, and has to be true or false"),
                    HasSubstr("zero_optimization.stage is 7"), HasSubstr("\"Lamb\""),
                    HasSubstr("--batch")));
}

// The words are those of forebay.deepspeed:
// tests/e2e/pytorch/deepspeed_tests/test_deepspeed_program.py.
TEST_F(DeepSpeedFile, WhatIsWrongIsNamed) {
  EXPECT_THAT(Refused(R"({"gradient_cliping": 1})"), HasSubstr("Is gradient_clipping meant?"));
  EXPECT_THAT(Refused(R"({"zero_optimization": {"stage": 1, "stages": 2}})"),
              HasSubstr("Is zero_optimization.stage meant?"));
  EXPECT_THAT(Refused(R"({"fp16": 3})"), HasSubstr("fp16 is 3, and has to be an object, such as"));
  EXPECT_THAT(Refused("{'a': 1, 'a': 2}"), HasSubstr("twice"));
  EXPECT_THAT(Refused("{\n 'a': }"), HasSubstr("line 2"));
  EXPECT_THAT(Refused("[1, 2]"), HasSubstr("is no object"));
  EXPECT_THAT(MessageOf(ReadDeepSpeedConfig(folder_.Path("none")).status()),
              HasSubstr("does not exist"));
}

}  // namespace
}  // namespace forebay
