// The settings of a plan that make the fastest step by its forecast, where the machine's speeds are
// known: what blocks compute again, the number of layers whose gradients are applied at once, and
// settings that one could do better with. Where they are not known: what blocks compute again, by
// the memory that is left. What is chosen changes no bit of a run. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/train/options/options.h"
#include "forebay/train/plan/plan.h"

namespace forebay {

// A plan with exactly these options.
using PlanMaker = std::function<absl::StatusOr<Plan>(const TrainOptions& options)>;

// `plan` is that of `options`, of a model of so many blocks. The fastest of plans that differ in
// what these leave open, one after the other, else `plan`:
// - what blocks compute again (no --recompute, no --set=number_checkpoints): what they save, on a
// CPU,
//   takes memory from all else, and segments leave more to it;
// - the number of layers whose gradients are applied at once (OffloadPlan::may_speculate, no
//   --set=speculate_layers), if it saves enough to be worth its writes.
// Where it has no forecast, as many blocks as memory has room for compute nothing again, if nothing
// else would have used that memory.
Plan WithFastestSettings(Plan plan, const TrainOptions& options, int num_blocks,
                         const PlanMaker& make);

// The plan of `options`, whose activations wait on disk where these leave that open and memory has
// no room for them. Nowhere else: what would lie in their place, gradients or weights, is written
// and read as often as they are. `make`: with the choice above. Its errors.
absl::StatusOr<Plan> WithActivationsThatFit(const TrainOptions& options, const PlanMaker& make);

// A large vocabulary may go in parts (BlockRecompute).
enum class VocabularyParts : uint8_t { kNone, kGradients, kWeightsToo };
// The plan whose gradients of the vocabulary are made in parts, up to `most`, where memory has no
// room for them whole or has better use for it, by the forecast; and whose weights come in pieces,
// where memory has no room for these, as that costs reads. `make`: with the choice above. Its
// errors.
absl::StatusOr<Plan> WithVocabularyThatFits(
    VocabularyParts most, const std::function<absl::StatusOr<Plan>(VocabularyParts parts)>& make);

// The least changes of one setting each that make the step shorter by a twentieth or more, fastest
// first; none where the plan has no forecast. `make`: with the choice above. `available_bytes` of
// memory; 0: not known. More than that is said to be more.
std::vector<BetterSetting> BetterSettings(const Plan& plan, const TrainOptions& options,
                                          int64_t available_bytes, const PlanMaker& make);

}  // namespace forebay
