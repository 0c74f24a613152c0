// wrong_programs NAME: runs the program that has this one thing wrong ("nothing": none), and exits
// with 1 where its results show it. What else is noticed ends it before.
#include "forebay/tests/device/emulation/wrong_programs.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace forebay {
namespace {

void Ok(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "a call failed: %s\n", cudaGetErrorString(error));
  std::exit(77);
}

template <typename T>
T* AllocateOnDevice(size_t num_elems) {
  void* address = nullptr;
  Ok(cudaMalloc(&address, num_elems * sizeof(T)));
  return static_cast<T*>(address);
}

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  Ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

cudaEvent_t NewEvent() {
  cudaEvent_t event = nullptr;
  Ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

std::vector<float> Numbers(size_t num_elems) {
  std::vector<float> numbers(num_elems);
  for (size_t i = 0; i < num_elems; ++i) numbers[i] = static_cast<float>(i * 37 % 101) - 50;
  return numbers;
}

template <typename T>
void ToDevice(T* to, const std::vector<T>& from, cudaStream_t stream) {
  Ok(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream));
}

template <typename T>
std::vector<T> FromDevice(const T* from, size_t num_elems, cudaStream_t stream) {
  std::vector<T> values(num_elems);
  Ok(cudaMemcpyAsync(values.data(), from, num_elems * sizeof(T), cudaMemcpyDeviceToHost, stream));
  Ok(cudaStreamSynchronize(stream));
  return values;
}

// ---- Kernels: each program returns whether its results are right -------------------------------

bool SumsBlocks(Wrong wrong) {
  constexpr int kBlocks = 3;
  constexpr int kElems = 150;
  const cudaStream_t stream = NewStream();
  const std::vector<float> values = Numbers(kBlocks * kElems);
  auto* const on_device = AllocateOnDevice<float>(values.size());
  auto* const sums = AllocateOnDevice<float>(kBlocks);
  auto* const count = AllocateOnDevice<unsigned>(1);
  ToDevice(on_device, values, stream);
  Ok(cudaMemsetAsync(sums, 0, kBlocks * sizeof(float), stream));
  Ok(cudaMemsetAsync(count, 0, sizeof(unsigned), stream));
  Ok(wrong_kernels::SumBlocks(wrong, sums, count, on_device, kElems, kBlocks, stream));
  const std::vector<float> found = FromDevice(sums, kBlocks, stream);
  bool is_right = FromDevice(count, 1, stream)[0] == kBlocks;
  for (int block = 0; block < kBlocks; ++block) {
    float sum = 0;
    for (int i = 0; i < kElems; ++i) sum += values[static_cast<size_t>(block * kElems + i)];
    is_right = is_right && found[static_cast<size_t>(block)] == sum;
  }
  for (void* const memory :
       {static_cast<void*>(on_device), static_cast<void*>(sums), static_cast<void*>(count)}) {
    Ok(cudaFree(memory));
  }
  Ok(cudaStreamDestroy(stream));
  return is_right;
}

bool SwapsNeighbours(Wrong wrong) {
  const cudaStream_t stream = NewStream();
  const std::vector<float> values = Numbers(wrong_kernels::kThreads);
  auto* const from = AllocateOnDevice<float>(values.size());
  auto* const to = AllocateOnDevice<float>(values.size());
  ToDevice(from, values, stream);
  Ok(wrong_kernels::SwapNeighbours(wrong, to, from, stream));
  const std::vector<float> found = FromDevice(to, values.size(), stream);
  bool is_right = true;
  for (size_t i = 0; i < values.size(); ++i) is_right = is_right && found[i] == values[i ^ 1];
  Ok(cudaFree(from));
  Ok(cudaFree(to));
  Ok(cudaStreamDestroy(stream));
  return is_right;
}

bool SumsTiles(Wrong wrong) {
  constexpr int kTiles = 5;
  constexpr size_t kElems = wrong_kernels::kTileElems;
  const cudaStream_t stream = NewStream();
  const std::vector<float> values = Numbers(kTiles * kElems);
  auto* const tiles = AllocateOnDevice<float>(values.size());
  auto* const to = AllocateOnDevice<float>(kElems);
  ToDevice(tiles, values, stream);
  Ok(wrong_kernels::SumTiles(wrong, to, tiles, kTiles, stream));
  const std::vector<float> found = FromDevice(to, kElems, stream);
  bool is_right = true;
  for (size_t i = 0; i < kElems; ++i) {
    float sum = 0;
    for (size_t tile = 0; tile < kTiles; ++tile) sum += values[tile * kElems + kElems - 1 - i];
    is_right = is_right && found[i] == sum;
  }
  Ok(cudaFree(tiles));
  Ok(cudaFree(to));
  Ok(cudaStreamDestroy(stream));
  return is_right;
}

// ---- Streams -----------------------------------------------------------------------------------

// Layers from a "disk" through two slots in host memory and two on the device.
bool StreamsLayers(Wrong wrong) {
  constexpr int kElems = 200;
  constexpr int kLayers = 9;
  constexpr size_t kBytes = kElems * sizeof(float);
  const cudaStream_t copies = NewStream();
  const cudaStream_t kernels = NewStream();
  std::vector<float> host[2] = {std::vector<float>(kElems), std::vector<float>(kElems)};
  float* slots[2];
  cudaEvent_t copied[2];
  cudaEvent_t used[2];
  for (int slot = 0; slot < 2; ++slot) {
    Ok(cudaHostRegister(host[slot].data(), kBytes, cudaHostRegisterPortable));
    slots[slot] = AllocateOnDevice<float>(kElems);
    copied[slot] = NewEvent();
    used[slot] = NewEvent();
  }
  auto* const sum = AllocateOnDevice<float>(kElems);
  Ok(cudaMemsetAsync(sum, 0, kBytes, kernels));
  for (int layer = 0; layer < kLayers; ++layer) {
    const int slot = layer % 2;
    if (wrong != Wrong::kHostSlotUsedAgain) Ok(cudaEventSynchronize(copied[slot]));
    for (int i = 0; i < kElems; ++i) {
      host[slot][static_cast<size_t>(i)] = static_cast<float>(layer * kElems + i);
    }
    if (wrong != Wrong::kNoEventBeforeCopy) Ok(cudaStreamWaitEvent(copies, used[slot], 0));
    if (wrong == Wrong::kEventRecordedTooEarly) Ok(cudaEventRecord(copied[slot], copies));
    Ok(cudaMemcpyAsync(slots[slot], host[slot].data(), kBytes, cudaMemcpyHostToDevice, copies));
    if (wrong != Wrong::kEventRecordedTooEarly) Ok(cudaEventRecord(copied[slot], copies));
    if (wrong != Wrong::kNoEventBeforeKernel) Ok(cudaStreamWaitEvent(kernels, copied[slot], 0));
    Ok(wrong_kernels::AddScaled(sum, slots[slot], kElems, 0.5f, kernels));
    Ok(cudaEventRecord(used[slot], kernels));
  }
  if (wrong == Wrong::kFreedTooEarly) Ok(cudaFree(slots[0]));
  if (wrong == Wrong::kHostReadsDevice) std::printf("%f\n", static_cast<double>(sum[0]));
  std::vector<float> found(kElems);
  const void* const from = wrong == Wrong::kCopyFromTheWrongSide ? host[0].data() : sum;
  const size_t num_bytes = kBytes + (wrong == Wrong::kCopyPastTheAllocation ? 4 : 0);
  Ok(cudaMemcpyAsync(found.data(), from, num_bytes, cudaMemcpyDeviceToHost, kernels));
  if (wrong != Wrong::kResultReadTooEarly) Ok(cudaStreamSynchronize(kernels));
  bool is_right = true;
  for (int i = 0; i < kElems; ++i) {
    float expected = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      expected += 0.5f * static_cast<float>(layer * kElems + i);
    }
    is_right = is_right && found[static_cast<size_t>(i)] == expected;
  }
  Ok(cudaStreamDestroy(copies));
  Ok(cudaStreamDestroy(kernels));
  Ok(cudaFree(sum));
  for (int slot = 0; slot < 2; ++slot) {
    Ok(cudaEventDestroy(copied[slot]));
    Ok(cudaEventDestroy(used[slot]));
    Ok(cudaHostUnregister(host[slot].data()));
    Ok(wrong == Wrong::kFreedTooEarly && slot == 0 ? cudaSuccess : cudaFree(slots[slot]));
  }
  if (wrong == Wrong::kFreedTwice) Ok(cudaFree(sum));
  return is_right;
}

bool IsRight(Wrong wrong) {
  if (wrong == Wrong::kNothing) {
    return SumsBlocks(wrong) && SwapsNeighbours(wrong) && SumsTiles(wrong) && StreamsLayers(wrong);
  }
  if (wrong >= Wrong::kNoEventBeforeKernel) return StreamsLayers(wrong);
  if (wrong == Wrong::kNoSyncWarp) return SwapsNeighbours(wrong);
  if ((wrong >= Wrong::kCopyNotAwaited && wrong <= Wrong::kNoBarrierBeforeNextCopy) ||
      wrong == Wrong::kNoDynamicShared) {
    return SumsTiles(wrong);
  }
  return SumsBlocks(wrong);
}

}  // namespace

}  // namespace forebay

int main(int argc, char** argv) {
  using forebay::Wrong;
  for (int i = 0; argc == 2 && i < static_cast<int>(Wrong::kNumWrong); ++i) {
    const auto wrong = static_cast<Wrong>(i);
    if (forebay::NameOf(wrong) != argv[1]) continue;
    if (forebay::IsRight(wrong)) return 0;
    std::fprintf(stderr, "the results are wrong\n");
    return 1;
  }
  std::fprintf(stderr, "name one thing that is wrong, or 'nothing'\n");
  return 2;
}
