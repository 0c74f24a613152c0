#include "forebay/train/options/option_kinds.h"

#include <algorithm>
#include <cmath>

#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/swap/tiles/stripes.h"

namespace forebay::option_kinds {
namespace {

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

// What `value` says of a group; "" where that makes sense, else what does not.
std::string ReadParamGroup(const Json& value, ParamGroupOption& group) {
  constexpr double kMost = 10;
  if (!value.is_object()) return fmt::format("{} is no object", value.dump());
  static const std::vector<std::string> kKeys = {"match", "lr", "weight_decay"};
  for (const auto& [key, ignored] : value.items()) {
    if (std::ranges::find(kKeys, key) != kKeys.end()) continue;
    const std::string nearest = NearestName(key, kKeys);
    return fmt::format("unknown key '{}'{}", key,
                       nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
  }
  if (!value.contains("match")) return "it has no 'match'";
  if (!value["match"].is_string() || value["match"].get_ref<const std::string&>().empty()) {
    return fmt::format("'match' is {}, and has to be a pattern such as \"*.bias\"",
                       value["match"].dump());
  }
  group.match = value["match"].get<std::string>();
  for (const auto& [key, into] :
       {std::pair("lr", &group.lr), std::pair("weight_decay", &group.weight_decay)}) {
    if (!value.contains(key)) continue;
    const Json& number = value[key];
    if (number.is_number()) *into = number.get<double>();
    if (!into->has_value() || !(**into >= 0 && **into <= kMost)) {
      return fmt::format("'{}' is {}, and has to be a number from 0 to {}", key, number.dump(),
                         kMost);
    }
  }
  if (group.lr.has_value() || group.weight_decay.has_value()) return "";
  return "it has neither 'lr' nor 'weight_decay', so that it changes nothing";
}

// What is wrong with `text` as a list of groups; "" when nothing is.
std::string WhyNoParamGroups(std::string_view text) {
  const absl::StatusOr<Json> list = ParseJson(text, "--param_groups");
  if (!list.ok()) {
    return MessageOf(list.status()) + ". In a shell it stands between single quotes";
  }
  if (!list->is_array()) return "it is no list: put [ and ] around it";
  for (size_t i = 0; i < list->size(); ++i) {
    ParamGroupOption group;
    const std::string problem = ReadParamGroup((*list)[i], group);
    if (!problem.empty()) return fmt::format("group {}: {}", i + 1, problem);
  }
  return "";
}

// The value of a number or of a text such as "1GiB"; -1 when it is neither.
int64_t SizeOrMinusOne(const Json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62) return -1;
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_string()) return -1;
  const absl::StatusOr<int64_t> size = ParseSize(value.get_ref<const std::string&>());
  return size.ok() ? *size : -1;
}

}  // namespace

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

OptionSpec Steps(std::string_view section, std::string_view name, StepRange TrainOptions::*member,
                 std::string_view help) {
  OptionSpec spec = Row(section, name, help);
  spec.value_name = "FIRST-LAST";
  spec.allowed = "the first and the last of some steps, such as 4-6, or one step";
  spec.parse = ParseAsText;
  spec.set = [=](const Json& value, TrainOptions& options) {
    if (!value.is_string()) return false;
    const std::string_view text = value.get_ref<const std::string&>();
    options.*member = {};
    if (text.empty()) return true;
    const size_t dash = std::min(text.find('-'), text.size());
    const auto first = ParseWhole<int64_t>(text.substr(0, dash));
    const auto last = ParseWhole<int64_t>(text.substr(dash == text.size() ? 0 : dash + 1));
    if (!first || !last || *first < 1 || *last < *first || *last > kManySteps) return false;
    options.*member = {*first, *last};
    return true;
  };
  spec.get = [=](const TrainOptions& options) {
    const StepRange& range = options.*member;
    return Json(range.first == 0 ? "" : fmt::format("{}-{}", range.first, range.last));
  };
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

OptionSpec Data(std::string_view section, std::string_view name, std::string TrainOptions::*member,
                std::string_view help) {
  OptionSpec spec = Path(section, name, member, help);
  spec.value_name = "PATH[:WEIGHT],...";
  spec.allowed = "paths with commas between them, each with or without :WEIGHT after it";
  spec.adds_up = true;
  spec.set = [=](const Json& value, TrainOptions& options) {
    std::vector<std::string> items;
    for (const Json& item : value.is_array() ? value : Json::array({value})) {
      if (!item.is_string()) return false;
      items.push_back(item.get<std::string>());
      if (value.is_array() && items.back().empty()) return false;
    }
    if (items.empty()) return false;
    options.*member = fmt::format("{}", fmt::join(items, ","));
    return true;
  };
  return spec;
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
      // Not a number, as typed: JSON has no word for nan and inf.
      if (number.has_value() && std::isfinite(*number)) {
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

OptionSpec ParamGroups(std::string_view section, std::string_view help) {
  OptionSpec spec = Row(section, "param_groups", help);
  spec.value_name = "JSON";
  spec.allowed =
      "a list such as [{\"match\": \"*.bias\", \"lr\": 1e-5, \"weight_decay\": 0}], with lr (0 to "
      "10), weight_decay (0 to 10) or both";
  spec.parse = [](std::string_view text) -> std::optional<Json> {
    if (text.empty()) return Json::array();
    absl::StatusOr<Json> json = ParseJson(text, "--param_groups");
    if (!json.ok()) return std::nullopt;
    return *std::move(json);
  };
  spec.explain = WhyNoParamGroups;
  spec.set = [](const Json& value, TrainOptions& options) {
    if (!value.is_array()) return false;
    std::vector<ParamGroupOption> groups;
    for (const Json& entry : value) {
      if (!ReadParamGroup(entry, groups.emplace_back()).empty()) return false;
    }
    options.param_groups = std::move(groups);
    return true;
  };
  spec.get = [](const TrainOptions& options) {
    Json list = Json::array();
    for (const ParamGroupOption& group : options.param_groups) {
      Json entry = {{"match", group.match}};
      if (group.lr.has_value()) entry["lr"] = *group.lr;
      if (group.weight_decay.has_value()) entry["weight_decay"] = *group.weight_decay;
      list.push_back(std::move(entry));
    }
    return list;
  };
  return spec;
}

OptionSpec Memory(std::string_view section, std::string_view name, int64_t TrainOptions::*member,
                  std::string_view help) {
  constexpr int64_t kLeast = int64_t{1} << 20;
  OptionSpec spec = Row(section, name, help);
  spec.value_name = "SIZE";
  spec.allowed = "auto, or a size of 1MiB or more, such as 900M or 16GiB";
  spec.parse = ParseAsText;
  spec.set = [=](const Json& value, TrainOptions& options) {
    const int64_t size = value == "auto" ? 0 : SizeOrMinusOne(value);
    if (size < kLeast && value != "auto") return false;
    options.*member = size;
    return true;
  };
  spec.get = [=](const TrainOptions& options) {
    return options.*member == 0 ? Json("auto") : Json(options.*member);
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

}  // namespace forebay::option_kinds
