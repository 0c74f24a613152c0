#include "forebay/swap/records/intent_record.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "forebay/base/check.h"
#include "forebay/base/hash.h"

namespace forebay {
namespace {

static_assert(std::endian::native == std::endian::little, "the formats are little-endian");

constexpr char kIntentMagic[8] = {'F', 'B', 'I', 'N', 'T', 'E', 'N', 'T'};
constexpr uint32_t kIntentVersion = 1;

// The bytes on disk (docs/formats.md, "intent.fbs"); natural alignment leaves no holes.
struct DiskIntent {
  char magic[8];
  uint32_t version;
  uint32_t gradient_elem_bytes;
  uint8_t uuid[16];
  int64_t step;
  uint64_t commit_hash;
  uint8_t table_digest[16];
  uint32_t trainer_bytes;
  uint32_t zero;
  char trainer[kCommitTrainerBytesMax];
  uint8_t zeros[kIntentRecordBytes - kCommitTrainerBytesMax - 80];
  uint64_t hash;  // XXH3-64 of everything before it
};
static_assert(sizeof(DiskIntent) == kIntentRecordBytes && offsetof(DiskIntent, trainer) == 72);

uint64_t HashOfIntent(const DiskIntent& record) {
  return Xxh3_64(std::as_bytes(std::span(&record, 1)).first(offsetof(DiskIntent, hash)));
}

}  // namespace

void EncodeIntentRecord(const IntentRecord& record, std::span<std::byte> bytes) {
  FOREBAY_CHECK(static_cast<int64_t>(bytes.size()) == kIntentRecordBytes);
  FOREBAY_CHECK(static_cast<int64_t>(record.trainer.size()) <= kCommitTrainerBytesMax);
  DiskIntent disk = {};
  std::memcpy(disk.magic, kIntentMagic, sizeof(kIntentMagic));
  disk.version = kIntentVersion;
  disk.gradient_elem_bytes = static_cast<uint32_t>(record.gradient_elem_bytes);
  std::ranges::copy(record.uuid, disk.uuid);
  disk.step = record.step;
  disk.commit_hash = record.commit_hash;
  std::ranges::copy(record.table_digest, disk.table_digest);
  disk.trainer_bytes = static_cast<uint32_t>(record.trainer.size());
  std::ranges::copy(record.trainer, disk.trainer);
  disk.hash = HashOfIntent(disk);
  std::memcpy(bytes.data(), &disk, sizeof(disk));
}

std::optional<IntentRecord> DecodeIntentRecord(std::span<const std::byte> bytes) {
  FOREBAY_CHECK(static_cast<int64_t>(bytes.size()) == kIntentRecordBytes);
  DiskIntent disk;
  std::memcpy(&disk, bytes.data(), sizeof(disk));
  if (std::memcmp(disk.magic, kIntentMagic, sizeof(kIntentMagic)) != 0 ||
      disk.hash != HashOfIntent(disk) || disk.version != kIntentVersion ||
      disk.trainer_bytes > kCommitTrainerBytesMax) {
    return std::nullopt;
  }
  IntentRecord record;
  std::ranges::copy(disk.uuid, record.uuid.begin());
  record.step = disk.step;
  record.commit_hash = disk.commit_hash;
  record.gradient_elem_bytes = disk.gradient_elem_bytes;
  std::ranges::copy(disk.table_digest, record.table_digest.begin());
  record.trainer.assign(disk.trainer, disk.trainer_bytes);
  return record;
}

}  // namespace forebay
