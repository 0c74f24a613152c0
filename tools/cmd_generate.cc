#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/model_flags.h"
#include "forebay/tools/number_checks.h"
#include "forebay/tools/print.h"
#include "forebay/tools/progress_line.h"
#include "forebay/train/infer/generate_text.h"

namespace forebay {
namespace {

std::string SpeedOf(const GenerateResult& result) {
  int64_t prompt_tokens = 0;
  for (const GeneratedTokens& answer : result.answers) prompt_tokens += answer.prompt_tokens;
  std::string speed = fmt::format(
      "{} tokens after {} of the prompt, {:.1f} tokens/s ({:.0f} tokens/s for the prompt)",
      result.num_tokens(), prompt_tokens, result.TokensPerSecond(), result.PromptTokensPerSecond());
  speed +=
      fmt::format(", {:.1f} s for each answer, {} of weights read for each token",
                  result.SecondsPerAnswer(), FormatBytes(result.read_bytes / result.num_tokens()));
  if (result.copied_bytes) {
    speed += fmt::format(" and {} copied", FormatBytes(*result.copied_bytes / result.num_tokens()));
  }
  return speed;
}

class GenerateCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    flags_.Declare(app);
    app.add_option("--prompt", prompts_, "text to continue; several are continued together")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    app.add_option("--chat", chats_,
                   "a message to answer, through the model's chat template; several are answered "
                   "together")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    app.add_option(
           "--prompts", options_.prompt_file,
           "a file of prompts that are continued together: .txt with one per line, or .jsonl "
           "with {\"prompt\"} or {\"messages\"}")
        ->type_name("FILE");
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
    app.add_option("--stop", options_.stops,
                   "a text that ends an answer and is not part of it; may be given several times")
        ->type_name("TEXT")
        ->allow_extra_args(false);
    app.add_option("--seed", options_.sampling.seed, "of the random choices (default: 0)")
        ->type_name("N")
        ->check(CheckSeed);
  }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_ASSIGN_OR_RETURN(options_.infer, flags_.Read());
    options_.chat = !chats_.empty();
    options_.prompts = options_.chat ? chats_ : prompts_;
    const int ways = static_cast<int>(!prompts_.empty()) + static_cast<int>(!chats_.empty()) +
                     static_cast<int>(!options_.prompt_file.empty());
    if (ways != 1 || std::ranges::count(options_.prompts, "") > 0) {
      return UsageError("give either --prompt or --chat, with some text, or --prompts with a file");
    }
    if (std::ranges::count(options_.stops, "") > 0) {
      return UsageError("--stop is empty, which every text contains: give the text to stop at");
    }
    ProgressLine progress;
    GenerateListener listener;
    // An answer that is seen to grow needs no line, which would be in its midst.
    const bool text_is_elsewhere = ::isatty(STDERR_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 0;
    bool is_seen_to_grow = false;
    listener.on_text = [&](std::string_view piece) {
      if (context.json) return;
      is_seen_to_grow = !text_is_elsewhere;
      if (is_seen_to_grow) progress.Clear();
      PrintTo(stdout, "{}", piece);
      std::fflush(stdout);
    };
    listener.on_prompts = [&](double fraction) { progress.Show("reading the prompt", fraction); };
    listener.on_progress = [&](int64_t num_tokens, int64_t most) {
      if (is_seen_to_grow) return;
      progress.Show(fmt::format("generating, {} tokens", num_tokens),
                    static_cast<double>(num_tokens) / static_cast<double>(most));
    };
    FOREBAY_ASSIGN_OR_RETURN(const GeneratedText generated, GenerateText(options_, listener));
    progress.Clear();
    if (context.json) {
      PrintTo(stdout, "{}\n",
              ToJson(generated).dump(-1, ' ', false, Json::error_handler_t::replace));
      return absl::OkStatus();
    }
    const GenerateResult& result = generated.result;
    if (result.answers.size() == 1) {
      PrintTo(stdout, "\n");
    } else {
      for (size_t i = 0; i < generated.texts.size(); ++i) {
        const int64_t number =
            generated.lines.empty() ? static_cast<int64_t>(i) + 1 : generated.lines[i];
        PrintTo(stdout, "[{}] {}\n", number, generated.texts[i]);
      }
    }
    std::fflush(stdout);
    PrintTo(stderr, "{}\n", SpeedOf(result));
    return absl::OkStatus();
  }

 private:
  ModelFlags flags_;
  GenerateTextOptions options_;
  std::vector<std::string> prompts_;
  std::vector<std::string> chats_;
};

}  // namespace

std::unique_ptr<Command> MakeGenerateCommand() {
  return std::make_unique<GenerateCommand>();
}

}  // namespace forebay
