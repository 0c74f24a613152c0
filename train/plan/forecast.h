// How long a step will take, from what it computes and moves and how fast the machine does each.
//
// Model: each pass is as long as what is slowest in it, as all else goes on beside it; the passes
// follow one another. On a CPU, updates and checksums take their time from the computation, and a
// part of the shorter of computation and disk is not hidden behind the longer: the first layers are
// waited for, and threads wait for cores that others have. Staging that is deeper than it has to be
// moves the disk's work from the forward pass to the backward pass, and hides more of it. Not
// counted: flushes of a commit, and exports. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "forebay/model/decoder_config.h"
#include "forebay/model/decoder_flops.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/offload/plan.h"
#include "forebay/train/options/options.h"

namespace forebay {

enum class Bound : uint8_t { kCompute, kDisk, kMemory, kBus };
std::string_view NameOf(Bound bound);  // "compute", "disk", "memory", "bus"

// Seconds that each part is busy.
struct PassForecast {
  double compute_s = 0;  // on a CPU with updates and checksums
  double disk_s = 0;
  double memory_s = 0;  // of RAM: updates, and what devices copy
  double bus_s = 0;     // between RAM and the GPU, in the direction that has more
  // The longer of compute_s and disk_s does not hide this: a part of the shorter, waits, and in the
  // backward pass updates that are applied as gradients come, behind the last of these.
  double not_hidden_s = 0;

  double Seconds() const;  // of the longest, with what is not hidden
  Bound bound() const;
  PassForecast& operator+=(const PassForecast& other);
};

struct StepForecast {
  PassForecast forward;   // up to the loss
  PassForecast backward;  // from there on
  double step_s = 0;
  double tokens_per_s = 0;
  // What it would be if all went on beside all else: the longest sum.
  double bound_s = 0;
  Bound bound = Bound::kCompute;
};

struct GpuUse {
  bool computes = false;
  int num_spilled_activations = 0;  // as GpuPlan has it
};

// `plan`: of a decoder, with the disk's times. `flops`: of its step. nullopt where a speed that it
// needs is not known.
std::optional<StepForecast> ForecastStep(const OffloadPlan& plan, const GpuUse& gpu,
                                         const DecoderFlops& flops, const DecoderConfig& model,
                                         const TrainOptions& options, const MachineSpeeds& speeds);

}  // namespace forebay
