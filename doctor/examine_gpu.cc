#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/format.h"
#include "forebay/doctor/examine.h"

namespace forebay {
namespace {

// As cudaGetDeviceProperties has them, tens and ones.
constexpr int kLeastCapability = 75;
constexpr int kCapabilityWithBf16 = 80;

Check GpuCheck(std::string id, Verdict verdict, std::string value, std::string fix = "") {
  return {"gpu", "", std::move(id), verdict, std::move(value), std::move(fix)};
}

// "13.0" of 13000.
std::string CudaVersion(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

Check WithoutCudaCode(const GpuFacts& gpu) {
  if (!gpu.is_on_the_bus && gpu.driver.empty()) {
    return GpuCheck("driver", Verdict::kOk, "no NVIDIA card, and forebay is built without CUDA");
  }
  return GpuCheck("driver", Verdict::kWarn, "forebay is built without CUDA, so no GPU is used",
                  "Build it where nvcc is found (-DFOREBAY_CUDA=ON)");
}

Check OfDriver(const GpuFacts& gpu) {
  const CudaInfo& cuda = gpu.cuda;
  if (cuda.driver_version == 0) {
    if (!gpu.is_on_the_bus && gpu.driver.empty()) {
      return GpuCheck("driver", Verdict::kOk, "no NVIDIA card; the CPU computes");
    }
    return GpuCheck("driver", Verdict::kFail, "there is an NVIDIA card, and no driver for it",
                    fmt::format("Install NVIDIA's driver {} or newer, or give the container the "
                                "GPU (docker run --gpus all); to compute on the CPU nothing is "
                                "needed",
                                OldestDriverFor(cuda.runtime_version)));
  }
  const std::string value =
      fmt::format("{}{}CUDA {}; forebay was built with CUDA {}, for driver {} or newer", gpu.driver,
                  gpu.driver.empty() ? "" : ", ", CudaVersion(cuda.driver_version),
                  CudaVersion(cuda.runtime_version), OldestDriverFor(cuda.runtime_version));
  // Within a major version older drivers serve newer programs.
  if (cuda.driver_version / 1000 < cuda.runtime_version / 1000) {
    return GpuCheck(
        "driver", Verdict::kFail, value,
        fmt::format("Install driver {} or newer, or build forebay with the toolkit of "
                    "CUDA {}",
                    OldestDriverFor(cuda.runtime_version), CudaVersion(cuda.driver_version)));
  }
  if (!cuda.gpus.empty()) return GpuCheck("driver", Verdict::kOk, value);
  return GpuCheck("driver", Verdict::kWarn, value + "; no GPU: " + cuda.why_no_gpu,
                  "Look at 'nvidia-smi' and at CUDA_VISIBLE_DEVICES");
}

Check OfCard(const GpuInfo& card) {
  const int capability = 10 * card.capability_major + card.capability_minor;
  std::string value = fmt::format("{}, compute capability {}.{}", card.name, card.capability_major,
                                  card.capability_minor);
  if (!card.why_no_memory.empty()) {
    return GpuCheck("card", Verdict::kFail, value + ", does not answer", card.why_no_memory);
  }
  value += fmt::format(", {} of {} free", FormatBinaryBytes(card.free_bytes),
                       FormatBinaryBytes(card.total_bytes));
  if (capability < kLeastCapability) {
    return GpuCheck("card", Verdict::kWarn, value,
                    "Use --device=cpu: forebay has kernels from compute capability 7.5 on");
  }
  if (capability < kCapabilityWithBf16) {
    return GpuCheck("card", Verdict::kWarn, value,
                    "Use --precision=fp16: this card has no bf16 in hardware");
  }
  return GpuCheck("card", Verdict::kOk, value + ", bf16");
}

Check OfCublasLt(const CudaInfo& cuda) {
  if (!cuda.cublaslt_file.empty()) {
    return GpuCheck("cublaslt", Verdict::kOk, cuda.cublaslt_file);
  }
  if (cuda.gpus.empty()) {
    return GpuCheck("cublaslt", Verdict::kOk, "not found, and not needed without a GPU");
  }
  return GpuCheck("cublaslt", Verdict::kFail, "not found", cuda.why_no_cublaslt);
}

// Only between GPUs of one run, which go through RAM without it.
Check OfNccl(const GpuFacts& gpu) {
  if (!gpu.nccl_file.empty()) return GpuCheck("nccl", Verdict::kOk, gpu.nccl_file);
  if (gpu.cuda.gpus.size() < 2) {
    return GpuCheck("nccl", Verdict::kOk, "not found, and not needed without several GPUs");
  }
  return GpuCheck("nccl", Verdict::kWarn, "not found", gpu.why_no_nccl);
}

// "cuBLASLt FILE" or "no cuBLASLt".
std::string NameAndFile(std::string_view name, const std::string& file) {
  return file.empty() ? fmt::format("no {}", name) : fmt::format("{} {}", name, file);
}

}  // namespace

std::string DescribeLibraries(const GpuFacts& gpu) {
  const CudaInfo& cuda = gpu.cuda;
  if (!cuda.is_built_in) return "without CUDA";
  const std::string driver = cuda.driver_version > 0
                                 ? "a driver for CUDA " + CudaVersion(cuda.driver_version)
                                 : "no driver";
  return fmt::format("CUDA {}, {}, {}, {}", CudaVersion(cuda.runtime_version), driver,
                     NameAndFile("cuBLASLt", cuda.cublaslt_file),
                     NameAndFile("NCCL", gpu.nccl_file));
}

std::vector<Check> ExamineGpu(const GpuFacts& gpu) {
  if (!gpu.cuda.is_built_in) return {WithoutCudaCode(gpu)};
  std::vector<Check> checks = {OfDriver(gpu)};
  for (const GpuInfo& card : gpu.cuda.gpus) checks.push_back(OfCard(card));
  checks.push_back(OfCublasLt(gpu.cuda));
  checks.push_back(OfNccl(gpu));
  return checks;
}

}  // namespace forebay
