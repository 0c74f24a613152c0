// XXH3, inlined: 3x faster in cache than the shared library's call (measured in
// docs/performance.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#ifndef XXH_INLINE_ALL
#define XXH_INLINE_ALL
#endif
#include "xxhash.h"

namespace forebay {

// The same bits as XXH3_64bits_withSeed, from AVX2 where the CPU has it: for inputs that are long
// enough to be worth the call.
uint64_t LongXxh3_64(std::span<const std::byte> data, uint64_t seed);

inline uint64_t Xxh3_64(std::span<const std::byte> data, uint64_t seed = 0) {
  constexpr size_t kLongBytes = 4096;
  if (data.size() >= kLongBytes) return LongXxh3_64(data, seed);
  return XXH3_64bits_withSeed(data.data(), data.size(), seed);
}

// A running XXH3-128. Movable, thread-compatible.
class Xxh3_128 {
 public:
  Xxh3_128() { XXH3_128bits_reset(&state_); }
  void Update(std::span<const std::byte> data) {
    XXH3_128bits_update(&state_, data.data(), data.size());
  }
  void Update(std::string_view text) { XXH3_128bits_update(&state_, text.data(), text.size()); }
  void UpdateInt(int64_t value) { XXH3_128bits_update(&state_, &value, sizeof(value)); }
  // In canonical (big-endian) order.
  std::array<uint8_t, 16> Digest() const {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state_));
    std::array<uint8_t, 16> digest;
    std::memcpy(digest.data(), canonical.digest, digest.size());
    return digest;
  }
  // 32 lower-case hexadecimal digits, canonical (big-endian) order as `xxh128sum` prints.
  std::string Hex() const {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string hex;
    for (const uint8_t byte : Digest()) {
      hex.push_back(kDigits[byte >> 4]);
      hex.push_back(kDigits[byte & 15]);
    }
    return hex;
  }

 private:
  XXH3_state_t state_;
};

// The Hex() of a whole text.
inline std::string Xxh3_128Hex(std::string_view text) {
  Xxh3_128 hash;
  hash.Update(text);
  return hash.Hex();
}

}  // namespace forebay
