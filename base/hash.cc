#include "forebay/base/hash.h"

namespace forebay {

#ifdef FOREBAY_HASH_AVX2
uint64_t Xxh3_64WithAvx2(const void* data, size_t num_bytes, uint64_t seed);  // hash_avx2.cc
#endif

uint64_t LongXxh3_64(std::span<const std::byte> data, uint64_t seed) {
#ifdef FOREBAY_HASH_AVX2
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) return Xxh3_64WithAvx2(data.data(), data.size(), seed);
#endif
  return XXH3_64bits_withSeed(data.data(), data.size(), seed);
}

}  // namespace forebay
