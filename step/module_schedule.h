// The operations of a step of what is no chain of layers: a module of another framework, or an
// optimizer alone. Pure.
//
// Not for: a decoder, whose first and last layer are read once (ChainSchedule).
#pragma once

#include <cstdint>
#include <span>

#include "forebay/step/step_schedule.h"

namespace forebay {

// How a step uses the weights of its layers.
enum class PassKind : uint8_t {
  kChain,       // as ChainSchedule has it
  kModule,      // every layer is read for its forward pass, and again for its backward pass
  kUpdateOnly,  // the weights are computed with elsewhere: each layer is read once, when updated
};

// Forward through the layers in their order, backward in the reverse one. `update_times`: by layer,
// at least one.
StepSchedule ModuleSchedule(std::span<const UpdateTime> update_times);

// Gradients come in the reverse order of the layers, as a backward pass has it.
StepSchedule UpdateOnlySchedule(std::span<const UpdateTime> update_times);

}  // namespace forebay
