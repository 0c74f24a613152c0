// Processes that train together.
#include "forebay/capi/c_ranks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/capi/c_status.h"
#include "forebay/collective/connect/connect.h"

namespace forebay::capi {
namespace {

// A program that computes between its calls, or writes a file on one rank alone, is often silent
// for longer than `forebay train`.
constexpr double kDefaultTimeoutS = 600;
constexpr double kMostTimeoutS = 1e6;
constexpr int kMostRanks = 1 << 16;
constexpr int kLastPort = 65535;

absl::StatusOr<Launch> LaunchOf(const forebay_ranks_options& options) {
  if (options.size == 0) {
    if (options.rank == 0 && options.master_address == nullptr && options.master_port == 0) {
      return DetectLaunch(ProcessEnvironment);
    }
    return UsageError(
        "size is 0, which leaves rank, size and the master to the launcher. Set all of them, or "
        "none");
  }
  if (options.size < 0 || options.size > kMostRanks || options.rank < 0 ||
      options.rank >= options.size) {
    return UsageError(
        fmt::format("rank is {} and size {}: the size is from 1 to {}, and the rank "
                    "below it",
                    options.rank, options.size, kMostRanks));
  }
  Launch launch;
  if (options.size == 1) return launch;
  FOREBAY_RETURN_IF_ERROR(CheckPointer(options.master_address, "master_address"));
  if (options.master_port < 1 || options.master_port > kLastPort - kNumRankPorts + 1) {
    return UsageError(fmt::format("master_port is {}, and has to be from 1 to {}, the first of {}",
                                  options.master_port, kLastPort - kNumRankPorts + 1,
                                  kNumRankPorts));
  }
  launch.transport = RankTransport::kSockets;
  launch.launcher = "the program";
  launch.rank = launch.local_rank = options.rank;
  launch.size = options.size;
  launch.master_address = options.master_address;
  launch.first_port = options.master_port;
  launch.job = fmt::format("{}:{}", launch.master_address, launch.first_port);
  return launch;
}

absl::StatusOr<forebay_ranks*> Connect(const forebay_ranks_options* given) {
  FOREBAY_ASSIGN_OR_RETURN(const forebay_ranks_options options, OptionsOf(given));
  if (!(options.timeout_s >= 0 && options.timeout_s <= kMostTimeoutS)) {
    return UsageError(fmt::format("timeout_s is {}, and has to be from 0 to {}", options.timeout_s,
                                  kMostTimeoutS));
  }
  FOREBAY_ASSIGN_OR_RETURN(const Launch launch, LaunchOf(options));
  CommunicatorOptions communicator;
  communicator.timeout_s = options.timeout_s == 0 ? kDefaultTimeoutS : options.timeout_s;
  auto state = std::make_shared<RanksState>();
  FOREBAY_ASSIGN_OR_RETURN(state->communicator, ConnectRanks(launch, communicator));
  state->local_rank = launch.local_rank;
  return new forebay_ranks{{}, std::move(state)};
}

// body(communicator) as one call on ranks.
template <typename Body>
int32_t RunOnCommunicator(forebay_ranks* ranks, char** message, const Body& body) {
  return Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(ranks, "ranks"));
    const std::lock_guard lock(ranks->state->mutex);
    return body(*ranks->state->communicator);
  });
}

// The parts of ranks in a vector that begins at `data`, which may be missing where there is nothing
// in it.
absl::StatusOr<std::span<const int64_t>> PartsOf(const Communicator& communicator, const void* data,
                                                 const int64_t* offsets) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(offsets, "offsets"));
  const std::span<const int64_t> parts(offsets, static_cast<size_t>(communicator.size()) + 1);
  if (parts.front() != 0 || !std::ranges::is_sorted(parts)) {
    return UsageError("offsets of parts begin at 0, and none is less than the one before it");
  }
  if (parts.back() > 0) FOREBAY_RETURN_IF_ERROR(CheckPointer(data, "data"));
  return parts;
}

}  // namespace
}  // namespace forebay::capi

using forebay::capi::IsUsable;

extern "C" {

int32_t forebay_ranks_connect(const forebay_ranks_options* options, forebay_ranks** ranks,
                              char** message) {
  return forebay::capi::Run(message, [&]() -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(forebay::capi::CheckPointer(ranks, "ranks"));
    FOREBAY_ASSIGN_OR_RETURN(*ranks, forebay::capi::Connect(options));
    return absl::OkStatus();
  });
}

void forebay_ranks_destroy(forebay_ranks* ranks) {
  forebay::capi::Destroy(ranks);
}

int32_t forebay_ranks_rank(const forebay_ranks* ranks) {
  return IsUsable(ranks) ? ranks->state->communicator->rank() : -1;
}

int32_t forebay_ranks_size(const forebay_ranks* ranks) {
  return IsUsable(ranks) ? ranks->state->communicator->size() : -1;
}

int32_t forebay_ranks_local_rank(const forebay_ranks* ranks) {
  return IsUsable(ranks) ? ranks->state->local_rank : -1;
}

int32_t forebay_ranks_warning(forebay_ranks* ranks, char** text, char** message) {
  return forebay::capi::Run(message, [&] {
    FOREBAY_RETURN_IF_ERROR(forebay::capi::CheckPointer(ranks, "ranks"));
    return forebay::capi::Give(ranks->state->communicator->Warning(), text);
  });
}

void forebay_ranks_abort(forebay_ranks* ranks) {
  if (!IsUsable(ranks)) return;
  // Without the mutex, which a call that waits for another rank holds.
  ranks->state->communicator->Abort(forebay::InterruptedError("it was told to stop"));
}

int32_t forebay_ranks_barrier(forebay_ranks* ranks, char** message) {
  return forebay::capi::RunOnCommunicator(
      ranks, message, [](forebay::Communicator& communicator) { return communicator.Barrier(); });
}

int32_t forebay_ranks_sum(forebay_ranks* ranks, float* values, size_t num_values, char** message) {
  return forebay::capi::RunOnCommunicator(
      ranks, message, [&](forebay::Communicator& communicator) -> absl::Status {
        if (num_values == 0) return absl::OkStatus();
        FOREBAY_RETURN_IF_ERROR(forebay::capi::CheckPointer(values, "values"));
        return communicator.AllReduce({values, num_values});
      });
}

int32_t forebay_ranks_sum_parts(forebay_ranks* ranks, float* values, const int64_t* offsets,
                                char** message) {
  return forebay::capi::RunOnCommunicator(
      ranks, message, [&](forebay::Communicator& communicator) -> absl::Status {
        FOREBAY_ASSIGN_OR_RETURN(const std::span<const int64_t> parts,
                                 forebay::capi::PartsOf(communicator, values, offsets));
        return communicator.ReduceScatter({values, static_cast<size_t>(parts.back())}, parts);
      });
}

int32_t forebay_ranks_gather_parts(forebay_ranks* ranks, void* data, const int64_t* offsets,
                                   char** message) {
  return forebay::capi::RunOnCommunicator(
      ranks, message, [&](forebay::Communicator& communicator) -> absl::Status {
        FOREBAY_ASSIGN_OR_RETURN(const std::span<const int64_t> parts,
                                 forebay::capi::PartsOf(communicator, data, offsets));
        return communicator.AllGather(
            {static_cast<std::byte*>(data), static_cast<size_t>(parts.back())}, parts);
      });
}

int32_t forebay_ranks_broadcast(forebay_ranks* ranks, void* data, size_t num_bytes, int32_t root,
                                char** message) {
  return forebay::capi::RunOnCommunicator(
      ranks, message, [&](forebay::Communicator& communicator) -> absl::Status {
        if (root < 0 || root >= communicator.size()) {
          return forebay::UsageError(
              fmt::format("root is {}, and there are {} ranks", root, communicator.size()));
        }
        if (num_bytes == 0) return absl::OkStatus();
        FOREBAY_RETURN_IF_ERROR(forebay::capi::CheckPointer(data, "data"));
        return communicator.Broadcast({static_cast<std::byte*>(data), num_bytes}, root);
      });
}

}  // extern "C"
