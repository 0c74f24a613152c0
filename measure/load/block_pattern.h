// What the benchmark writes: 4 KiB blocks of incompressible bytes, each of which says which file,
// place and generation it was written for, under a checksum. So a read-back tells good blocks from
// stale, misdirected and damaged ones, and drives cannot make it faster by compressing.
//
//   bytes 0: magic, 8: file (16), 24: offset, 32: generation, 40: random, 4088: XXH3-64 of the rest
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace forebay {

inline constexpr int64_t kPatternBlockBytes = 4096;

// 16 random bytes that no other file has.
using FileId = std::array<std::byte, 16>;
// StorageError when the system has no random bytes.
absl::Status MakeFileId(FileId& id);

// What a range of a file should hold.
struct PatternPlace {
  FileId file = {};
  int64_t offset_bytes = 0;
  uint64_t generation = 0;
};

enum class BlockVerdict : uint8_t {
  kGood,
  kStale,        // whole, but of another generation than was written last
  kMisdirected,  // whole, but of another place of the file
  kForeign,      // whole, but of another file
  kDamaged,      // torn within the block, bits flipped, or never written
};
// "stale".
std::string_view NameOf(BlockVerdict verdict);

struct PatternTally {
  int64_t num_blocks = 0;
  int64_t num_stale = 0;
  int64_t num_misdirected = 0;
  int64_t num_foreign = 0;
  int64_t num_damaged = 0;
  int64_t num_torn = 0;       // ranges, each written at once, that are partly good and partly not
  std::string first_problem;  // verdict, offset and what was found; "" when all is good

  int64_t num_bad() const { return num_stale + num_misdirected + num_foreign + num_damaged; }
  void Add(const PatternTally& other);
};

// Immutable after construction, so thread-safe.
class BlockPattern {
 public:
  // `compressible_percent` of every block are zeros, 0 to 90. Holds 1 MiB.
  BlockPattern(uint64_t seed, int compressible_percent);

  // Writes all of `buffer`. Requires: whole blocks.
  void Fill(std::span<std::byte> buffer, const PatternPlace& place) const;

 private:
  void FillBlock(std::span<std::byte> block, const PatternPlace& place) const;

  const uint64_t seed_;
  const size_t num_random_words_;
  std::vector<uint64_t> pool_;
};

// Looks at one block, which needs no pattern: a block proves itself.
BlockVerdict CheckPatternBlock(std::span<const std::byte> block, const PatternPlace& place);
// At a range that was written by one operation. Requires: whole blocks.
void CheckPattern(std::span<const std::byte> buffer, const PatternPlace& place,
                  PatternTally& tally);

}  // namespace forebay
