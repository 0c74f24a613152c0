// The rank of this process, as its launcher says by environment variables. Pure.
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
  kSockets,  // started by torchrun, deepspeed or srun
};

struct Launch {
  RankTransport transport = RankTransport::kNone;
  std::string launcher = "no launcher";  // "mpirun of Open MPI", ...: for messages
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this machine: which GPU is its own
  // kSockets alone: the machine of rank 0, and the first of the kNumRankPorts ports where it may
  // listen. The port that the launcher names is the launcher's own.
  std::string master_address;
  int first_port = 0;
  std::string job;  // tells this job's ranks from those of another on the same machines
  // Used by ConnectRanks with kSockets only: the secret that ranks prove to each other ("": none),
  // and the address to listen at instead of the launcher's ("": the launcher's).
  std::string secret;
  std::string listen_address;
};
inline constexpr int kNumRankPorts = 16;

// The value of an environment variable; nullopt: it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> ProcessEnvironment(const char* name);

// Knows mpirun of Open MPI and of MPICH, torchrun, deepspeed and whatever else sets RANK,
// WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and srun. Those variables go before mpirun's, and all
// before srun's, as the others are started inside of a job of Slurm's.
// UsageError that names the variables: one that is missing or no number, a rank that is not below
// the number of ranks, two launchers that contradict each other.
absl::StatusOr<Launch> DetectLaunch(const EnvironmentLookup& environment);

}  // namespace forebay
