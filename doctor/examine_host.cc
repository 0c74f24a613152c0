#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/format.h"
#include "forebay/base/process/cores.h"
#include "forebay/doctor/examine.h"
#include "forebay/memory/page_mapping.h"
#include "forebay/offload/machine_limits.h"

namespace forebay {
namespace {

// Kernels from here on have all that the engines use, without the faults of the first ones.
constexpr std::pair<int, int> kAdvisedKernel = {6, 1};
// The smallest models take half of this.
constexpr int64_t kLittleMemoryBytes = int64_t{1} << 30;

Check HostCheck(std::string id, Verdict verdict, std::string value, std::string fix = "") {
  return {"machine", "", std::move(id), verdict, std::move(value), std::move(fix)};
}

// {6, 18} of "6.18.44-generic"; {0, 0} of what is no version.
std::pair<int, int> VersionOf(const std::string& kernel) {
  std::pair<int, int> version = {0, 0};
  const char* const end = kernel.data() + kernel.size();
  const auto major = std::from_chars(kernel.data(), end, version.first);
  if (major.ptr != end && *major.ptr == '.') std::from_chars(major.ptr + 1, end, version.second);
  return version;
}

Check OfKernel(const HostInfo& host) {
  if (VersionOf(host.kernel) >= kAdvisedKernel) {
    return HostCheck("kernel", Verdict::kOk, host.kernel);
  }
  return HostCheck("kernel", Verdict::kWarn, host.kernel.empty() ? "not known" : host.kernel,
                   "Use Linux 6.1 or newer: older ones lack parts of io_uring");
}

Check OfIoUring(const std::string& why_not) {
  if (why_not.empty()) return HostCheck("io_uring", Verdict::kOk, "works");
  return HostCheck("io_uring", Verdict::kWarn, "cannot be used; libaio or threads do its work",
                   why_not);
}

Check OfMemlock(const MemoryFacts& memory) {
  if (memory.lockable.none) return HostCheck("memlock", Verdict::kOk, "no limit");
  if (!memory.lockable.kib.has_value()) {
    return HostCheck("memlock", Verdict::kWarn, "not known",
                     "Look at 'ulimit -l': buffers beyond it are not registered with io_uring");
  }
  const int64_t limit_bytes = *memory.lockable.kib * 1024;
  const std::string value = FormatBinaryBytes(limit_bytes);
  const auto wanted =
      static_cast<int64_t>(kAutoShare * static_cast<double>(memory.available_bytes));
  if (limit_bytes >= wanted) return HostCheck("memlock", Verdict::kOk, value);
  return HostCheck("memlock", Verdict::kWarn, value,
                   "Raise it with 'ulimit -l unlimited', LimitMEMLOCK=infinity or --ulimit "
                   "memlock=-1: buffers beyond it cost a little more CPU with every transfer");
}

Check OfMemory(const MachineFacts& facts) {
  const int64_t available_bytes = facts.memory.available_bytes;
  const auto taken = static_cast<int64_t>(kAutoShare * static_cast<double>(available_bytes));
  const std::string value =
      fmt::format("{} of {} can be had; --ram=auto takes {}", FormatBinaryBytes(available_bytes),
                  FormatBinaryBytes(facts.host.memory_bytes), FormatBinaryBytes(taken));
  if (available_bytes >= kLittleMemoryBytes) return HostCheck("memory", Verdict::kOk, value);
  return HostCheck("memory", Verdict::kWarn, value,
                   "End other programs, or take a machine with more memory");
}

Check OfCgroupMemory(const MemoryFacts& memory) {
  if (!memory.cgroup_room_bytes.has_value()) {
    return HostCheck("cgroup_memory", Verdict::kOk, "no limit");
  }
  const int64_t room_bytes = *memory.cgroup_room_bytes;
  const std::string value = fmt::format("{} are left of the limit", FormatBinaryBytes(room_bytes));
  if (room_bytes >= kLittleMemoryBytes) return HostCheck("cgroup_memory", Verdict::kOk, value);
  return HostCheck("cgroup_memory", Verdict::kWarn, value,
                   "Give the container or service more (docker run --memory, MemoryMax=)");
}

Check OfCpuQuota(const MachineFacts& facts) {
  const int num_cores = facts.host.num_cores;
  if (!facts.cpu.quota.has_value() || *facts.cpu.quota >= num_cores) {
    return HostCheck("cpu_quota", Verdict::kOk, fmt::format("none; {} cores", num_cores));
  }
  return HostCheck(
      "cpu_quota", Verdict::kWarn,
      fmt::format("the time of {:.2g} of {} cores, so --threads is {} where it is not "
                  "said",
                  *facts.cpu.quota, num_cores, ThreadsWithin(facts.cpu.quota, num_cores)),
      "Give the container or service more (docker run --cpus, CPUQuota=)");
}

Check OfHugePages(const MachineFacts& facts) {
  const std::string& enabled = facts.host.transparent_huge_pages;
  const std::string value =
      fmt::format("transparent: {}; reserved and free: {}", enabled.empty() ? "none" : enabled,
                  FormatBinaryBytes(facts.memory.reserved_huge_bytes));
  if (enabled == "always" || enabled == "madvise") {
    return HostCheck("huge_pages", Verdict::kOk, value);
  }
  const std::string brackets = enabled.empty() ? "" : fmt::format("[{}]", enabled);
  return HostCheck("huge_pages", Verdict::kWarn, value, TransparentHugeObstacle(brackets, false));
}

Check OfCpu(const MachineFacts& facts) {
  const CpuFacts& cpu = facts.cpu;
  std::vector<std::string> features;
  const auto add = [&features](bool has, const char* name) {
    if (has) features.emplace_back(name);
  };
  add(cpu.has_avx2, "AVX2");
  add(cpu.has_avx512, "AVX-512");
  add(cpu.has_avx512_bf16, "AVX-512 BF16");
  add(cpu.has_amx_bf16, "AMX");
  const std::string value = fmt::format(
      "{}: {}; matrix products by {}", facts.host.cpu.empty() ? "a CPU" : facts.host.cpu,
      features.empty() ? "none of AVX2, AVX-512 and AMX"
                       : fmt::format("{}", fmt::join(features, ", ")),
      cpu.matrix_products);
  if (cpu.multiplies_bf16) return HostCheck("cpu", Verdict::kOk, value);
  return HostCheck("cpu", Verdict::kWarn, value,
                   "Use --precision=fp32 where its memory is to be had: this CPU has no bf16 "
                   "products, so bf16 weights are widened first");
}

}  // namespace

std::vector<Check> ExamineHost(const MachineFacts& facts) {
  return {OfKernel(facts.host),         OfIoUring(facts.why_no_io_uring),
          OfMemlock(facts.memory),      OfMemory(facts),
          OfCgroupMemory(facts.memory), OfCpuQuota(facts),
          OfHugePages(facts),           OfCpu(facts)};
}

std::vector<Check> Examine(const MachineFacts& facts) {
  std::vector<Check> checks = ExamineHost(facts);
  for (const DiskFacts& disk : facts.disks) {
    const std::vector<Check> of_disk = ExamineDisk(disk);
    checks.insert(checks.end(), of_disk.begin(), of_disk.end());
  }
  const std::vector<Check> of_gpu = ExamineGpu(facts.gpu);
  checks.insert(checks.end(), of_gpu.begin(), of_gpu.end());
  return checks;
}

}  // namespace forebay
