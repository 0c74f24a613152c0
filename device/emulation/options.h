// How the emulated GPU orders what CUDA leaves open, and how it ends a program that is wrong.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forebay::emulation {

enum class Order : uint8_t { kAscending, kDescending, kRandom };
enum class StreamPace : uint8_t {
  kEager,  // work is done in the call that enqueues it
  kLazy,   // when somebody waits for it
  kRandom  // in between
};

// Calls fail from one on, as on a GPU that fell off the bus, or whose memory lost bits.
enum class Loss : uint8_t { kUnavailable, kEcc };

// Read once from the environment: FOREBAY_EMULATION_ORDER=ascending|descending|random,
// _STREAMS=eager|lazy|random, _SEED, _GPU_BYTES, _NUM_GPUS, _GPU_NUMBER, _TSAN_THREADS,
// _LOST_AFTER, _LOST_BY=ecc|unavailable, _DRIVER=old|none, _CAPABILITY, _FASTEST_PRODUCT,
// _CUBLASLT, _NAN=gpu|host, _TRUNCATED_PRODUCTS=0|4|8|16.
struct Options {
  Order order = Order::kRandom;  // of blocks, and of a block's threads between its barriers
  StreamPace streams = StreamPace::kRandom;
  uint64_t seed = 1;
  size_t gpu_bytes = size_t{1} << 30;
  // So many GPUs, which have that memory together.
  int num_gpus = 1;
  // By their numbers, from the first on, processes know whether they see the same ones. 0: each
  // process has others.
  uint64_t gpu_number = 0;
  // As every GPU since sm_86 has it. sm_80 and sm_90 have more.
  size_t most_shared_bytes = size_t{99} << 10;
  // TSan knows 8,128 threads at most, and each costs it half a millisecond: so many of a grid, of
  // blocks at random, are threads to it. The others are the stream that runs them.
  size_t most_tsan_threads = 1024;
  // So many calls of a device that may fail succeed, and no more; of all, or of one.
  uint64_t lost_after = UINT64_MAX;
  int lost_gpu = -1;  // -1: all
  Loss lost_by = Loss::kUnavailable;
  int capability = 80;  // 75 is compute capability 7.5
  int other_gpu = -1;   // the one that is of another kind; -1: none
  // Of the algorithms that cuBLASLt has for each product, by number, the one that takes half the
  // time of the others; and the version of that library.
  int fastest_product = 0;
  size_t cublaslt_version = 130000;
  // Arithmetic gives a GPU's NaN, 0x7fffffff, in place of the host's.
  bool has_gpu_nans = false;
  // So many products at a time are added by tensor cores that cut off what does not fit in a
  // float, as hardware does. 0: sums are exact, and rounded once.
  int truncated_products = 0;
  enum class Driver : uint8_t { kGood, kOld, kNone } driver = Driver::kGood;
};
Options& TheOptions();

// The program is wrong as a CUDA program: says how, and aborts.
[[noreturn]] void Die(const char* format, ...) __attribute__((format(printf, 1, 2)));

class Random {  // splitmix64
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t bound) { return Next() % bound; }

 private:
  uint64_t state_;
};

}  // namespace forebay::emulation
