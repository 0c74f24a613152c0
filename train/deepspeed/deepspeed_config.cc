#include "forebay/train/deepspeed/deepspeed_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <string_view>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/train/deepspeed/deepspeed_keys.h"
#include "forebay/train/deepspeed/deepspeed_text.h"

namespace forebay {
namespace {

constexpr std::array kDeepSpeedSchedules = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR",
                                            "OneCycle", "LRRangeTest"};
constexpr std::array kWireTypes = {"fp32", "bf16", "fp16"};
constexpr std::array kOffloadDevices = {"none", "cpu", "nvme"};

// Keys that forebay.deepspeed uses, and a program that trains by itself does not need.
const std::map<std::string, std::string, std::less<>>& UnusedHere() {
  static const std::map<std::string, std::string, std::less<>> reasons = {
      {"fp16.auto_cast", "inputs are numbers of tokens"},
      {"steps_per_print", "every step has its line"},
      {"wall_clock_breakdown", "metrics.jsonl has the times of every step"},
      {"dataloader_drop_last", "rows are packed, and the last step is as long as the others"},
      {"zero_optimization.stage3_gather_16bit_weights_on_model_save", "OUT/model is always whole"},
      {"zero_optimization.stage3_gather_fp16_weights_on_model_save", "OUT/model is always whole"}};
  return reasons;
}

bool IsOff(const Json& value) {
  if (!value.is_number()) return value.is_null() || value == false;
  const auto number = value.get<double>();
  return number == 0 || number == 1;
}

absl::Status CheckKeys(const Json& document, const Json& keys, const std::string& path,
                       const std::string& source, std::vector<std::string>& notes) {
  for (const auto& [key, value] : document.items()) {
    const std::string where = path + key;
    if (!keys.contains(key) && !keys.contains("*")) {
      std::vector<std::string> known;
      for (const auto& [name, unused] : keys.items()) known.push_back(name);
      const std::string near = NearestName(key, known);
      return UsageError(
          fmt::format("{}: {} is not known. {}", source, where,
                      near.empty() ? "Remove it." : fmt::format("Is {}{} meant?", path, near)));
    }
    const Json& known = keys.contains(key) ? keys.at(key) : keys.at("*");
    if (known.is_object()) {
      if (value.is_null()) continue;
      if (!value.is_object()) {
        return UsageError(
            fmt::format("{}: {} is {}, and has to be an object.", source, where, value.dump()));
      }
      FOREBAY_RETURN_IF_ERROR(CheckKeys(value, known, where + ".", source, notes));
    } else if (known.is_array() && !IsOff(value)) {
      return UsageError(fmt::format("{}: {} is {}: {}.", source, where, value.dump(),
                                    known.at(0).get<std::string>()));
    } else if (known.is_string()) {
      notes.push_back(fmt::format("{} is ignored: {}", where, known.get<std::string>()));
    } else if (const auto unused = UnusedHere().find(where); unused != UnusedHere().end()) {
      notes.push_back(fmt::format("{} is ignored: {}", where, unused->second));
    }
  }
  return absl::OkStatus();
}

// The object at `key`; empty where there is none.
Json SectionOf(const Json& document, const std::string& key) {
  const auto found = document.find(key);
  return found == document.end() || found->is_null() ? Json::object() : *found;
}

bool IsTrue(const Json& section, const std::string& key) {
  const auto found = section.find(key);
  return found != section.end() && *found == true;
}

absl::StatusOr<double> NumberOf(const Json& value, std::string_view where) {
  if (value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= 0) {
    return value.get<double>();
  }
  return UsageError(fmt::format(
      "{} is {}, and has to be a number from 0 on.{}", where, value.dump(),
      value == "auto" ? " It is the Trainer of transformers that fills \"auto\" in." : ""));
}

absl::StatusOr<int64_t> WholeOf(const Json& value, std::string_view where, int64_t least,
                                int64_t most) {
  FOREBAY_ASSIGN_OR_RETURN(const double number, NumberOf(value, where));
  if (number == std::floor(number) && number >= static_cast<double>(least) &&
      number <= static_cast<double>(most)) {
    return static_cast<int64_t>(number);
  }
  return UsageError(fmt::format("{} is {}, and has to be a whole number from {} to {}.", where,
                                value.dump(), least, most));
}

// Translates one document, section by section, into those of --config.
class Translation {
 public:
  Translation(const Json& document, int num_ranks, DeepSpeedConfig& config)
      : document_(document), num_ranks_(num_ranks), config_(config) {}

  absl::Status Run() {
    FOREBAY_RETURN_IF_ERROR(Batches());
    if (IsTrue(SectionOf(document_, "msamp"), "enabled")) {
      return UsageError("msamp.enabled: FP8 is not there. Set it to false.");
    }
    FOREBAY_ASSIGN_OR_RETURN(const int64_t stage, Offload());
    FOREBAY_RETURN_IF_ERROR(Precision(stage));
    FOREBAY_RETURN_IF_ERROR(Clipping());
    FOREBAY_RETURN_IF_ERROR(Optimizer());
    return Schedule();
  }

 private:
  Json& Section(const char* name) { return config_.sections[name]; }

  absl::Status Batches() {
    std::map<std::string, int64_t> given;
    for (const char* key :
         {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}) {
      const auto found = document_.find(key);
      if (found == document_.end() || found->is_null()) continue;
      FOREBAY_ASSIGN_OR_RETURN(given[key], WholeOf(*found, key, 1, int64_t{1} << 40));
    }
    const int64_t batch = given["train_batch_size"];
    int64_t micro = given["train_micro_batch_size_per_gpu"],
            steps = given["gradient_accumulation_steps"];
    if (batch > 0 && micro > 0 && steps == 0) steps = batch / (micro * num_ranks_);
    const int64_t accumulated = std::max<int64_t>(1, steps);
    if (batch > 0 && micro == 0) micro = batch / (accumulated * num_ranks_);
    if (batch > 0 && micro * accumulated * num_ranks_ != batch) {
      return UsageError(
          fmt::format("train_batch_size is {}, and train_micro_batch_size_per_gpu times "
                      "gradient_accumulation_steps is {} * {} "
                      "(of {}). Make them fit.",
                      batch, micro, accumulated,
                      num_ranks_ == 1 ? "one rank" : fmt::format("each of {} ranks", num_ranks_)));
    }
    // The rows of --batch are those of all ranks.
    if (micro > 0) Section("data")["batch"] = micro * num_ranks_;
    if (steps > 0) Section("data")["accum"] = steps;
    return absl::OkStatus();
  }

  // The folder that `key` names for its tensors; empty: they lie in RAM.
  static absl::StatusOr<std::string> NvmeOf(const Json& zero, const std::string& key) {
    const Json section = SectionOf(zero, key);
    const Json device = section.contains("device") && !section.at("device").is_null()
                            ? section.at("device")
                            : "none";
    if (std::ranges::find(kOffloadDevices, device) == kOffloadDevices.end()) {
      return UsageError(fmt::format("{}.device is {}, and has to be one of: {}.", key,
                                    device.dump(), fmt::join(kOffloadDevices, ", ")));
    }
    if (device != "nvme") return std::string();
    const auto path = section.find("nvme_path");
    if (path == section.end() || !path->is_string() || path->get<std::string>().empty()) {
      return UsageError(fmt::format(
          "{0}.device is nvme, and {0}.nvme_path is missing: name a folder on the disk.", key));
    }
    return path->get<std::string>();
  }

  // Returns the stage.
  absl::StatusOr<int64_t> Offload() {
    Json zero = SectionOf(document_, "zero_optimization");
    for (const char* fragment : {"offload_optimizer", "offload_param"}) {
      if (document_.contains(fragment) && !zero.contains(fragment))
        zero[fragment] = document_.at(fragment);
    }
    FOREBAY_ASSIGN_OR_RETURN(const int64_t stage, WholeOf(zero.value("stage", Json(0)),
                                                          "zero_optimization.stage", 0, 3));
    FOREBAY_ASSIGN_OR_RETURN(const std::string weights, NvmeOf(zero, "offload_param"));
    FOREBAY_ASSIGN_OR_RETURN(const std::string state, NvmeOf(zero, "offload_optimizer"));
    if (!weights.empty() && stage != 3) {
      return UsageError(fmt::format(
          "zero_optimization.offload_param needs stage 3, as in DeepSpeed; this is {}.", stage));
    }
    if (!weights.empty()) Section("offload")["weights_tier"] = "nvme";
    if (!state.empty()) Section("offload")["state_tier"] = "nvme";
    Json folders = Json::array();
    for (const std::string& path : {weights, state}) {
      if (path.empty()) continue;
      const std::string folder = path + "/forebay";  // the disk's own is not the run's
      if (std::ranges::find(folders, Json(folder)) == folders.end()) folders.push_back(folder);
    }
    if (!folders.empty()) Section("offload")["nvme"] = folders;
    FOREBAY_RETURN_IF_ERROR(Buckets(zero));
    FOREBAY_RETURN_IF_ERROR(Wire());
    return stage;
  }

  absl::Status Buckets(const Json& zero) {
    const Json elems = zero.value("reduce_bucket_size", Json("auto"));
    if (elems == "auto") return absl::OkStatus();
    FOREBAY_ASSIGN_OR_RETURN(
        const int64_t number,
        WholeOf(elems, "zero_optimization.reduce_bucket_size", 1, int64_t{1} << 40));
    // Gradients are fp32. Less than this is no bucket here.
    Section("offload")["reduce_bucket"] = std::max(number * 4, int64_t{1} << 20);
    return absl::OkStatus();
  }

  absl::Status Wire() {
    const Json given = document_.value("communication_data_type", Json());
    if (given.is_null()) return absl::OkStatus();
    if (std::ranges::find(kWireTypes, given) == kWireTypes.end()) {
      return UsageError(fmt::format("communication_data_type is {}, and has to be one of: {}.",
                                    given.dump(), fmt::join(kWireTypes, ", ")));
    }
    Section("offload")["reduce_dtype"] = given;
    return absl::OkStatus();
  }

  absl::Status Precision(int64_t stage) {
    const Json fp16 = SectionOf(document_, "fp16");
    const bool is_fp16 = IsTrue(fp16, "enabled"),
               is_bf16 = IsTrue(SectionOf(document_, "bf16"), "enabled");
    if (is_fp16 && is_bf16) {
      return UsageError("fp16.enabled and bf16.enabled are both true. Choose one.");
    }
    Section("offload")["precision"] = is_fp16 ? "fp16" : is_bf16 ? "bf16" : "fp32";
    if (!is_fp16) return absl::OkStatus();
    if (IsTrue(fp16, "fp16_master_weights_and_grads")) {
      return UsageError(
          "fp16.fp16_master_weights_and_grads is true, and masters are fp32 here. Set it to "
          "false.");
    }
    FOREBAY_ASSIGN_OR_RETURN(const double scale,
                             NumberOf(fp16.value("loss_scale", Json(0)), "fp16.loss_scale"));
    Json& optim = Section("optim");
    optim["loss_scaling"] = stage > 0 ? "zero" : "stage0";
    if (scale > 0) {
      optim["loss_scale"] = scale;
      return absl::OkStatus();
    }
    std::vector<const char*> keys = {"initial_scale_power", "loss_scale_window", "min_loss_scale"};
    if (stage > 0)
      keys.insert(keys.end(), {"hysteresis", "consecutive_hysteresis"});  // else it has none
    for (const char* key : keys) {
      if (!fp16.contains(key)) continue;
      const Json& value = fp16.at(key);
      if (value.is_boolean()) {
        optim[key] = value;
        continue;
      }
      FOREBAY_ASSIGN_OR_RETURN(const double number, NumberOf(value, fmt::format("fp16.{}", key)));
      if (number == std::floor(number) && number < 9e15) {
        optim[key] = static_cast<int64_t>(number);  // also where it was written as 1e3
      } else {
        optim[key] = number;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Clipping() {
    if (!document_.contains("gradient_clipping")) {
      config_.notes.emplace_back(
          "gradient_clipping is not given: 0, as it was before DeepSpeed 0.19 (there 1.0)");
    }
    FOREBAY_ASSIGN_OR_RETURN(
        const double clip,
        NumberOf(document_.value("gradient_clipping", Json(0)), "gradient_clipping"));
    Section("optim")["clip"] = clip;
    return absl::OkStatus();
  }

  absl::Status Optimizer();
  absl::Status Schedule();

  const Json& document_;
  const int num_ranks_;
  DeepSpeedConfig& config_;
};

struct OptimizerOf {
  std::string_view name;  // ours
  Json defaults;          // DeepSpeed's
  std::vector<std::string> params;
};

// By DeepSpeed's names in small letters.
const OptimizerOf* FindOptimizer(std::string_view name) {
  static const OptimizerOf adamw = {
      "adamw", {{"lr", 1e-3}, {"weight_decay", 0.0}}, {"betas", "eps", "lr", "weight_decay"}};
  static const OptimizerOf lion = {"lion",
                                   {{"lr", 1e-3}, {"weight_decay", 0.0}, {"betas", {0.9, 0.999}}},
                                   {"betas", "lr", "weight_decay"}};
  static const OptimizerOf adagrad = {"adagrad",
                                      {{"lr", 1e-2}, {"weight_decay", 0.0}, {"eps", 1e-10}},
                                      {"eps", "lr", "weight_decay"}};
  static const OptimizerOf sgd = {
      "sgd", {{"lr", 1e-3}, {"weight_decay", 0.0}}, {"lr", "momentum", "nesterov", "weight_decay"}};
  static const std::map<std::string_view, const OptimizerOf*> by_name = {
      {"adam", &adamw},
      {"adamw", &adamw},
      {"deepspeedcpuadam", &adamw},
      {"fusedadam", &adamw},
      {"lion", &lion},
      {"deepspeedcpulion", &lion},
      {"adagrad", &adagrad},
      {"deepspeedcpuadagrad", &adagrad},
      {"sgd", &sgd}};
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

absl::Status Translation::Optimizer() {
  const Json section = SectionOf(document_, "optimizer");
  if (!section.contains("type")) return absl::OkStatus();
  const std::string name = section.at("type").is_string() ? section.at("type").get<std::string>()
                                                          : section.at("type").dump();
  std::string small = name;
  std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
  const OptimizerOf* kind = FindOptimizer(small);
  if (kind == nullptr) {
    return UsageError(fmt::format(
        "optimizer.type is '{}', and has to be one of: Adam, AdamW, Lion, Adagrad, SGD.", name));
  }
  Json params = SectionOf(section, "params");
  const bool adam_w = params.value("adam_w_mode", params.value("adamw_mode", Json(true))) == true;
  const bool is_adam = small == "adam" && (!adam_w || IsTrue(params, "torch_adam"));
  if (params.value("bias_correction", Json(true)) == false) {
    return UsageError("optimizer.params.bias_correction=false is not there. Leave it out.");
  }
  for (const char* mode : {"adam_w_mode", "adamw_mode", "torch_adam", "bias_correction"})
    params.erase(mode);
  Json& optim = Section("optim");
  optim["optimizer"] = is_adam ? "adam" : kind->name;
  optim["decay_all"] = true;  // one group
  for (const auto& [key, value] : kind->defaults.items()) optim[key] = value;
  for (const auto& [key, value] : params.items()) {
    if (std::ranges::find(kind->params, key) == kind->params.end()) {
      return UsageError(fmt::format("optimizer.params.{} is not known to {}, which has: {}.", key,
                                    name, fmt::join(kind->params, ", ")));
    }
    optim[key] = value;
  }
  return absl::OkStatus();
}

absl::Status Translation::Schedule() {
  const Json section = SectionOf(document_, "scheduler");
  Json& optim = Section("optim");
  if (!section.contains("type") || section.at("type").is_null()) {
    optim["schedule"] = "constant";
    return absl::OkStatus();
  }
  const Json& type = section.at("type");
  if (std::ranges::find(kDeepSpeedSchedules, type) == kDeepSpeedSchedules.end()) {
    return UsageError(fmt::format("scheduler.type is {}, and has to be one of: {}.", type.dump(),
                                  fmt::join(kDeepSpeedSchedules, ", ")));
  }
  optim["schedule"] = type;
  const Json params = SectionOf(section, "params");
  Json args = Json::object();
  for (const auto& [key, value] : params.items()) {
    if (key != "last_batch_iteration" && key != "verbose" && !value.is_null()) args[key] = value;
  }
  if (!args.empty()) optim["schedule_args"] = args;
  return absl::OkStatus();
}

absl::StatusOr<Json> ReadDocument(const std::string& file) {
  const absl::StatusOr<std::string> text = ReadWholeFile(file, kMaxConfigFileBytes);
  if (!text.ok()) {
    return UsageError(FileExists(file)
                          ? "--ds_config: " + MessageOf(text.status())
                          : fmt::format("--ds_config: '{}' does not exist. Check the path", file));
  }
  return ParseDeepSpeedText(*text, file);
}

// Why a key of "autotuning" does nothing here; nullptr: it is used, or not known.
const char* WhyNotTuned(const std::string& key) {
  static const std::map<std::string, const char*, std::less<>> reasons = {
      {"enabled", "--autotune says so"},
      {"metric", "the rows of a step stay what they are, so the fastest step has the most tokens"},
      {"results_dir", "the results are printed"},
      {"exps_dir", "trials leave nothing behind"},
      {"overwrite", "trials leave nothing behind"},
      {"max_train_batch_size", "the rows of a step stay what they are"},
      {"num_tuning_micro_batch_sizes", "they are tried as far as they get faster"},
      {"tuner_type", "the search climbs from the settings of the run"},
      {"tuner_early_stopping", "the search climbs from the settings of the run"},
      {"mp_size", "one process trains"},
      {"arg_mappings", "the settings are forebay's own"}};
  const auto found = reasons.find(key);
  return found == reasons.end() ? nullptr : found->second;
}

}  // namespace

absl::StatusOr<DeepSpeedAutotuning> ReadDeepSpeedAutotuning(const std::string& file) {
  FOREBAY_ASSIGN_OR_RETURN(const Json document, ReadDocument(file));
  DeepSpeedAutotuning tuning;
  const std::map<std::string, int64_t*, std::less<>> numbers = {
      {"min_train_micro_batch_size_per_gpu", &tuning.min_micro_batch},
      {"max_train_micro_batch_size_per_gpu", &tuning.max_micro_batch},
      {"start_profile_step", &tuning.first_step},
      {"end_profile_step", &tuning.last_step},
      {"tuner_num_trials", &tuning.max_trials}};
  const Json section = SectionOf(document, "autotuning");
  for (const auto& [key, value] : section.items()) {
    const std::string where = "autotuning." + key;
    if (const auto number = numbers.find(key); number != numbers.end()) {
      if (value.is_null()) continue;
      FOREBAY_ASSIGN_OR_RETURN(*number->second, WholeOf(value, where, 1, 65536));
    } else if (key == "fast") {
      tuning.only_micro_batches = value == true;
    } else if (const char* reason = WhyNotTuned(key); reason != nullptr) {
      tuning.notes.push_back(fmt::format("{} is ignored: {}", where, reason));
    } else {
      return UsageError(fmt::format("{}: {} is not known. Remove it.", file, where));
    }
  }
  if (tuning.min_micro_batch > tuning.max_micro_batch || tuning.first_step > tuning.last_step) {
    return UsageError(fmt::format(
        "{}: autotuning: micro-batches are from {} to {}, and steps from {} to {}. Let the first "
        "be "
        "the smaller",
        file, tuning.min_micro_batch, tuning.max_micro_batch, tuning.first_step, tuning.last_step));
  }
  return tuning;
}

absl::StatusOr<DeepSpeedConfig> ReadDeepSpeedConfig(const std::string& file, int num_ranks) {
  FOREBAY_ASSIGN_OR_RETURN(const Json document, ReadDocument(file));
  DeepSpeedConfig config;
  config.sections = Json::object();
  FOREBAY_RETURN_IF_ERROR(CheckKeys(document, DeepSpeedKeys(), "", file, config.notes));
  FOREBAY_RETURN_IF_ERROR(Translation(document, num_ranks, config).Run());
  return config;
}

}  // namespace forebay
