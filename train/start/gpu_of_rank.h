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

// UsageError that names the ranks where some compute on a GPU and others do not, or where two would
// come to one GPU and may not share it. Pure.
absl::Status CheckDevices(std::span<const RankDevice> ranks, bool may_share);

// Chooses for this rank (options.gpu_index); `local_rank`: its number on this machine. Returns how
// many ranks compute on the same GPU; 1 on CPUs. Every rank calls it. UsageError as CheckDevices
// has it; EnvironmentError of the ranks, or where --device=cuda finds no GPU.
absl::StatusOr<int> TakeDeviceOfRank(int local_rank, Communicator& ranks, TrainOptions& options);

}  // namespace forebay
