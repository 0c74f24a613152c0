// Counter-based random numbers: the value depends on (key, stream, index) alone, never on how many
// were drawn before, by whom, or in what order. So chunking, threads and resumes cannot change it.
// Source: Philox4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace forebay {

class CounterRng {
 public:
  explicit CounterRng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  // Four independent 32-bit words for `index`.
  std::array<uint32_t, 4> Words(uint64_t index) const {
    std::array<uint32_t, 4> x = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
                                 static_cast<uint32_t>(stream_),
                                 static_cast<uint32_t>(stream_ >> 32)};
    uint32_t k0 = static_cast<uint32_t>(seed_);
    uint32_t k1 = static_cast<uint32_t>(seed_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t{0xD2511F53u} * x[0];
      const uint64_t b = uint64_t{0xCD9E8D57u} * x[2];
      x = {static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, static_cast<uint32_t>(b),
           static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1, static_cast<uint32_t>(a)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return x;
  }
  uint64_t Bits64(uint64_t index) const {
    const auto words = Words(index);
    return static_cast<uint64_t>(words[1]) << 32 | words[0];
  }
  // The words from index 0 on, 16 bytes of each.
  void Fill(std::span<std::byte> bytes) const {
    for (size_t at = 0; at < bytes.size(); at += 16) {
      const auto words = Words(at / 16);
      std::memcpy(bytes.data() + at, words.data(), std::min<size_t>(16, bytes.size() - at));
    }
  }
  // Uniform in [0, 1), 53 bits.
  double Uniform(uint64_t index) const {
    return static_cast<double>(Bits64(index) >> 11) * 0x1p-53;
  }
  // Standard normal (Box and Muller 1958).
  double Normal(uint64_t index) const {
    const auto words = Words(index);
    const double u1 = (static_cast<double>(words[0]) + 1.0) * 0x1p-32;  // (0, 1]
    const double u2 = static_cast<double>(words[1]) * 0x1p-32;
    return std::sqrt(-2.0 * std::log(u1)) * std::cos(6.283185307179586 * u2);
  }
  // Uniform in [0, bound), free of modulo bias for bounds below 2^32 (Lemire's multiply-shift on
  // 64 bits: the bias is under 2^-32).
  uint64_t Below(uint64_t index, uint64_t bound) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Bits64(index)) * bound) >> 64);
  }

 private:
  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace forebay
