#include "forebay/offload/offload_options.h"

#include <utility>

#include "fmt/format.h"

namespace forebay {

OptimizerConfig RuleOf(const OffloadOptions& options) {
  return {.kind = options.optimizer,
          .beta1 = options.beta1,
          .beta2 = options.beta2,
          .eps = options.eps,
          .momentum = options.momentum,
          .nesterov = options.nesterov};
}

std::vector<std::string> ContradictionsOf(const OffloadOptions& options) {
  std::vector<std::string> found;
  const auto refuse = [&](bool is_so, std::string problem) {
    if (is_so) found.push_back(std::move(problem));
  };
  // A speculative update is written to a slot that is neither committed nor the step before.
  const bool speculates = options.gradients == GradientChoice::kSpeculate;
  constexpr std::string_view kSpeculation =
      "--gradients=speculate does not go with --{}, {}. Leave one of them out, or give "
      "--gradients=auto where the run itself has it";
  refuse(speculates && options.durability == Durability::kNone,
         fmt::format(kSpeculation, "durability=none", "which has no second slot"));
  refuse(speculates && options.commit_every > 1,
         fmt::format(kSpeculation, fmt::format("commit_every={}", options.commit_every),
                     "as it needs every step committed"));
  refuse(
      speculates && options.gradients_tier != TierChoice::kAuto,
      "--gradients=speculate applies gradients at once, and gradients_tier says where they wait: "
      "leave one of them out");
  const int64_t from = options.delay_update_from;
  refuse(
      from == 1,
      "--delay_update_from=1: no step is before the first, so none can be left out there. Give 2 "
      "or a later step, or leave it out");
  refuse(from > 0 && (options.commit_every < 2 || options.durability == Durability::kNone),
         fmt::format("--delay_update_from={} needs --commit_every=N, 2 or more, and "
                     "--durability=step: a commit applies the update that is delayed, so that it "
                     "has to fall on the same steps in every run",
                     from));
  refuse(from > 0 && speculates,
         fmt::format("--delay_update_from={} does not go with --gradients=speculate, which applies "
                     "an update before its step has ended. Leave one of them out",
                     from));
  return found;
}

}  // namespace forebay
