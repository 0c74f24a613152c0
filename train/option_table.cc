#include "forebay/train/option_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/format.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/swap/stripes.h"
#include "forebay/train/lr_schedule_table.h"

namespace forebay {
namespace {

// More than anybody counts to, and safe to multiply by.
constexpr int64_t kManySteps = int64_t{1} << 40;

template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

template <typename T>
std::optional<Json> ParseNumber(std::string_view text) {
  const std::optional<T> value = ParseWhole<T>(text);
  if (!value.has_value()) return std::nullopt;
  return Json(*value);
}

std::optional<Json> ParseAsText(std::string_view text) {
  return Json(std::string(text));
}

OptionSpec Row(std::string_view section, std::string_view name, std::string_view help) {
  OptionSpec spec;
  spec.section = section;
  spec.name = name;
  spec.help = help;
  return spec;
}

// `member`: any integer type of TrainOptions.
template <typename T>
OptionSpec Whole(std::string_view section, std::string_view name, T TrainOptions::*member, T least,
                 T most, std::string_view help) {
  OptionSpec spec = Row(section, name, help);
  spec.value_name = "N";
  spec.allowed = std::cmp_greater_equal(most, kManySteps)
                     ? fmt::format("a whole number, {} or more", least)
                     : fmt::format("a whole number from {} to {}", least, most);
  // Negative numbers must reach the range check instead of failing as text.
  spec.parse = std::is_unsigned_v<T> ? ParseNumber<uint64_t> : ParseNumber<int64_t>;
  spec.set = [=](const Json& value, TrainOptions& options) {
    if (!value.is_number_integer()) return false;
    if constexpr (std::is_unsigned_v<T>) {
      if (!value.is_number_unsigned() && value.get<int64_t>() < 0) return false;
      options.*member = value.get<T>();
      return true;
    }
    if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62) return false;
    const int64_t number = value.get<int64_t>();
    if (number < static_cast<int64_t>(least) || number > static_cast<int64_t>(most)) return false;
    options.*member = static_cast<T>(number);
    return true;
  };
  spec.get = [=](const TrainOptions& options) { return Json(options.*member); };
  return spec;
}

struct RealRange {
  double least = 0;
  double most = 0;
  bool above_least = false;  // least itself is not allowed
  bool below_most = false;   // most itself is not allowed
  bool Contains(double value) const {
    return std::isfinite(value) && (above_least ? value > least : value >= least) &&
           (below_most ? value < most : value <= most);
  }
  std::string Text() const {
    return fmt::format("{} {} {} {}", above_least ? "above" : "from", least,
                       below_most ? "to below" : "to", most);
  }
};

OptionSpec Real(std::string_view section, std::string_view name, double TrainOptions::*member,
                RealRange range, std::string_view help) {
  OptionSpec spec = Row(section, name, help);
  spec.value_name = "X";
  spec.allowed = "a number " + range.Text();
  spec.parse = ParseNumber<double>;
  spec.set = [=](const Json& value, TrainOptions& options) {
    if (!value.is_number() || !range.Contains(value.get<double>())) return false;
    options.*member = value.get<double>();
    return true;
  };
  spec.get = [=](const TrainOptions& options) { return Json(options.*member); };
  return spec;
}

OptionSpec Betas(std::string_view section, std::string_view help) {
  const RealRange range = {.least = 0, .most = 1, .below_most = true};
  OptionSpec spec = Row(section, "betas", help);
  spec.value_name = "X,X";
  spec.allowed = "two numbers from 0 to below 1, such as 0.9,0.999";
  spec.parse = [](std::string_view text) -> std::optional<Json> {
    const size_t comma = text.find(',');
    if (comma == std::string_view::npos) return std::nullopt;
    const auto first = ParseWhole<double>(text.substr(0, comma));
    const auto second = ParseWhole<double>(text.substr(comma + 1));
    if (!first.has_value() || !second.has_value()) return std::nullopt;
    return Json::array({*first, *second});
  };
  spec.set = [=](const Json& value, TrainOptions& options) {
    if (!value.is_array() || value.size() != 2 || !value[0].is_number() || !value[1].is_number())
      return false;
    const double first = value[0].get<double>();
    const double second = value[1].get<double>();
    if (!range.Contains(first) || !range.Contains(second)) return false;
    options.beta1 = first;
    options.beta2 = second;
    return true;
  };
  spec.get = [](const TrainOptions& options) {
    return Json::array({options.beta1, options.beta2});
  };
  return spec;
}

OptionSpec Switch(std::string_view section, std::string_view name, bool TrainOptions::*member,
                  std::string_view help) {
  OptionSpec spec = Row(section, name, help);
  spec.allowed = "true or false";
  spec.parse = [](std::string_view text) -> std::optional<Json> {
    if (text == "true" || text == "1" || text == "yes" || text == "on") return Json(true);
    if (text == "false" || text == "0" || text == "no" || text == "off") return Json(false);
    return std::nullopt;
  };
  spec.set = [=](const Json& value, TrainOptions& options) {
    if (!value.is_boolean()) return false;
    options.*member = value.get<bool>();
    return true;
  };
  spec.get = [=](const TrainOptions& options) { return Json(options.*member); };
  return spec;
}

OptionSpec Path(std::string_view section, std::string_view name, std::string TrainOptions::*member,
                std::string_view help) {
  OptionSpec spec = Row(section, name, help);
  spec.value_name = "PATH";
  spec.allowed = "a path";
  spec.parse = ParseAsText;
  spec.set = [=](const Json& value, TrainOptions& options) {
    if (!value.is_string()) return false;
    options.*member = value.get<std::string>();
    return true;
  };
  spec.get = [=](const TrainOptions& options) { return Json(options.*member); };
  return spec;
}

// What `text` has between its commas.
std::vector<std::string_view> SplitAtCommas(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// Folders of the swap area. Commas part them, also in a text of a configuration file; of a list
// there each item is one folder, whatever is in its name.
OptionSpec Folders(std::string_view section, std::string_view name,
                   std::vector<std::string> TrainOptions::*member, std::string_view help) {
  OptionSpec spec = Row(section, name, help);
  spec.value_name = "PATH,...";
  spec.allowed = fmt::format("1 to {} paths with commas between them", kMaxStripes);
  spec.parse = [](std::string_view text) -> std::optional<Json> {
    Json list = Json::array();
    for (const std::string_view part : SplitAtCommas(text)) list.push_back(std::string(part));
    return list;
  };
  spec.set = [=](const Json& value, TrainOptions& options) {
    std::vector<std::string> folders;
    for (const Json& item : value.is_array() ? value : Json::array({value})) {
      if (!item.is_string()) return false;
      folders.push_back(item.get<std::string>());
    }
    // "" alone is the default, spelled out.
    if (folders.size() == 1 && folders.front().empty()) folders.clear();
    const bool any_empty = std::ranges::any_of(folders, &std::string::empty);
    if (any_empty || folders.size() > static_cast<size_t>(kMaxStripes)) return false;
    options.*member = std::move(folders);
    return true;
  };
  spec.get = [=](const TrainOptions& options) {
    const std::vector<std::string>& folders = options.*member;
    if (folders.empty()) return Json("");
    const bool is_plain = folders.size() == 1 && folders.front().find(',') == std::string::npos;
    return is_plain ? Json(folders.front()) : Json(folders);
  };
  return spec;
}

OptionSpec Weights(std::string_view section, std::string_view name,
                   std::vector<double> TrainOptions::*member, std::string_view help) {
  const RealRange range = {.least = 0.001, .most = 1e6};
  OptionSpec spec = Row(section, name, help);
  spec.value_name = "X,...";
  spec.allowed = fmt::format("numbers {} with commas between them", range.Text());
  spec.parse = [](std::string_view text) -> std::optional<Json> {
    Json list = Json::array();
    if (text.empty()) return list;
    for (const std::string_view part : SplitAtCommas(text)) {
      const auto number = ParseWhole<double>(part);
      if (!number.has_value()) return std::nullopt;
      list.push_back(*number);
    }
    return list;
  };
  spec.set = [=](const Json& value, TrainOptions& options) {
    if (!value.is_array() || value.size() > static_cast<size_t>(kMaxStripes)) return false;
    std::vector<double> weights;
    for (const Json& item : value) {
      if (!item.is_number() || !range.Contains(item.get<double>())) return false;
      weights.push_back(item.get<double>());
    }
    options.*member = std::move(weights);
    return true;
  };
  spec.get = [=](const TrainOptions& options) { return Json(options.*member); };
  return spec;
}

template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;

// "power=2,end_lr=1e-6", or an object in a configuration file. Which arguments there are is the
// schedule's to say (lr_schedule_table.h).
OptionSpec ScheduleArgs(std::string_view section, std::string_view help) {
  OptionSpec spec = Row(section, "schedule_args", help);
  spec.value_name = "NAME=X,...";
  spec.allowed = "arguments of the schedule, such as power=2,end_lr=1e-6";
  spec.parse = [](std::string_view text) -> std::optional<Json> {
    Json args = Json::object();
    if (text.empty()) return args;
    for (const std::string_view part : SplitAtCommas(text)) {
      const size_t equals = part.find('=');
      if (equals == 0 || equals == std::string_view::npos) return std::nullopt;
      const std::string name(part.substr(0, equals));
      const std::string_view value = part.substr(equals + 1);
      if (args.contains(name) || value.empty()) return std::nullopt;
      const auto number = ParseWhole<double>(value);
      if (number.has_value()) {
        args[name] = *number;
      } else if (value == "true" || value == "false") {
        args[name] = value == "true";
      } else {
        args[name] = value;
      }
    }
    return args;
  };
  spec.set = [](const Json& value, TrainOptions& options) {
    if (!value.is_object()) return false;
    const auto is_plain = [](const Json& arg) { return arg.is_primitive() && !arg.is_null(); };
    if (!std::ranges::all_of(value, is_plain)) return false;
    // By name, so that the order in which they were given is no difference between runs.
    options.schedule_args = Json::object();
    const nlohmann::json sorted = value;
    for (const auto& [name, arg] : sorted.items()) options.schedule_args[name] = arg;
    return true;
  };
  spec.get = [](const TrainOptions& options) { return options.schedule_args; };
  return spec;
}

Choices<LrSchedule> ScheduleChoices() {
  Choices<LrSchedule> choices;
  for (const LrScheduleSpec& spec : LrScheduleTable()) {
    choices.emplace_back(spec.name, spec.schedule);
  }
  return choices;
}

// The value of a number or of a text such as "1GiB"; -1 when it is neither.
int64_t SizeOrMinusOne(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62) return -1;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_string()) return -1;
  const absl::StatusOr<int64_t> size = ParseSize(value.get_ref<const std::string&>());
  return size.ok() ? *size : -1;
}

OptionSpec Ram(std::string_view section, std::string_view help) {
  constexpr int64_t kLeast = int64_t{1} << 20;
  OptionSpec spec = Row(section, "ram", help);
  spec.value_name = "SIZE";
  spec.allowed = "auto, or a size of 1MiB or more, such as 900M or 16GiB";
  spec.parse = ParseAsText;
  spec.set = [](const Json& value, TrainOptions& options) {
    const int64_t size = value == "auto" ? 0 : SizeOrMinusOne(value);
    if (size < kLeast && value != "auto") return false;
    options.ram_bytes = size;
    return true;
  };
  spec.get = [](const TrainOptions& options) {
    return options.ram_bytes == 0 ? Json("auto") : Json(options.ram_bytes);
  };
  return spec;
}

OptionSpec TileElems(std::string_view section, std::string_view help) {
  constexpr int64_t kMost = int64_t{1} << 30;
  OptionSpec spec = Row(section, "tile_elems", help);
  spec.value_name = "N";
  spec.allowed = fmt::format("a multiple of {} from {} to {}; K and M are 2^10 and 2^20",
                             kLayerAlignElems, kLayerAlignElems, kMost);
  spec.parse = ParseAsText;
  spec.set = [](const Json& value, TrainOptions& options) {
    const int64_t elems = SizeOrMinusOne(value);
    if (elems < kLayerAlignElems || elems > kMost || elems % kLayerAlignElems != 0) return false;
    options.tile_elems = elems;
    return true;
  };
  spec.get = [](const TrainOptions& options) { return Json(options.tile_elems); };
  return spec;
}

template <typename T>
OptionSpec Choice(std::string_view section, std::string_view name, T TrainOptions::*member,
                  Choices<T> choices, std::string_view help) {
  OptionSpec spec = Row(section, name, help);
  for (const auto& [text, value] : choices) {
    spec.value_name += (spec.value_name.empty() ? "" : "|") + text;
    spec.allowed += (spec.allowed.empty() ? "" : " or ") + text;
  }
  spec.parse = ParseAsText;
  spec.set = [=](const Json& value, TrainOptions& options) {
    for (const auto& [text, choice] : choices) {
      if (value != text) continue;
      options.*member = choice;
      return true;
    }
    return false;
  };
  spec.get = [=](const TrainOptions& options) {
    const auto found = std::ranges::find_if(
        choices, [&](const auto& choice) { return choice.second == options.*member; });
    FOREBAY_CHECK(found != choices.end());
    return Json(found->first);
  };
  return spec;
}

std::vector<OptionSpec> ModelAndDataRows() {
  using O = TrainOptions;
  return {
      Path("model", "model", &O::model, "Hugging Face folder: config.json, safetensors, tokenizer"),
      Path("data", "data", &O::data, "text to train on: .txt, .jsonl or a packed file"),
      Path("data", "eval_data", &O::eval_data,
           "held-out text to measure the loss on, same formats"),
      Whole<int64_t>("data", "eval_every", &O::eval_every, 0, kManySteps,
                     "steps between evaluations; 0: at the end only"),
      Switch("data", "truncate", &O::truncate,
             "cut over-long prompts and chats instead of refusing them"),
      Whole<int64_t>("data", "batch", &O::batch, 1, 65536, "packed rows per micro-batch"),
      Whole<int64_t>("data", "accum", &O::accum, 1, 65536, "micro-batches per step"),
      Whole<int64_t>("data", "seq", &O::seq, 2, int64_t{1} << 24, "tokens per packed row"),
      Whole<uint64_t>("data", "seed", &O::seed, 0, std::numeric_limits<uint64_t>::max(),
                      "of the order of the data"),
  };
}

std::vector<OptionSpec> OptimRows() {
  using O = TrainOptions;
  return {
      Whole<int64_t>("optim", "steps", &O::steps, 0, kManySteps,
                     "length of the run; 0: from --epochs"),
      Real("optim", "epochs", &O::epochs, {.least = 0, .most = 1e6, .above_least = true},
           "passes over the data, when --steps is not given"),
      Whole<int64_t>("optim", "stop_after", &O::stop_after, 0, kManySteps,
                     "stop resumably after this many steps, schedule unchanged; 0: off"),
      Real("optim", "lr", &O::lr, {.least = 0, .most = 10, .above_least = true},
           "peak learning rate"),
      Whole<int64_t>("optim", "warmup", &O::warmup, 0, kManySteps, "steps of linear warm-up"),
      Choice<LrSchedule>("optim", "schedule", &O::schedule, ScheduleChoices(),
                         "of the learning rate, after the warm-up"),
      ScheduleArgs("optim", "arguments of --schedule"),
      Real("optim", "weight_decay", &O::weight_decay, {.least = 0, .most = 10},
           "AdamW's decoupled decay"),
      Switch("optim", "decay_all", &O::decay_all, "decay norms and biases too"),
      Betas("optim", "AdamW's beta1 and beta2"),
      Real("optim", "eps", &O::eps, {.least = 0, .most = 1, .above_least = true},
           "AdamW's epsilon"),
      Real("optim", "clip", &O::clip, {.least = 0, .most = 1e9},
           "most global gradient norm; 0: no clipping"),
  };
}

std::vector<OptionSpec> OffloadRows() {
  using O = TrainOptions;
  const Choices<TierChoice> tiers = {
      {"auto", TierChoice::kAuto}, {"host", TierChoice::kHost}, {"nvme", TierChoice::kNvme}};
  return {
      Folders("offload", "nvme", &O::nvme,
              "folder of the swap area, on a fast local disk; of several, each gets a share"),
      Weights("offload", "nvme_weights", &O::nvme_weights,
              "share of each folder of --nvme, in proportion to the others'"),
      Ram("offload", "memory budget of the process"),
      Choice<cpu::Precision>("offload", "precision", &O::precision,
                             {{"bf16", cpu::Precision::kBf16}, {"fp32", cpu::Precision::kFp32}},
                             "of matrix products"),
      Choice<Layout>("offload", "layout", &O::layout,
                     {{"bf16", Layout::kBf16}, {"fp32", Layout::kFp32}},
                     "how weights are kept: bf16 with an exact fp32 master, or fp32"),
      Choice<DType>("offload", "grad_dtype", &O::grad_dtype,
                    {{"bf16", DType::kBF16}, {"fp32", DType::kF32}},
                    "of finished gradients (they are summed in fp32)"),
      Whole<int>("offload", "threads", &O::threads, 0, 1024, "compute threads; 0: one per core"),
      Choice<EngineKind>("offload", "engine", &O::engine,
                         {{"auto", EngineKind::kAuto},
                          {"io_uring", EngineKind::kIoUring},
                          {"libaio", EngineKind::kLibaio},
                          {"threads", EngineKind::kThreads},
                          {"buffered", EngineKind::kBuffered}},
                         "how the swap area is read and written; what cannot be used here steps "
                         "down, and the log says why"),
      Switch("offload", "engine_strict", &O::engine_strict,
             "stop instead of stepping down to a slower engine"),
      Whole<int>("offload", "io_threads", &O::io_threads, 1, 256,
                 "I/O threads of the engines threads and buffered, for each disk"),
      Path("offload", "bench", &O::bench,
           "io.json of 'swap-bench tune': engine settings and disk speeds, where they hold"),
      Real("offload", "tbw", &O::rated_tbw, {.least = 0, .most = 1e9, .above_least = true},
           "TB that the drive is rated to write in its life, for the plan"),
      TileElems("offload", "elements of one tile, the unit of disk transfers"),
      Choice<TierChoice>("offload", "weights_tier", &O::weights_tier, tiers,
                         "where weights live between uses"),
      Choice<TierChoice>("offload", "state_tier", &O::state_tier, tiers,
                         "where the optimizer's state lives"),
      Choice<Durability>(
          "offload", "durability", &O::durability,
          {{"auto", Durability::kAuto},
           {"none", Durability::kNone},
           {"step", Durability::kStep},
           {"replay", Durability::kReplay}},
          "what a crash leaves: step (the last committed step; twice the space), replay (the last "
          "step whose gradients were complete), none (exports alone); auto: step where there is "
          "room"),
      Whole<int64_t>("offload", "commit_every", &O::commit_every, 0, kManySteps,
                     "steps between commits; 0: each where all state is on disk, else so that they "
                     "take 5 % of the time, more often where a crash would lose more than ten "
                     "minutes"),
  };
}

std::vector<OptionSpec> IoRows() {
  using O = TrainOptions;
  return {
      Path("io", "out", &O::out, "run folder: logs, and the trained model in OUT/model"),
      Whole<int64_t>("io", "save_every", &O::save_every, 0, kManySteps,
                     "steps between exports to OUT/exports; 0: off"),
      Whole<int64_t>("io", "keep", &O::keep, 1, 1000000, "exports kept in OUT/exports"),
      Choice<ExportFormat>("io", "export", &O::export_format,
                           {{"hf", ExportFormat::kHuggingFace}, {"none", ExportFormat::kNone}},
                           "format of the trained model"),
      Choice<DType>("io", "export_dtype", &O::export_dtype,
                    {{"bf16", DType::kBF16}, {"fp16", DType::kF16}, {"fp32", DType::kF32}},
                    "of the trained model's weights"),
      Switch("io", "resume", &O::resume, "continue the run in OUT; its settings are the defaults"),
      Switch("io", "dry_run", &O::dry_run, "check everything and print the plan, then stop"),
  };
}

// Defaults that are worked out from other options or from the machine.
std::string DefaultText(const OptionSpec& spec) {
  if (spec.name == "nvme") return "OUT/swap";
  if (spec.name == "nvme_weights") return "measured";
  if (spec.name == "layout" || spec.name == "grad_dtype" || spec.name == "export_dtype")
    return "as --precision";
  if (spec.name == "seq") return "1024, or that of packed data";
  if (spec.name == "model" || spec.name == "data" || spec.name == "out") return "required";
  return ValueText(spec.get(TrainOptions{}));
}

std::vector<OptionSpec> MakeTable() {
  std::vector<OptionSpec> table;
  for (std::vector<OptionSpec> rows : {ModelAndDataRows(), OptimRows(), OffloadRows(), IoRows()}) {
    std::ranges::move(rows, std::back_inserter(table));
  }
  for (OptionSpec& spec : table) spec.default_text = DefaultText(spec);
  return table;
}

}  // namespace

const std::vector<OptionSpec>& OptionTable() {
  static const std::vector<OptionSpec> table = MakeTable();
  return table;
}

const std::vector<std::string>& OptionSections() {
  static const std::vector<std::string> sections = {"model", "data", "optim", "offload", "io"};
  return sections;
}

std::string WithUnderscores(std::string_view name) {
  std::string result(name);
  std::ranges::replace(result, '-', '_');
  return result;
}

const OptionSpec* FindOption(std::string_view name) {
  const std::string key = WithUnderscores(name);
  const auto found = std::ranges::find(OptionTable(), key, &OptionSpec::name);
  return found == OptionTable().end() ? nullptr : &*found;
}

std::string ValueText(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array() || value.is_object()) {
    std::string text;
    for (const auto& [name, item] : value.items()) {
      text += (text.empty() ? "" : ",") + (value.is_object() ? name + "=" : "") + ValueText(item);
    }
    return text;
  }
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  return value.dump();
}

std::string OptionText(const TrainOptions& options, std::string_view name) {
  const OptionSpec* spec = FindOption(name);
  FOREBAY_CHECK(spec != nullptr);
  return ValueText(spec->get(options));
}

}  // namespace forebay
