#include "forebay/collective/launch.h"

#include <charconv>
#include <cstdlib>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// How a launcher says it; the first of `local_rank` that is set.
struct LauncherVariables {
  const char* launcher;
  RankTransport transport;
  const char* rank;
  const char* size;
  std::vector<const char*> local_rank;
};

const std::vector<LauncherVariables>& Launchers() {
  static const auto* const launchers = new std::vector<LauncherVariables>{
      {"torchrun or deepspeed", RankTransport::kSockets, "RANK", "WORLD_SIZE", {"LOCAL_RANK"}},
      {"mpirun of Open MPI",
       RankTransport::kOpenMpi,
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       {"OMPI_COMM_WORLD_LOCAL_RANK"}},
      {"mpirun of MPICH",
       RankTransport::kMpich,
       "PMI_RANK",
       "PMI_SIZE",
       {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"}},
  };
  return *launchers;
}

// The batch script of a job has SLURM_PROCID as well, but is one process; only srun has the others.
const LauncherVariables& SlurmVariables() {
  static const auto* const slurm = new LauncherVariables{
      "srun", RankTransport::kSockets, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", {"SLURM_LOCALID"}};
  return *slurm;
}

absl::StatusOr<int> NumberIn(const EnvironmentLookup& environment, const char* name) {
  const std::optional<std::string> text = environment(name);
  if (!text.has_value()) return UsageError(fmt::format("{} is not set", name));
  int number = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
  if (error != std::errc() || end != text->data() + text->size() || number < 0) {
    return UsageError(fmt::format("{} is '{}', which is no number from 0 on", name, *text));
  }
  return number;
}

absl::StatusOr<Launch> ReadLaunch(const EnvironmentLookup& environment,
                                  const LauncherVariables& variables) {
  Launch launch = {.transport = variables.transport, .launcher = variables.launcher};
  FOREBAY_ASSIGN_OR_RETURN(launch.rank, NumberIn(environment, variables.rank));
  FOREBAY_ASSIGN_OR_RETURN(launch.size, NumberIn(environment, variables.size));
  if (launch.rank >= launch.size) {
    return UsageError(fmt::format("{} is {}, but {} is {}: ranks are numbered from 0",
                                  variables.rank, launch.rank, variables.size, launch.size));
  }
  for (const char* const name : variables.local_rank) {
    if (!environment(name).has_value()) continue;
    FOREBAY_ASSIGN_OR_RETURN(launch.local_rank, NumberIn(environment, name));
    break;
  }
  return launch;
}

// Behind the launcher's own port, which torchrun occupies, and far enough from it that the port of
// another launcher beside it is not among them.
int FirstPort(int launchers_port) {
  constexpr int kDistance = 1000;
  const int port = launchers_port + kDistance;
  return port + kNumRankPorts <= 65536 ? port : launchers_port - kDistance;
}

absl::Status FindMaster(const EnvironmentLookup& environment, Launch& launch) {
  const std::optional<std::string> address = environment("MASTER_ADDR");
  if (!address.has_value() || address->empty()) {
    return UsageError("RANK and WORLD_SIZE are set, but MASTER_ADDR is not");
  }
  FOREBAY_ASSIGN_OR_RETURN(const int port, NumberIn(environment, "MASTER_PORT"));
  if (port < 1 || port > 65535) {
    return UsageError(fmt::format("MASTER_PORT is {}, which is no port", port));
  }
  launch.master_address = *address;
  launch.first_port = FirstPort(port);
  launch.job = fmt::format("{}/{}", port, environment("TORCHELASTIC_RUN_ID").value_or(""));
  return absl::OkStatus();
}

// "gpu" of "gpu", "gpu07" of "gpu[07-09,12]" and of "gpu07,cpu1".
std::string FirstNode(const std::string& nodes) {
  const size_t end = nodes.find_first_of(",[");
  std::string first = nodes.substr(0, end);
  if (end == std::string::npos || nodes[end] == ',') return first;
  first += nodes.substr(end + 1, nodes.find_first_of(",-]", end) - end - 1);
  const size_t close = nodes.find(']', end);
  if (close != std::string::npos) {
    first += nodes.substr(close + 1, nodes.find(',', close) - close - 1);
  }
  return first;
}

absl::Status FindSlurmMaster(const EnvironmentLookup& environment, Launch& launch) {
  const std::optional<std::string> nodes = environment("SLURM_STEP_NODELIST");
  const std::optional<std::string> address = environment("MASTER_ADDR");
  if (!address.has_value() && !nodes.has_value()) {
    return UsageError(
        "srun started this process, but SLURM_STEP_NODELIST is not set; set MASTER_ADDR "
        "to the machine of rank 0");
  }
  FOREBAY_ASSIGN_OR_RETURN(const int job, NumberIn(environment, "SLURM_JOB_ID"));
  launch.master_address = address.has_value() ? *address : FirstNode(*nodes);
  // Two jobs on one machine have other ports, two steps of one job have to look for a free one.
  constexpr int kFirst = 20000;
  constexpr int kNumJobs = 500;
  launch.first_port = kFirst + job % kNumJobs * kNumRankPorts;
  launch.job = fmt::format("slurm {}.{}", job, environment("SLURM_STEP_ID").value_or("0"));
  return absl::OkStatus();
}

absl::Status CheckThatTheyAgree(const LauncherVariables& a, const Launch& launch_a,
                                const LauncherVariables& b, const Launch& launch_b) {
  if (launch_a.rank == launch_b.rank && launch_a.size == launch_b.size) return absl::OkStatus();
  return UsageError(
      fmt::format("two launchers contradict each other: {} is {} and {} is {} ({}), but {} is {} "
                  "and {} is {} ({}). "
                  "Unset those that are left over from elsewhere",
                  a.rank, launch_a.rank, a.size, launch_a.size, a.launcher, b.rank, launch_b.rank,
                  b.size, launch_b.size, b.launcher));
}

}  // namespace

std::optional<std::string> ProcessEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

absl::StatusOr<Launch> DetectLaunch(const EnvironmentLookup& environment) {
  std::optional<Launch> found;
  const LauncherVariables* found_by = nullptr;
  for (const LauncherVariables& variables : Launchers()) {
    if (!environment(variables.rank).has_value() && !environment(variables.size).has_value()) {
      continue;
    }
    FOREBAY_ASSIGN_OR_RETURN(Launch launch, ReadLaunch(environment, variables));
    if (found.has_value()) {
      FOREBAY_RETURN_IF_ERROR(CheckThatTheyAgree(*found_by, *found, variables, launch));
      continue;
    }
    found = launch;
    found_by = &variables;
  }
  if (environment(SlurmVariables().size).has_value()) {
    FOREBAY_ASSIGN_OR_RETURN(const Launch slurm, ReadLaunch(environment, SlurmVariables()));
    // Where Slurm serves MPICH too, srun sets its variables for every program.
    const bool is_by_srun =
        !found.has_value() || (found->transport == RankTransport::kMpich &&
                               found->rank == slurm.rank && found->size == slurm.size);
    if (is_by_srun) {
      found = slurm;
      found_by = &SlurmVariables();
    }
  }
  if (!found.has_value()) return Launch();
  if (found->size == 1) {
    found->transport = RankTransport::kNone;
  } else if (found->transport == RankTransport::kSockets) {
    FOREBAY_RETURN_IF_ERROR(found_by == &SlurmVariables() ? FindSlurmMaster(environment, *found)
                                                          : FindMaster(environment, *found));
  }
  return *found;
}

}  // namespace forebay
