#include "forebay/train/deepspeed/deepspeed_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/train/deepspeed/deepspeed_keys.h"
#include "forebay/train/deepspeed/deepspeed_text.h"
#include "forebay/train/deepspeed/deepspeed_values.h"

namespace forebay {
namespace {

constexpr const char* kParams = "optimizer.params.";
constexpr const char* kArgs = "scheduler.params.";
constexpr const char* kTuning = "autotuning.";
constexpr const char* kZeroSection = "zero_optimization.";
// torch_adam is torch.optim.AdamW, with its default.
constexpr double kWeightDecayOfTorch = 0.01;

const Json& Table(const char* part) {
  return DeepSpeedTable().at(part);
}

bool Has(const Json& document, const char* key) {
  return document.contains(key) && !document.at(key).is_null();
}

int64_t WholeAt(const DeepSpeedValues& values, const char* key) {
  const Json value = values.Get(key);
  return value.is_null() ? 0 : value.get<int64_t>();
}

// The shortest way to write it: whole numbers without a point.
Json Shortest(const Json& value) {
  if (!value.is_number_float()) return value;
  const auto number = value.get<double>();
  return number == std::floor(number) && number < 9e15 ? Json(static_cast<int64_t>(number)) : value;
}

// Translates one document, section by section, into those of --config. A setting that is "auto" is
// left to the flags.
class Translation {
 public:
  Translation(const Json& document, int num_ranks, DeepSpeedConfig& config)
      : document_(document), num_ranks_(num_ranks), config_(config) {}

  void Run() {
    values_.Take(document_, Table("keys"), "");
    Batches();
    Offload();
    Activations();
    Precision();
    Clipping();
    Optimizer();
    Schedule();
    if (const std::vector<std::string> autos = values_.Autos(); !autos.empty()) {
      values_.notes.push_back(
          fmt::format("{}: \"auto\" leaves it to the flags", fmt::join(autos, ", ")));
    }
    config_.notes = std::move(values_.notes);
    config_.problems = std::move(values_.problems);
  }

 private:
  Json& Section(const char* name) {
    Json& section = config_.sections[name];
    if (section.is_null()) section = Json::object();
    return section;
  }
  void AddProblem(std::string problem) { values_.problems.push_back(std::move(problem)); }

  void Batches();
  void Offload();
  std::string NvmeOf(const std::string& key);
  void Activations();
  void Precision();
  void Scaling(bool is_fp16);
  void Clipping();
  void Optimizer();
  void Schedule();

  const Json& document_;
  const int num_ranks_;
  DeepSpeedConfig& config_;
  DeepSpeedValues values_;
};

void Translation::Batches() {
  const int64_t batch = WholeAt(values_, "train_batch_size");
  int64_t micro = WholeAt(values_, "train_micro_batch_size_per_gpu"),
          steps = WholeAt(values_, "gradient_accumulation_steps");
  if (batch > 0 && micro > 0 && steps == 0) steps = batch / (micro * num_ranks_);
  const int64_t accumulated = std::max<int64_t>(1, steps), parts = accumulated * num_ranks_;
  if (batch > 0 && micro == 0) micro = batch / parts;
  // Not the product, which may be too large.
  if (batch > 0 && (batch % parts != 0 || batch / parts != micro)) {
    AddProblem(
        fmt::format("train_batch_size is {}, and train_micro_batch_size_per_gpu times "
                    "gradient_accumulation_steps is {} * {} (of {}). Make them fit.",
                    batch, micro, accumulated,
                    num_ranks_ == 1 ? "one rank" : fmt::format("each of {} ranks", num_ranks_)));
  }
  // The rows of --batch are those of all ranks.
  if (micro > 0) Section("data")["batch"] = micro * num_ranks_;
  if (steps > 0) Section("data")["accum"] = steps;
}

// The folder that `key` names for its tensors; empty: they lie in RAM.
std::string Translation::NvmeOf(const std::string& key) {
  if (values_.Get(kZeroSection + key + ".device") != "nvme") return "";
  const Json path = values_.Get(kZeroSection + key + ".nvme_path");
  if (path.is_string() && path != "") return path.get<std::string>();
  AddProblem(fmt::format(
      "{0}.device is nvme, and {0}.nvme_path is missing: name a folder on the disk.", key));
  return "";
}

void Translation::Offload() {
  Json& offload = Section("offload");
  const std::string weights = NvmeOf("offload_param"), state = NvmeOf("offload_optimizer");
  const int64_t stage = WholeAt(values_, "zero_optimization.stage");
  if (values_.Get("zero_optimization.offload_param.device") == "nvme" && stage != 3) {
    AddProblem(fmt::format(
        "zero_optimization.offload_param needs stage 3, as in DeepSpeed; this is {}.", stage));
  }
  if (!values_.IsAuto("zero_optimization.stage")) offload["zero_stage"] = stage;
  if (!weights.empty()) offload["weights_tier"] = "nvme";
  if (!state.empty()) offload["state_tier"] = "nvme";
  Json folders = Json::array();
  for (const std::string& path : {weights, state}) {
    if (path.empty()) continue;
    const std::string folder = path + "/forebay";  // the disk's own is not the run's
    if (std::ranges::find(folders, Json(folder)) == folders.end()) folders.push_back(folder);
  }
  if (!folders.empty()) offload["nvme"] = folders;
  const int64_t bucket_elems = WholeAt(values_, "zero_optimization.reduce_bucket_size");
  // Gradients are fp32. Less than this is no bucket here.
  if (bucket_elems > 0) offload["reduce_bucket"] = std::max(bucket_elems * 4, int64_t{1} << 20);
  const Json wire = values_.Get("communication_data_type");
  if (!wire.is_null()) offload["reduce_dtype"] = wire;
}

void Translation::Activations() {
  const char* segments = "activation_checkpointing.number_checkpoints";
  if (values_.IsSaid(segments)) Section("offload")["number_checkpoints"] = values_.Get(segments);
  if (values_.Get("activation_checkpointing.cpu_checkpointing") == true)
    Section("offload")["activations_tier"] = "ram";
}

void Translation::Precision() {
  const bool is_fp16 = values_.Get("fp16.enabled") == true,
             is_bf16 = values_.Get("bf16.enabled") == true;
  if (is_fp16 && is_bf16) AddProblem("fp16.enabled and bf16.enabled are both true. Choose one.");
  const std::string used = is_fp16 ? "fp16" : is_bf16 ? "bf16" : "fp32";
  const Json given = values_.Get("data_types.param_dtype");
  if (!given.is_null() && given != used) {
    AddProblem(fmt::format(
        "data_types.param_dtype is {}, and fp16.enabled and bf16.enabled say {}. Leave it out, or "
        "make them fit.",
        given.dump(), used));
  }
  const bool is_left = values_.IsAuto("bf16.enabled") || values_.IsAuto("fp16.enabled");
  if (is_fp16 || is_bf16 || !is_left) Section("offload")["precision"] = used;
  // Such a section may stand for an intention.
  for (const auto& [section, key] : std::initializer_list<std::pair<const char*, std::string>>{
           {"fp16", "fp16.enabled"}, {"bf16", "bf16.enabled"}, {"bfloat16", "bf16.enabled"}}) {
    if (Has(document_, section) && !values_.IsSaid(key) && !values_.IsAuto(key)) {
      values_.notes.push_back(
          fmt::format("{} is there without \"enabled\": true, so it does nothing", section));
    }
  }
  Scaling(is_fp16);
}

void Translation::Scaling(bool is_fp16) {
  if (!is_fp16) return;
  Json& optim = Section("optim");
  const int64_t stage = WholeAt(values_, "zero_optimization.stage");
  optim["loss_scaling"] = stage > 0 ? "zero" : "stage0";
  if (const Json scale = values_.Get("fp16.loss_scale"); scale > 0) {
    optim["loss_scale"] = scale;
    return;
  }
  std::vector<std::string> keys = {"initial_scale_power", "loss_scale_window", "min_loss_scale"};
  if (stage > 0)
    keys.insert(keys.end(), {"hysteresis", "consecutive_hysteresis"});  // else it has none
  for (const std::string& key : keys) {
    if (values_.IsSaid("fp16." + key)) optim[key] = Shortest(values_.Get("fp16." + key));
  }
}

void Translation::Clipping() {
  const Json clip = values_.Get("gradient_clipping");
  if (values_.IsAuto("gradient_clipping")) return;
  if (clip.is_null()) {
    values_.notes.emplace_back(
        "gradient_clipping is not given: 0, as it was before DeepSpeed 0.19 (there 1.0)");
  }
  Section("optim")["clip"] = clip.is_null() ? Json(0.0) : clip;
}

void Translation::Optimizer() {
  if (!values_.IsSaid("optimizer.type")) return;
  const std::string name = values_.Get("optimizer.type");
  std::string small = name;
  std::ranges::transform(small, small.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string kind;
  for (const auto& [each, entry] : Table("optimizers").items()) {
    const Json& names = entry.at("names");
    if (std::ranges::find(names, Json(small)) != names.end()) kind = each;
  }
  if (kind.empty()) {
    AddProblem(
        fmt::format("optimizer.type is {}, and has to be one of: Adam, AdamW, Lion, Adagrad, SGD.",
                    Json(name).dump()));
    return;
  }
  const Json& keys = Table("optimizers").at(kind).at("keys");
  if (const Json params = values_.Get("optimizer.params"); params.is_object())
    values_.Take(params, keys, kParams);
  Json settings = values_.Under(kParams, keys);
  // An Adam is AdamW unless it says that it is not; an AdamW has no say.
  const bool is_adam_w = small != "adam" || settings.value("adam_w_mode", true);
  if (settings.value("torch_adam", false) && is_adam_w &&
      !values_.IsSaid(std::string(kParams) + "weight_decay"))
    settings["weight_decay"] = kWeightDecayOfTorch;
  Json& optim = Section("optim");
  optim["optimizer"] = is_adam_w ? kind : "adam";
  optim["decay_all"] = true;  // one group
  for (const auto& [key, value] : settings.items()) {
    if (!keys.at(key).value("mode", false) && !values_.IsAuto(kParams + key)) optim[key] = value;
  }
}

void Translation::Schedule() {
  Json& optim = Section("optim");
  const Json type = values_.Get("scheduler.type");
  if (type.is_null()) {
    if (!values_.IsAuto("scheduler.type")) optim["schedule"] = "constant";
    return;
  }
  if (!Table("schedules").contains(type.get<std::string>())) {
    std::vector<std::string> names;
    for (const auto& [name, unused] : Table("schedules").items()) names.push_back(name);
    AddProblem(fmt::format("scheduler.type is {}, and has to be one of: {}.", type.dump(),
                           fmt::join(names, ", ")));
    return;
  }
  optim["schedule"] = type;
  const Json& keys = Table("schedules").at(type.get<std::string>()).at("keys");
  if (const Json params = values_.Get("scheduler.params"); params.is_object())
    values_.Take(params, keys, kArgs);
  Json args = Json::object();
  for (const auto& [key, node] : keys.items()) {
    if (values_.IsSaid(kArgs + key)) {
      args[key] = Shortest(values_.Get(kArgs + key));
    } else if (node.is_object() && node.value("required", Json()) == true) {
      AddProblem(fmt::format("{}{} is missing: {} needs it.", kArgs, key, type.get<std::string>()));
    }
  }
  // As the Trainer of transformers fills it in.
  if (values_.IsAuto(std::string(kArgs) + "warmup_max_lr") && optim.contains("lr"))
    args["warmup_max_lr"] = optim.at("lr");
  if (!args.empty()) optim["schedule_args"] = args;
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

}  // namespace

absl::StatusOr<DeepSpeedAutotuning> ReadDeepSpeedAutotuning(const std::string& file) {
  FOREBAY_ASSIGN_OR_RETURN(const Json document, ReadDocument(file));
  DeepSpeedValues values;
  const Json& keys = Table("autotuning").at("keys");
  if (Has(document, "autotuning") && document.at("autotuning").is_object())
    values.Take(document.at("autotuning"), keys, kTuning);
  if (!values.problems.empty())
    return UsageError(fmt::format("{}: {}", file, fmt::join(values.problems, " ")));
  const Json said = values.Under(kTuning, keys);
  const DeepSpeedAutotuning tuning = {
      .min_micro_batch = said.at("min_train_micro_batch_size_per_gpu"),
      .max_micro_batch = said.at("max_train_micro_batch_size_per_gpu"),
      .first_step = said.at("start_profile_step"),
      .last_step = said.at("end_profile_step"),
      .max_trials = said.at("tuner_num_trials"),
      .only_micro_batches = said.at("fast"),
      .notes = values.notes,
  };
  if (tuning.min_micro_batch > tuning.max_micro_batch || tuning.first_step > tuning.last_step) {
    return UsageError(fmt::format(
        "{}: autotuning: micro-batches are from {} to {}, and steps from {} to {}. Let the first "
        "be the smaller",
        file, tuning.min_micro_batch, tuning.max_micro_batch, tuning.first_step, tuning.last_step));
  }
  return tuning;
}

absl::StatusOr<DeepSpeedConfig> ReadDeepSpeedConfig(const std::string& file, int num_ranks) {
  FOREBAY_ASSIGN_OR_RETURN(const Json document, ReadDocument(file));
  DeepSpeedConfig config;
  config.sections = Json::object();
  Translation(document, num_ranks, config).Run();
  for (std::string& problem : config.problems) problem = fmt::format("{}: {}", file, problem);
  return config;
}

}  // namespace forebay
