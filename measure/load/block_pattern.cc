#include "forebay/measure/load/block_pattern.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"

namespace forebay {
namespace {

constexpr uint64_t kMagic = 0x48434e4250415753;  // "SWAPBNCH"
constexpr size_t kPoolWords = (size_t{1} << 20) / sizeof(uint64_t);

struct BlockHeader {
  uint64_t magic;
  FileId file;
  uint64_t offset_bytes;
  uint64_t generation;
};
static_assert(sizeof(BlockHeader) == 40);

constexpr size_t kBlockBytes = static_cast<size_t>(kPatternBlockBytes);
constexpr size_t kHashedBytes = kBlockBytes - sizeof(uint64_t);
constexpr size_t kPayloadWords = (kHashedBytes - sizeof(BlockHeader)) / sizeof(uint64_t);

// Steele et al. 2014, "Fast splittable pseudorandom number generators".
uint64_t SplitMix(uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

BlockHeader HeaderOf(std::span<const std::byte> block) {
  BlockHeader header;
  std::memcpy(&header, block.data(), sizeof(header));
  return header;
}

std::string DescribeProblem(BlockVerdict verdict, std::span<const std::byte> block,
                            const PatternPlace& place) {
  const BlockHeader header = HeaderOf(block);
  std::string found;
  if (verdict == BlockVerdict::kStale) {
    found = fmt::format(": generation {} instead of {}", header.generation, place.generation);
  } else if (verdict == BlockVerdict::kMisdirected) {
    found = fmt::format(": it was written for offset {}", header.offset_bytes);
  } else if (verdict == BlockVerdict::kForeign) {
    found = ": it was written for another file";
  }
  return fmt::format("the block at offset {} is {}{}", place.offset_bytes, NameOf(verdict), found);
}

int64_t& CounterOf(PatternTally& tally, BlockVerdict verdict) {
  switch (verdict) {
    case BlockVerdict::kStale:
      return tally.num_stale;
    case BlockVerdict::kMisdirected:
      return tally.num_misdirected;
    case BlockVerdict::kForeign:
      return tally.num_foreign;
    default:
      return tally.num_damaged;
  }
}

}  // namespace

absl::Status MakeFileId(FileId& id) {
  if (::getrandom(id.data(), id.size(), 0) == static_cast<ssize_t>(id.size())) {
    return absl::OkStatus();
  }
  return StorageError("the system gave no random bytes (getrandom)", errno);
}

std::string_view NameOf(BlockVerdict verdict) {
  switch (verdict) {
    case BlockVerdict::kGood:
      return "good";
    case BlockVerdict::kStale:
      return "stale";
    case BlockVerdict::kMisdirected:
      return "misdirected";
    case BlockVerdict::kForeign:
      return "foreign";
    case BlockVerdict::kDamaged:
      return "damaged";
  }
  return "unknown";
}

void PatternTally::Add(const PatternTally& other) {
  num_blocks += other.num_blocks;
  num_stale += other.num_stale;
  num_misdirected += other.num_misdirected;
  num_foreign += other.num_foreign;
  num_damaged += other.num_damaged;
  num_torn += other.num_torn;
  if (first_problem.empty()) first_problem = other.first_problem;
}

BlockPattern::BlockPattern(uint64_t seed, int compressible_percent)
    : seed_(seed),
      num_random_words_(kPayloadWords * static_cast<size_t>(100 - compressible_percent) / 100),
      pool_(kPoolWords + kPayloadWords) {
  FOREBAY_CHECK(compressible_percent >= 0 && compressible_percent <= 90);
  const CounterRng rng(seed);
  for (size_t i = 0; i < pool_.size(); ++i) pool_[i] = rng.Bits64(i);
}

void BlockPattern::FillBlock(std::span<std::byte> block, const PatternPlace& place) const {
  const BlockHeader header = {kMagic, place.file, static_cast<uint64_t>(place.offset_bytes),
                              place.generation};
  std::memcpy(block.data(), &header, sizeof(header));
  // Another part of the pool under another mask, so that no two blocks look alike to a drive.
  const uint64_t mask =
      SplitMix(seed_ ^ SplitMix(header.offset_bytes + SplitMix(place.generation)));
  const uint64_t* const words = &pool_[mask % kPoolWords];
  std::array<uint64_t, kPayloadWords> payload;
  for (size_t i = 0; i < num_random_words_; ++i) payload[i] = words[i] ^ mask;
  std::fill(payload.begin() + static_cast<std::ptrdiff_t>(num_random_words_), payload.end(), 0);
  std::memcpy(block.data() + sizeof(header), payload.data(), sizeof(payload));
  const uint64_t hash = Xxh3_64(block.first(kHashedBytes));
  std::memcpy(block.data() + kHashedBytes, &hash, sizeof(hash));
}

void BlockPattern::Fill(std::span<std::byte> buffer, const PatternPlace& place) const {
  FOREBAY_CHECK(buffer.size() % kBlockBytes == 0);
  PatternPlace at = place;
  for (size_t begin = 0; begin < buffer.size(); begin += kBlockBytes) {
    FillBlock(buffer.subspan(begin, kBlockBytes), at);
    at.offset_bytes += kPatternBlockBytes;
  }
}

BlockVerdict CheckPatternBlock(std::span<const std::byte> block, const PatternPlace& place) {
  const BlockHeader header = HeaderOf(block);
  uint64_t hash = 0;
  std::memcpy(&hash, block.data() + kHashedBytes, sizeof(hash));
  if (header.magic != kMagic || hash != Xxh3_64(block.first(kHashedBytes))) {
    return BlockVerdict::kDamaged;
  }
  if (header.file != place.file) return BlockVerdict::kForeign;
  if (header.offset_bytes != static_cast<uint64_t>(place.offset_bytes)) {
    return BlockVerdict::kMisdirected;
  }
  return header.generation == place.generation ? BlockVerdict::kGood : BlockVerdict::kStale;
}

void CheckPattern(std::span<const std::byte> buffer, const PatternPlace& place,
                  PatternTally& tally) {
  FOREBAY_CHECK(buffer.size() % kBlockBytes == 0);
  PatternPlace at = place;
  size_t num_good = 0;
  for (size_t begin = 0; begin < buffer.size(); begin += kBlockBytes) {
    const std::span<const std::byte> block = buffer.subspan(begin, kBlockBytes);
    const BlockVerdict verdict = CheckPatternBlock(block, at);
    if (verdict == BlockVerdict::kGood) {
      ++num_good;
    } else {
      ++CounterOf(tally, verdict);
      if (tally.first_problem.empty()) tally.first_problem = DescribeProblem(verdict, block, at);
    }
    at.offset_bytes += kPatternBlockBytes;
  }
  const size_t num_blocks = buffer.size() / kBlockBytes;
  tally.num_blocks += static_cast<int64_t>(num_blocks);
  tally.num_torn += num_good > 0 && num_good < num_blocks ? 1 : 0;
}

}  // namespace forebay
