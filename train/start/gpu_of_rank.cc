#include "forebay/train/start/gpu_of_rank.h"

#include <algorithm>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/device/cuda_info.h"

namespace forebay {
namespace {

std::string NameOfRank(std::span<const RankDevice> ranks, size_t rank) {
  return fmt::format("rank {} ({})", rank, ranks[rank].host);
}

absl::StatusOr<RankDevice> DeviceFor(int local_rank, TrainOptions& options) {
  if (options.device == ComputeDevice::kCpu) return RankDevice{.why_cpu = "--device=cpu"};
  const absl::StatusOr<GpuOfProcess> gpu = PickGpu(local_rank);
  if (gpu.ok()) {
    options.gpu_index = gpu->index;
    return RankDevice{.gpu_id = gpu->id, .num_gpus = gpu->num_gpus};
  }
  const std::string why = MessageOf(gpu.status());
  if (options.device == ComputeDevice::kAuto) return RankDevice{.why_cpu = why};
  return EnvironmentError(fmt::format("--device=cuda: {}", why));
}

absl::StatusOr<std::vector<RankDevice>> GatherDevices(const RankDevice& own, Communicator& ranks) {
  const Json words = {{"gpu", own.gpu_id}, {"why_cpu", own.why_cpu}, {"num_gpus", own.num_gpus}};
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> records,
                           ranks.GatherRecords(words.dump()));
  std::vector<RankDevice> devices;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    FOREBAY_ASSIGN_OR_RETURN(const Json json,
                             ParseJson(records[rank], fmt::format("device of rank {}", rank)));
    devices.push_back({.host = ranks.host(static_cast<int>(rank)),
                       .gpu_id = json.value("gpu", ""),
                       .why_cpu = json.value("why_cpu", ""),
                       .num_gpus = json.value("num_gpus", 0)});
  }
  return devices;
}

}  // namespace

absl::Status CheckDevices(std::span<const RankDevice> ranks) {
  const bool first_has_gpu = !ranks.front().gpu_id.empty();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const bool has_gpu = !ranks[rank].gpu_id.empty();
    if (has_gpu != first_has_gpu) {
      const size_t on_cpu = has_gpu ? 0 : rank;
      return UsageError(fmt::format(
          "the ranks of this run do not agree: {} would compute on a GPU, and {} on the CPU: {}. "
          "Give all of them a GPU each, or --device=cpu",
          NameOfRank(ranks, has_gpu ? rank : 0), NameOfRank(ranks, on_cpu), ranks[on_cpu].why_cpu));
    }
    if (!has_gpu) continue;
    const auto same = std::ranges::find(ranks, ranks[rank].gpu_id, &RankDevice::gpu_id);
    const auto other = static_cast<size_t>(same - ranks.begin());
    if (other == rank) continue;
    return UsageError(fmt::format(
        "{} and {} would compute on one GPU, of {} that the latter sees. Start as many processes "
        "on a machine as it has GPUs, each with a LOCAL_RANK of its own or a GPU of its own in "
        "CUDA_VISIBLE_DEVICES; or use --device=cpu",
        NameOfRank(ranks, other), NameOfRank(ranks, rank), ranks[rank].num_gpus));
  }
  return absl::OkStatus();
}

absl::Status TakeDeviceOfRank(int local_rank, Communicator& ranks, TrainOptions& options) {
  FOREBAY_ASSIGN_OR_RETURN(const RankDevice own, DeviceFor(local_rank, options));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<RankDevice> devices, GatherDevices(own, ranks));
  return CheckDevices(devices);
}

}  // namespace forebay
