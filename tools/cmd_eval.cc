#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/model_flags.h"
#include "forebay/tools/print.h"
#include "forebay/tools/progress_line.h"
#include "forebay/train/infer/evaluate_model.h"

namespace forebay {
namespace {

class EvalCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    flags_.Declare(app);
    app.add_option("--data", options_.data, "texts, rows or chats, as for train; or a packed file")
        ->type_name("PATH[:WEIGHT],...")
        ->join(',')
        ->required();
    app.add_option(
           "--seq", options_.seq,
           "tokens per row, at most the model's positions (default: 1024, or that of packed data)")
        ->type_name("N")
        ->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
    app.add_option("--batch", options_.batch, "rows computed together (default: 4)")
        ->type_name("N")
        ->check(CLI::Range(int64_t{1}, int64_t{65536}));
    app.add_flag("--truncate", options_.truncate,
                 "cut over-long prompts and chats instead of refusing them");
  }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_ASSIGN_OR_RETURN(options_.infer, flags_.Read());
    ProgressLine progress;
    const auto show = [&](const std::string& what, double fraction) {
      progress.Show(what, fraction);
    };
    const auto print_note = [](const std::string& note) { PrintTo(stderr, "{}\n", note); };
    FOREBAY_ASSIGN_OR_RETURN(const EvaluationResult result,
                             EvaluateModel(options_, show, print_note));
    progress.Clear();
    if (context.json) {
      PrintTo(stdout, "{}\n", ToJson(result).dump());
    } else {
      PrintTo(stdout, "loss        {:.4f}\nperplexity  {:.4g}\ntokens      {} ({} predicted)\n",
              result.loss, result.perplexity, result.num_tokens, result.num_trained);
    }
    return absl::OkStatus();
  }

 private:
  ModelFlags flags_;
  EvaluateModelOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeEvalCommand() {
  return std::make_unique<EvalCommand>();
}

}  // namespace forebay
