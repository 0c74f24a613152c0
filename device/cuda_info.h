// The cards, driver and libraries of CUDA on this machine, for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace forebay {

struct GpuInfo {
  std::string name;  // "NVIDIA H200"
  int capability_major = 0;
  int capability_minor = 0;
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
  std::string why_no_memory;  // the error where its memory could not be asked for; else ""
};

// The major version of the oldest driver on Linux that serves a program of this CUDA (12080 is CUDA
// 12.8): NVIDIA's "CUDA Compatibility". Newer drivers serve it too.
constexpr int OldestDriverFor(int cuda_version) {
  return cuda_version >= 13000 ? 580 : 525;
}

struct CudaInfo {
  bool is_built_in = false;  // this forebay has CUDA code
  int runtime_version = 0;   // 13000 is CUDA 13.0; what forebay was built with
  int driver_version = 0;    // the newest CUDA that the driver serves; 0: there is no driver
  std::vector<GpuInfo> gpus;
  std::string why_no_gpu;     // what the runtime says where there is none; else ""
  std::string cublaslt_file;  // what was opened; ""
  std::string why_no_cublaslt;
};

// All but the cards. Opens the library of matrix products.
CudaInfo AskCudaLibraries();
// The cards too: makes a context on each, which takes a second and some hundred MB of its memory
// until the process ends.
CudaInfo AskCuda();

struct GpuOfProcess {
  int index = 0;     // of those that the process sees
  int num_gpus = 0;  // that it sees
  std::string id;    // the same in every process that sees this card, or this part of a card
};

// The GPU of a process that is number `local_rank` of those on this machine. It goes round those
// that the process sees, as a launcher may show each its own: whether two come to the same one is
// for whoever compares their ids. EnvironmentError: there is none.
absl::StatusOr<GpuOfProcess> PickGpu(int local_rank);

}  // namespace forebay
