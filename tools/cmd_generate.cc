#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/model_flags.h"
#include "forebay/tools/number_checks.h"
#include "forebay/tools/print.h"
#include "forebay/train/infer/generate_text.h"

namespace forebay {
namespace {

class GenerateCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    flags_.Declare(app);
    app.add_option("--prompt", prompt_, "text to continue")->type_name("TEXT");
    app.add_option("--chat", chat_, "one message to answer, through the model's chat template")
        ->type_name("TEXT");
    app.add_option("--max_tokens", options_.max_tokens, "tokens to generate at most (default: 128)")
        ->type_name("N")
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
    app.add_option("--temperature", options_.sampling.temperature,
                   "0: the likeliest token each time (default: 0)")
        ->type_name("X")
        ->check(CheckReal(0, 100));
    app.add_option("--top_p", options_.sampling.top_p,
                   "only the likeliest tokens with this probability (default: 1)")
        ->type_name("X")
        ->check(CheckReal(1e-6, 1));
    app.add_option("--seed", options_.sampling.seed, "of the random choices (default: 0)")
        ->type_name("N")
        ->check(CheckSeed);
  }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_ASSIGN_OR_RETURN(options_.infer, flags_.Read());
    if (prompt_.empty() == chat_.empty())
      return UsageError("give either --prompt or --chat, with some text");
    options_.chat = !chat_.empty();
    options_.prompt = options_.chat ? chat_ : prompt_;
    const auto print = [&](std::string_view piece) {
      if (context.json) return;
      PrintTo(stdout, "{}", piece);
      std::fflush(stdout);
    };
    FOREBAY_ASSIGN_OR_RETURN(const GeneratedText generated, GenerateText(options_, print));
    if (context.json) {
      PrintTo(stdout, "{}\n",
              ToJson(generated).dump(-1, ' ', false, Json::error_handler_t::replace));
      return absl::OkStatus();
    }
    PrintTo(stdout, "\n");
    std::fflush(stdout);
    const GenerateResult& result = generated.result;
    PrintTo(stderr,
            "{} tokens after {} of the prompt, {:.1f} tokens/s ({:.0f} tokens/s for the prompt)\n",
            result.tokens.size(), result.prompt_tokens, result.TokensPerSecond(),
            result.PromptTokensPerSecond());
    return absl::OkStatus();
  }

 private:
  ModelFlags flags_;
  GenerateTextOptions options_;
  std::string prompt_;
  std::string chat_;
};

}  // namespace

std::unique_ptr<Command> MakeGenerateCommand() {
  return std::make_unique<GenerateCommand>();
}

}  // namespace forebay
