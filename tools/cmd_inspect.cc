#include <algorithm>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/print.h"
#include "forebay/tools/progress_line.h"
#include "forebay/train/run/inspect.h"

namespace forebay {
namespace {

std::string DTypeCounts(const Json& dtypes) {
  std::string text;
  for (const auto& [dtype, count] : dtypes.items()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count.get<int64_t>(), dtype);
  }
  return text;
}

// "2, 7 (generation_config.json); 2 (config.json)": generation stops at the first.
std::string EndTokens(const Json& of_files) {
  std::string text;
  for (const auto& [file, tokens] : of_files.items()) {
    if (tokens.empty()) continue;
    text += fmt::format("{}{} ({})", text.empty() ? "" : "; ",
                        fmt::join(tokens.get<std::vector<int64_t>>(), ", "), file);
  }
  return text.empty() ? "none in generation_config.json and config.json" : text;
}

// Damage that is listed for people; a program reads all of it from the JSON.
constexpr size_t kMaxListedDamage = 100;

std::string DamageText(const Json& damaged) {
  std::string text;
  const size_t num_listed = std::min(damaged.size(), kMaxListedDamage);
  for (size_t i = 0; i < num_listed; ++i) {
    text += fmt::format("  {}\n", damaged[i]["message"].get<std::string>());
  }
  if (num_listed < damaged.size()) {
    text += fmt::format("  and {} more: --format=json has all\n", damaged.size() - num_listed);
  }
  return text;
}

std::string RepairedText(const Json& repaired) {
  const auto step = repaired["step"].get<int64_t>();
  const auto before = repaired["step_before"].get<int64_t>();
  std::string notes;
  for (const Json& note : repaired["notes"]) {
    notes += fmt::format("  {}\n", note.get<std::string>());
  }
  if (!repaired["changed"].get<bool>()) {
    return fmt::format("{:<13}{}: step {} is whole\n", "repaired",
                       notes.empty() ? "nothing" : "what was there twice", step) +
           notes;
  }
  const std::string was =
      before < 0 ? "no commit record was whole" : fmt::format("step {} is not whole", before);
  return fmt::format("{:<13}{}; the run goes on from step {}, which is\n", "repaired", was, step) +
         DamageText(repaired["damaged"]) + notes;
}

// Says which steps were verified, where the run went on meanwhile.
std::string StepsText(const Json& verified) {
  if (!verified.contains("steps") || verified["steps"].size() < 2) return "";
  const Json& steps = verified["steps"];
  return fmt::format(" of steps {} to {}, each part of the one that was committed then",
                     steps.front()["step"].get<int64_t>(), steps.back()["step"].get<int64_t>());
}

std::string VerifiedText(const Json& verified) {
  const auto bytes = static_cast<double>(verified["bytes"].get<int64_t>());
  const double seconds = verified["seconds"].get<double>();
  std::string text = fmt::format(
      "{:<13}{} in {} ({:.2f} GB/s){}, {}\n", "verified",
      FormatBytes(verified["bytes"].get<int64_t>()), FormatDuration(seconds),
      bytes / 1e9 / std::max(seconds, 1e-9), StepsText(verified),
      verified["damaged"].empty() ? "all of it is what was written" : "and found damage:");
  return text + DamageText(verified["damaged"]);
}

std::string Text(const Json& json) {
  std::string text;
  const auto line = [&](std::string_view name, const std::string& value) {
    text += fmt::format("{:<13}{}\n", name, value);
  };
  if (!json.contains("bytes")) {  // a damaged export
    line(json["kind"].get<std::string>(), json["path"].get<std::string>());
    return text + VerifiedText(json["verified"]);
  }
  const int64_t bytes = json["bytes"].get<int64_t>();
  line(json["kind"].get<std::string>(), json["path"].get<std::string>());
  const std::string architecture = json["architecture"].get<std::string>();
  if (!architecture.empty()) line("architecture", architecture);
  line("tensors", fmt::format("{}, {} parameters, {}", json["num_tensors"].get<int64_t>(),
                              FormatCount(json["params"].get<int64_t>()), FormatBytes(bytes)));
  if (json["kind"] == "model") {
    line("dtypes", DTypeCounts(json["dtypes"]));
    line("shape", fmt::format("{} layers of width {}, vocabulary {}, {} positions",
                              json["layers"].get<int64_t>(), json["hidden"].get<int64_t>(),
                              json["vocab"].get<int64_t>(), json["max_positions"].get<int64_t>()));
    line("end tokens", EndTokens(json["end_tokens"]));
  } else {
    line("step", fmt::format("{} (committed){}", json["step"].get<int64_t>(),
                             json["in_use"].get<bool>() ? "; a process works on the run" : ""));
    const Json& stripes = json["stripes"];
    const std::string where = stripes.size() == 1 ? stripes[0]["folder"].get<std::string>()
                                                  : fmt::format("{} folders", stripes.size());
    line("store",
         fmt::format("{}, {} in {}, layout {}, tiles of {} elements", where,
                     FormatBytes(json["store_bytes"].get<int64_t>()),
                     json["slots"] == 1 ? "one slot" : "two slots",
                     json["layout"].get<std::string>(), json["tile_elems"].get<int64_t>()));
    for (size_t i = 0; i < stripes.size() && stripes.size() > 1; ++i) {
      line("", fmt::format("{}, {}, weight {}", stripes[i]["folder"].get<std::string>(),
                           FormatBytes(stripes[i]["bytes"].get<int64_t>()),
                           stripes[i]["weight"].get<int64_t>()));
    }
    if (json.contains("model")) line("from model", json["model"].get<std::string>());
    for (const Json& note : json["notes"]) line("note", note.get<std::string>());
  }
  if (json.contains("digest")) line("digest", json["digest"].get<std::string>());
  if (json.contains("note")) line("note", json["note"].get<std::string>());
  if (json.contains("repaired")) text += RepairedText(json["repaired"]);
  for (const Json& path : json.value("written_anew", Json::array())) {
    line("written anew", path.get<std::string>());
  }
  for (const Json& file : json.value("lost", Json::array())) line("lost", file.get<std::string>());
  if (json.contains("verified")) text += VerifiedText(json["verified"]);
  if (!json.contains("tensors")) return text;
  text += "\n";
  for (const Json& tensor : json["tensors"]) {
    text += fmt::format("{:<52} {:<5} {:>10}  {}\n", tensor["name"].get<std::string>(),
                        tensor["dtype"].get<std::string>(),
                        FormatBytes(tensor["bytes"].get<int64_t>()), tensor["shape"].dump());
  }
  return text;
}

class InspectCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("PATH", path_, "model folder, run folder, or the folder of a store")->required();
    app.add_flag("--hash", options_.hash,
                 "a digest over all values, the same whatever the tiers and tiles (XXH3-128)");
    app.add_flag(
        "--verify", options_.verify,
        "compare every byte of a run's state, or of an exported model, with its checksums; "
        "exit 8 and a list where some are damaged");
    app.add_flag("--repair", options_.repair,
                 "where the committed step is damaged, go back to the newest one that is whole, if "
                 "there is one; and write lost records anew from their copies");
    app.add_flag("--tensors", options_.tensors, "every tensor with dtype, bytes and shape");
  }

  absl::Status Run(const CommandContext& context) override {
    ProgressLine progress;
    options_.progress = [&](const char* what, int64_t done, int64_t all) {
      progress.Show(what, static_cast<double>(done) / static_cast<double>(all));
    };
    FOREBAY_ASSIGN_OR_RETURN(const Json json, Inspect(path_, options_));
    progress.Clear();
    // Names of tensors come from files of others.
    PrintTo(stdout, "{}",
            context.json ? json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                         : Text(json));
    const size_t num_damaged = json.contains("verified") ? json["verified"]["damaged"].size() : 0;
    if (num_damaged == 0) return absl::OkStatus();
    if (json["kind"] == "model") {
      return CorruptError(
          fmt::format("{} of '{}' {} not what was exported. Copy the folder again, "
                      "or export the model again",
                      num_damaged == 1 ? "1 file" : fmt::format("{} files", num_damaged), path_,
                      num_damaged == 1 ? "is" : "are"));
    }
    return CorruptError(fmt::format(
        "{} of the state of '{}' {} damaged or cannot be read. {}--repair goes back to the step "
        "before where that is whole; else restore the run from a copy, or start again from its "
        "last export",
        num_damaged == 1 ? "1 part" : fmt::format("{} parts", num_damaged), path_,
        num_damaged == 1 ? "is" : "are",
        json["in_use"].get<bool>()
            ? "End its process at once (kill -KILL), as what it saves from here on goes over the "
              "step before; then "
            : ""));
  }

 private:
  std::string path_;
  InspectOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeInspectCommand() {
  return std::make_unique<InspectCommand>();
}

}  // namespace forebay
