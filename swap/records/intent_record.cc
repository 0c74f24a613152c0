#include "forebay/swap/records/intent_record.h"

#include <algorithm>

#include "forebay/base/check.h"
#include "forebay/base/sealed_record.h"

namespace forebay {
namespace {

// The bytes on disk (docs/formats.md, "intent.fbs").
struct DiskIntent {
  static constexpr RecordKind kKind = {{'F', 'B', 'I', 'N', 'T', 'E', 'N', 'T'}, 1};
  RecordKind kind;
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

}  // namespace

void EncodeIntentRecord(const IntentRecord& record, std::span<std::byte> bytes) {
  FOREBAY_CHECK(static_cast<int64_t>(record.trainer.size()) <= kCommitTrainerBytesMax);
  DiskIntent disk = {};
  disk.gradient_elem_bytes = static_cast<uint32_t>(record.gradient_elem_bytes);
  std::ranges::copy(record.uuid, disk.uuid);
  disk.step = record.step;
  disk.commit_hash = record.commit_hash;
  std::ranges::copy(record.table_digest, disk.table_digest);
  disk.trainer_bytes = static_cast<uint32_t>(record.trainer.size());
  std::ranges::copy(record.trainer, disk.trainer);
  SealRecord(disk, bytes);
}

std::optional<IntentRecord> DecodeIntentRecord(std::span<const std::byte> bytes) {
  DiskIntent disk;
  if (OpenRecord(bytes, disk) != RecordFault::kNone ||
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
