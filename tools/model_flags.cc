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
  app.add_option("--model", options_.model,
                 "Hugging Face folder, or a run folder with a finished model")
      ->type_name("PATH")
      ->required();
  app.add_option("--ram", ram_text_,
                 "memory budget; weights that do not fit are streamed (default: auto)")
      ->type_name("SIZE");
  app.add_option("--device", device_text_,
                 "what computes; auto: a GPU where there is one "
                 "(default: cpu)")
      ->type_name("auto|cpu|cuda");
  app.add_option("--gpu_mem", gpu_mem_text_, "memory budget on the GPU (default: auto)")
      ->type_name("SIZE");
  app.add_option("--precision", precision_text_, "of matrix products (default: bf16)")
      ->type_name("bf16|fp16|fp32");
  app.add_option("--threads", options_.threads,
                 "compute threads; 0: one per core that it may use (default: 0)")
      ->type_name("N")
      ->check(CLI::Range(0, 1024));
}

absl::StatusOr<InferOptions> ModelFlags::Read() const {
  // The same rows of the table as for training check them.
  TrainOptions read_options;
  std::string problems;
  const auto read = [&](const char* name, const std::string& text) {
    const OptionSpec* spec = FindOption(name);
    const std::optional<Json> value = spec->parse(text);
    if (value.has_value() && spec->set(*value, read_options)) return;
    problems += fmt::format("{}--{} is '{}'; allowed: {}", problems.empty() ? "" : "\n  ", name,
                            text, spec->allowed);
  };
  read("ram", ram_text_);
  read("precision", precision_text_);
  read("device", device_text_);
  read("gpu_mem", gpu_mem_text_);
  if (!problems.empty()) return UsageError(problems);
  InferOptions options = options_;
  options.ram_bytes = read_options.ram_bytes;
  options.precision = read_options.precision;
  options.device = read_options.device;
  options.gpu_mem_bytes = read_options.gpu_mem_bytes;
  if (!IsRunFolder(options.model)) return options;
  const RunPaths run(options.model);
  if (!FileExists(JoinPath(run.model, "config.json"))) return NoModelYet(run);
  options.model = run.model;
  return options;
}

}  // namespace forebay
