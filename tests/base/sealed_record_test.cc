#include "forebay/base/sealed_record.h"

#include "gtest/gtest.h"

namespace forebay {
namespace {

struct SampleRecord {
  static constexpr RecordKind kKind = {{'S', 'A', 'M', 'P', 'L', 'E', 'R', 'C'}, 3};
  RecordKind kind;
  uint32_t value;
  uint64_t hash;
};
using SampleBytes = std::array<std::byte, sizeof(SampleRecord)>;

SampleBytes SealedSample() {
  SampleRecord record = {.kind = {}, .value = 7, .hash = 0};
  SampleBytes bytes;
  SealRecord(record, bytes);
  return bytes;
}

RecordFault FaultIn(const SampleBytes& bytes) {
  SampleRecord record;
  return OpenRecord(bytes, record);
}

TEST(SealedRecord, BeginsWithItsKindAndEndsWithTheHashOfAllBefore) {
  const SampleBytes bytes = SealedSample();
  EXPECT_EQ(std::memcmp(bytes.data(), "SAMPLERC\3\0\0\0\7\0\0\0", 16), 0);
  const uint64_t hash = Xxh3_64(std::span(bytes).first(16));
  EXPECT_EQ(std::memcmp(bytes.data() + 16, &hash, sizeof(hash)), 0);
  SampleRecord record;
  EXPECT_EQ(OpenRecord(bytes, record), RecordFault::kNone);
  EXPECT_EQ(record.value, 7u);
}

TEST(SealedRecord, EveryFlippedByteIsAFault) {
  for (size_t i = 0; i < sizeof(SampleRecord); ++i) {
    SampleBytes bytes = SealedSample();
    bytes[i] ^= std::byte{1};
    EXPECT_EQ(FaultIn(bytes), i < 8 ? RecordFault::kOtherMagic : RecordFault::kDamaged) << i;
  }
}

TEST(SealedRecord, AnotherVersionIsToldOfAWholeRecordAlone) {
  SampleBytes bytes = SealedSample();
  bytes[8] = std::byte{4};
  EXPECT_EQ(FaultIn(bytes), RecordFault::kDamaged);
  const uint64_t hash = Xxh3_64(std::span(bytes).first(16));
  std::memcpy(bytes.data() + 16, &hash, sizeof(hash));
  EXPECT_EQ(FaultIn(bytes), RecordFault::kOtherVersion);
}

}  // namespace
}  // namespace forebay
