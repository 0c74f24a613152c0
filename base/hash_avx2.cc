// Compiled for AVX2 (CMakeLists.txt). It includes nothing but what has functions of its own alone:
// an inline function that others share could end up in the program as it was compiled here.
#include <cstddef>
#include <cstdint>

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace forebay {

uint64_t Xxh3_64WithAvx2(const void* data, size_t num_bytes, uint64_t seed);

uint64_t Xxh3_64WithAvx2(const void* data, size_t num_bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, num_bytes, seed);
}

}  // namespace forebay
