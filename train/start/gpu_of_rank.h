// The GPU that each rank of a run computes on.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/collective/communicator.h"
#include "forebay/train/options/options.h"

namespace forebay {

// A rank would compute on this.
struct RankDevice {
  std::string host;
  std::string gpu_id;  // PickGpu's; empty: it computes on the CPU
  std::string why_cpu;
  int num_gpus = 0;  // that it sees
};

// UsageError that names the ranks if some compute on a GPU and others do not, or if two would
// compute on one GPU. Pure.
absl::Status CheckDevices(std::span<const RankDevice> ranks);

// Chooses for this rank (options.gpu_index); `local_rank`: its number on this machine. Every rank
// calls it. UsageError as CheckDevices has it; EnvironmentError of the ranks, or if --device=cuda
// finds no GPU.
absl::Status TakeDeviceOfRank(int local_rank, Communicator& ranks, TrainOptions& options);

}  // namespace forebay
