// The record that makes the gradients of a step usable after a crash: its bytes (docs/formats.md,
// "intent.fbs"). Pure.
//
// Nothing has to be written in an order for it: a record stands for the gradients whose checksums
// have its root, and for an update of the very commit that it names. Of anything else it is silent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "forebay/swap/records/commit_record.h"

namespace forebay {

inline constexpr int64_t kIntentRecordBytes = 4096;

struct IntentRecord {
  StoreUuid uuid = {};
  int64_t step = 0;                           // that the update makes
  uint64_t commit_hash = 0;                   // of the record of the commit that it starts from
  int64_t gradient_elem_bytes = 0;            // 2: bf16, 4: fp32
  std::array<uint8_t, 16> table_digest = {};  // XXH3-128 of the gradients' checksums
  std::string trainer;                        // JSON text, at most kCommitTrainerBytesMax
};

// Requires: bytes.size() == kIntentRecordBytes and the trainer's text fits.
void EncodeIntentRecord(const IntentRecord& record, std::span<std::byte> bytes);
// Nothing when there is none, or it is torn, damaged or of another format version: a step is then
// computed again.
std::optional<IntentRecord> DecodeIntentRecord(std::span<const std::byte> bytes);

}  // namespace forebay
