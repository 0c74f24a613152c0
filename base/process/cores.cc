#include "forebay/base/process/cores.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "forebay/base/process/cgroups.h"

namespace forebay {

int NumUsableCores() {
  // The kernel refuses a set that is shorter than its own.
  constexpr size_t kMostSets = 64;  // of 1024 cores each
  for (size_t num_sets = 1; num_sets <= kMostSets; num_sets *= 2) {
    std::vector<cpu_set_t> cores(num_sets);
    const size_t bytes = num_sets * sizeof(cpu_set_t);
    if (::sched_getaffinity(0, bytes, cores.data()) == 0) {
      return std::max(1, CPU_COUNT_S(bytes, cores.data()));
    }
    if (errno != EINVAL) break;
  }
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

int ThreadsWithin(std::optional<double> quota, int num_cores) {
  if (!quota.has_value() || *quota >= num_cores) return num_cores;
  return std::max(1, static_cast<int>(*quota));
}

int DefaultThreads(const std::string& root) {
  return ThreadsWithin(CpuQuota(root), NumUsableCores());
}

}  // namespace forebay
