// Where leased values lie: contiguous ranges of one piece of memory, first fit, joined again when
// they are given back. Knows numbers alone, no memory.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace forebay {

// Thread-compatible. Allocates memory only while there are more holes than ever before.
class LeaseArena {
 public:
  // Ranges begin at multiples of it, and take whole multiples.
  static constexpr int64_t kAlignBytes = 64;
  static constexpr int64_t RangeBytes(int64_t bytes) {
    return (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  }

  explicit LeaseArena(int64_t size_bytes);

  int64_t size_bytes() const { return size_bytes_; }
  int64_t used_bytes() const { return used_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

  // The begin of a range of `bytes`, a multiple of kAlignBytes; nullopt: no hole is large enough.
  // Nothing is lost to fragmentation for ever: once all is given back, it is one hole again.
  std::optional<int64_t> Take(int64_t bytes);
  // Gives any part of a taken range back. Requires: multiples of kAlignBytes.
  void GiveBack(int64_t begin, int64_t bytes);

 private:
  struct Hole {
    int64_t begin = 0;
    int64_t end = 0;
  };
  const int64_t size_bytes_;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  std::vector<Hole> holes_;  // in order; no two touch
};

}  // namespace forebay
