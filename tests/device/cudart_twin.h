// The calls of the CUDA runtime that device/cuda_device.cc makes, on the host: two devices, which
// know on which of them each call was made. Linked in place of the runtime.
#pragma once

#include <set>
#include <string>
#include <utility>

namespace forebay {

inline constexpr int kNumTwinDevices = 2;

// One for the process.
struct CudartTwin {
  // Each with the device that was the caller's current one.
  std::set<std::pair<std::string, int>> calls;
  // Uses of an object of another device than the caller's current one. CUDA refuses them in some
  // calls; here all are counted.
  int num_misplaced = 0;
  bool is_busy = false;  // events are not reached
  bool refuses_to_select = false;
};
CudartTwin& TheCudartTwin();

}  // namespace forebay
