#include "forebay/tools/model_flags.h"

#include <optional>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/train/export/export.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/options/option_table.h"

namespace forebay {
namespace {

// What to do about a run without the model that its last step leaves: go on, or take an export.
absl::Status NoModelYet(const RunPaths& run) {
  std::string exports;
  if (const auto newest = NewestExport(run.exports); newest.ok() && newest->has_value()) {
    exports = fmt::format(", or take its newest export: --model={}", ShellQuoted(**newest));
  }
  return UsageError(fmt::format(
      "--model: the run in '{}' has no model: '{}' is written at the end of training (unless "
      "--export=none). Continue it with 'forebay train --resume --out={}'{}",
      run.out, run.model, ShellQuoted(run.out), exports));
}

}  // namespace

void ModelFlags::Declare(CLI::App& app) {
  app.add_option("--model", model, "Hugging Face folder, or a run folder with a finished model")
      ->type_name("PATH")
      ->required();
  app.add_option("--ram", ram_text_,
                 "memory budget; weights that do not fit are streamed (default: auto)")
      ->type_name("SIZE");
  app.add_option("--precision", precision_text_, "of matrix products (default: bf16)")
      ->type_name("bf16|fp16|fp32");
  app.add_option("--threads", threads, "compute threads; 0: one per core (default: 0)")
      ->type_name("N")
      ->check(CLI::Range(0, 1024));
}

absl::Status ModelFlags::Read() {
  // The same rows of the table as for training check them.
  TrainOptions options;
  std::string problems;
  const auto read = [&](const char* name, const std::string& text) {
    const OptionSpec* spec = FindOption(name);
    const std::optional<Json> value = spec->parse(text);
    if (value.has_value() && spec->set(*value, options)) return;
    problems += fmt::format("{}--{} is '{}'; allowed: {}", problems.empty() ? "" : "\n  ", name,
                            text, spec->allowed);
  };
  read("ram", ram_text_);
  read("precision", precision_text_);
  if (!problems.empty()) return UsageError(problems);
  ram_bytes = options.ram_bytes;
  precision = options.precision;
  if (!IsRunFolder(model)) return absl::OkStatus();
  const RunPaths run(model);
  if (!FileExists(JoinPath(run.model, "config.json"))) return NoModelYet(run);
  model = run.model;
  return absl::OkStatus();
}

}  // namespace forebay
