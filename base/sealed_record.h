// Structs that lie on disk as they lie in memory: they begin with what they are (`kind`) and end
// with an XXH3 of what they prove to be whole (`hash`). docs/formats.md has their fields.
#pragma once

#include <bit>
#include <type_traits>

#include "forebay/base/check.h"
#include "forebay/base/hash.h"

namespace forebay {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

struct RecordKind {
  std::array<char, 8> magic;
  uint32_t version;
};

// In the order of the checks: the version of a damaged record says nothing.
enum class RecordFault : uint8_t { kNone, kOtherMagic, kDamaged, kOtherVersion };

// `hash`: of the bytes that record.hash is to prove.
template <typename Record, typename Hash>
RecordFault FaultOf(const Record& record, const Hash& hash) {
  if (record.kind.magic != Record::kKind.magic) return RecordFault::kOtherMagic;
  if (record.hash != hash) return RecordFault::kDamaged;
  const bool is_known = record.kind.version == Record::kKind.version;
  return is_known ? RecordFault::kNone : RecordFault::kOtherVersion;
}

// For records whose hash is the XXH3-64 of all that is before it. Requires bytes.size() ==
// sizeof(Record).
template <typename Record>
uint64_t HashBefore(std::span<const std::byte> bytes) {
  static_assert(std::has_unique_object_representations_v<Record>, "a record has no holes");
  FOREBAY_CHECK(bytes.size() == sizeof(Record));
  return Xxh3_64(bytes.first(offsetof(Record, hash)));
}

// Completes `record` and copies it to `bytes`.
template <typename Record>
void SealRecord(Record& record, std::span<std::byte> bytes) {
  record.kind = Record::kKind;
  record.hash = HashBefore<Record>(std::as_bytes(std::span(&record, 1)));
  FOREBAY_CHECK(bytes.size() == sizeof(Record));
  std::memcpy(bytes.data(), &record, sizeof(Record));
}

// Copies `bytes` to `record` and says what is wrong with it.
template <typename Record>
RecordFault OpenRecord(std::span<const std::byte> bytes, Record& record) {
  const uint64_t hash = HashBefore<Record>(bytes);
  std::memcpy(&record, bytes.data(), sizeof(Record));
  return FaultOf(record, hash);
}

}  // namespace forebay
