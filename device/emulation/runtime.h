// The emulated GPU behind the CUDA runtime (cudart.cc): its memory, its streams, its counters.
//
// Work waits in its stream, and is done as late as the program allows, or at drawn times before.
// The host cannot touch device memory while no work runs. To TSan a stream is a thread of its own,
// which events and waits alone order: so a missing event, or a host buffer that is used again too
// early, is a race whatever the order was.
//
// It has a clock of its own: every operation takes what its kind takes (Seconds), and a stream goes
// on when its work before, what it waits for and the call that enqueued it are done. So the time of
// a program says what its waits let run side by side, the same each time, and nothing of a real
// GPU's.
//
// All calls are made while Locked exists.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "forebay/device/emulation/counters.h"
#include "forebay/device/emulation/fiber.h"
#include "forebay/device/emulation/options.h"

namespace forebay::emulation {

// For a call of the program. TSan does not see the lock: it would order the callers.
class Locked {
 public:
  Locked();
  ~Locked();
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};
// TSan's thread of the program that called.
void* Caller();

// ---- Memory ------------------------------------------------------------------------------------

class GpuMemory {
 public:
  GpuMemory();
  cudaError_t Allocate(void** address, size_t size);
  // Work that still names the memory dies of it.
  void Free(void* address);
  // Dies unless [address, address + size) lies in one allocation, or in none.
  void CheckIsDevice(const void* address, size_t size, const char* call) const;
  void CheckIsHost(const void* address, const char* call) const;
  bool Contains(const void* address) const;
  size_t free_bytes() const { return TheOptions().gpu_bytes - used_; }
  // Between them the memory can be touched. They nest.
  void Open();
  void Close();

 private:
  struct Allocation {
    size_t size = 0;
    size_t size_in_pages = 0;
  };
  size_t FirstFit(size_t size_in_pages) const;
  void CheckBehind(const char* begin, const Allocation& allocation) const;

  char* arena_ = nullptr;
  size_t top_ = 0;   // no allocation was ever above
  size_t used_ = 0;  // bytes
  int num_open_ = 0;
  std::map<char*, Allocation> allocations_;
};

// ---- Streams -----------------------------------------------------------------------------------

// A point in a stream's work. TSan knows its address.
struct Point {
  cudaStream_t stream = nullptr;
  int gpu = 0;         // the stream's, which may be gone
  uint64_t index = 0;  // of the operation that reaches it, from 1
  bool is_reached = false;
  double reached_at_s = 0;
  int num_queries = 0;  // that found it not reached
};

// Operations take so long by the emulated clock.
inline constexpr double kLaunchSeconds = 5e-6;
inline constexpr double kCopySeconds = 2e-6;  // and beside:
inline constexpr double kCopySecondsPerByte = 1 / 25e9;

struct StreamOperation {
  std::function<void()> run;  // empty for the two below
  std::shared_ptr<Point> waits_for;
  std::shared_ptr<Point> reaches;
  double seconds = 0;
  double enqueued_at_s = 0;
  std::unique_ptr<char> enqueued = {};  // for TSan: what the caller did before
};

class Streams {
 public:
  explicit Streams(GpuMemory& memory) : memory_(memory), random_(TheOptions().seed) {}
  cudaStream_t Create(int gpu);
  // Does its work first.
  void Destroy(cudaStream_t stream);
  void Enqueue(cudaStream_t stream, StreamOperation operation);
  std::shared_ptr<Point> Record(cudaStream_t stream);
  // Does the work up to `point` (nullptr: none), and has the caller come after it.
  void Await(const std::shared_ptr<Point>& point);
  // Does the work of all streams.
  void AwaitAll();
  // Some work may be done now.
  void MayRun();
  // No work that waits there is ever done.
  void Abandon(int gpu);

 private:
  void CheckStream(cudaStream_t stream) const;
  void RunUntil(cudaStream_t stream, uint64_t index);
  void RunOne(cudaStream_t stream);

  GpuMemory& memory_;
  // By GPU: the last point that the program has waited for there. Ranks that are threads have a GPU
  // each, and are not late for one another.
  std::map<int, double> program_s_;
  std::set<cudaStream_t> streams_;
  Random random_;
};

struct Gpu {
  GpuMemory memory;
  Streams streams{memory};
  std::map<const char*, size_t> pinned;  // bytes
  Counters counters;
};
Gpu& TheGpu();

}  // namespace forebay::emulation

struct CUstream_st {
  int gpu = 0;
  std::deque<forebay::emulation::StreamOperation> operations;
  uint64_t num_enqueued = 0;
  uint64_t num_done = 0;
  double clock_s = 0;  // when that was
  void* tsan = nullptr;
  std::unique_ptr<forebay::emulation::Fiber> stack = {};  // of its operations, where TSan watches
};
struct CUevent_st {
  std::shared_ptr<forebay::emulation::Point> point;  // the last that was recorded
  bool is_timed = false;
};
