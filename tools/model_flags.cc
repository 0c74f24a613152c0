#include "forebay/tools/model_flags.h"

#include <optional>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/train/option_table.h"
#include "forebay/train/run_folder.h"

namespace forebay {

void ModelFlags::Declare(CLI::App& app) {
  app.add_option("--model", model, "Hugging Face folder, or a run folder with a finished model")
      ->type_name("PATH")
      ->required();
  app.add_option("--ram", ram_text_,
                 "memory budget; weights that do not fit are streamed (default: auto)")
      ->type_name("SIZE");
  app.add_option("--precision", precision_text_, "of matrix products (default: bf16)")
      ->type_name("bf16|fp32");
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
  if (IsRunFolder(model)) model = RunPaths(model).model;
  return absl::OkStatus();
}

}  // namespace forebay
