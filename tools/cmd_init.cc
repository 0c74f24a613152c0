#include <unistd.h>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/process/cores.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/number_checks.h"
#include "forebay/tools/print.h"
#include "forebay/tools/progress_line.h"
#include "forebay/tools/ram_flag.h"
#include "forebay/train/start/init_model.h"

namespace forebay {
namespace {

class InitCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("--config", options_.config,
                   "config.json, or a folder that holds one and a tokenizer")
        ->type_name("PATH")
        ->required();
    app.add_option("--out", options_.out, "folder to make")->type_name("PATH")->required();
    app.add_flag("--run", options_.as_run,
                 "make a run of step 0 for 'train --resume', not a model folder");
    app.add_option("--seed", options_.seed, "of the random numbers (default: 0)")
        ->type_name("N")
        ->check(CheckSeed);
    app.add_option("--dtype", options_.dtype, "of the weights (default: the config's)")
        ->type_name("bf16|fp16|fp32")
        ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
    ram_.Declare(app);
  }

  absl::Status Run(const CommandContext& context) override {
    options_.num_threads = DefaultThreads();
    FOREBAY_ASSIGN_OR_RETURN(options_.ram_bytes, ram_.Read());
    ProgressLine progress;
    FOREBAY_ASSIGN_OR_RETURN(const InitResult result, InitModel(options_, [&](double fraction) {
                               progress.Show("writing random weights", fraction);
                             }));
    progress.Clear();
    const bool has_tokenizer = FileExists(JoinPath(result.model, "tokenizer.json"));
    if (context.json) {
      PrintTo(stdout, "{}\n", ToJson(result).dump());
    } else if (options_.as_run) {
      PrintTo(stdout,
              "made a run of step 0 in '{0}': {1}, {2} parameters\ntrain it with: forebay train "
              "--resume --out={4} --data=FILE{3}\n",
              options_.out, result.architecture, FormatCount(result.num_params),
              result.precision == "bf16" ? "" : " --precision=" + result.precision,
              ShellQuoted(options_.out));
    } else {
      PrintTo(stdout, "made a model in '{}': {}, {} parameters\n", options_.out,
              result.architecture, FormatCount(result.num_params));
    }
    if (!context.json && !has_tokenizer) {
      PrintTo(stdout,
              "it has no tokenizer: copy a tokenizer.json into '{}', or train it on packed data\n",
              result.model);
    }
    return absl::OkStatus();
  }

 private:
  InitOptions options_;
  RamFlag ram_;
};

}  // namespace

std::unique_ptr<Command> MakeInitCommand() {
  return std::make_unique<InitCommand>();
}

}  // namespace forebay
