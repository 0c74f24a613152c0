#include "forebay/train/deepspeed/deepspeed_config.h"

#include <cstdlib>
#include <filesystem>
#include <set>

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
    return config.ok() ? config->sections : Json();
  }
  std::string Refused(std::string_view text) {
    const auto config = ReadDeepSpeedConfig(Write(text));
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
  for (const auto& entry :
       std::filesystem::directory_iterator(source / "tests/e2e/pytorch/deepspeed_configs")) {
    if (entry.path().filename() != "expected.json") texts.insert(entry.path());
  }
  ASSERT_EQ(texts.size(), 21u);
  for (const std::filesystem::path& text : texts) {
    const auto config = ReadDeepSpeedConfig(text);
    Json& entry = found[text.filename()];
    if (config.ok()) {
      entry = {{"sections", config->sections}, {"notes", config->notes}};
    } else {
      entry = {{"refused", MessageOf(config.status())}};
    }
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
    "offload": {"weights_tier": "nvme", "state_tier": "nvme", "nvme": ["/a/forebay", "/b/forebay"],
                "precision": "fp16"},
    "optim": {"loss_scaling": "zero", "initial_scale_power": 12, "hysteresis": 4, "clip": 0.5,
              "optimizer": "adam", "decay_all": true, "lr": 0.001, "weight_decay": 0.0, "eps": 1e-6,
              "schedule": "WarmupLR", "schedule_args": {"warmup_num_steps": 10}}})"));
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
    return config.ok() ? config->sections["data"] : Json(MessageOf(config.status()));
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

// The words are those of forebay.deepspeed: tests/e2e/pytorch/test_deepspeed_program.py.
TEST_F(DeepSpeedFile, WhatIsWrongIsNamed) {
  EXPECT_THAT(Refused(R"({"gradient_cliping": 1})"), HasSubstr("Is gradient_clipping meant?"));
  EXPECT_THAT(Refused(R"({"zero_optimization": {"stage": 1, "stages": 2}})"),
              HasSubstr("Is zero_optimization.stage meant?"));
  EXPECT_THAT(Refused(R"({"fp16": 3})"), HasSubstr("fp16 is 3, and has to be an object"));
  EXPECT_THAT(Refused("{'a': 1, 'a': 2}"), HasSubstr("twice"));
  EXPECT_THAT(Refused("{\n 'a': }"), HasSubstr("line 2"));
  EXPECT_THAT(Refused("[1, 2]"), HasSubstr("is no object"));
  EXPECT_THAT(MessageOf(ReadDeepSpeedConfig(folder_.Path("none")).status()),
              HasSubstr("does not exist"));
}

}  // namespace
}  // namespace forebay
