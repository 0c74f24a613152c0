// Which rank this process is, as whoever started it says by environment variables. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace forebay {

enum class RankTransport : uint8_t {
  kNone,     // one rank
  kOpenMpi,  // started by Open MPI's mpirun
  kMpich,    // started by MPICH's, or by one of its family (Intel, Cray)
  kSockets,  // torchrun, deepspeed, srun
};

struct Launch {
  RankTransport transport = RankTransport::kNone;
  std::string launcher = "none";  // "mpirun of Open MPI", "torchrun", ...: for messages
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this machine: which GPU is its own
  int local_size = 1;  // 0: not known
  // Where rank 0 is found: transport kSockets alone.
  std::string master_address;
  int master_port = 0;
  std::string job;  // tells this job's ranks from those of another on the same machines
};

// The value of an environment variable; nullopt: it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> ProcessEnvironment(const char* name);

// UsageError that names the variables: one that is missing or no number, a rank that is not below
// the number of ranks, two launchers that contradict each other.
absl::StatusOr<Launch> DetectLaunch(const EnvironmentLookup& environment);

}  // namespace forebay
