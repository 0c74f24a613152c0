// The record that makes a step real: its bytes, and which of its copies to believe
// (docs/formats.md, "commit.fbs"). Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

inline constexpr int64_t kCommitRecordBytes = 4096;
inline constexpr int64_t kCommitTrainerBytesMax = 3072;
// The limit of steps and sequences. No run comes near it, and sums of a few do not overflow.
inline constexpr int64_t kMostCommits = int64_t{1} << 60;

using StoreUuid = std::array<uint8_t, 16>;
using SealsRoot = std::array<uint8_t, 16>;

struct CommitRecord {
  StoreUuid uuid = {};
  uint64_t sequence = 0;  // 1, 2, ... over the life of the store; at most kMostCommits
  int64_t step = 0;       // 0 to kMostCommits
  uint32_t slot = 0;      // 0: A, 1: B
  // In a store with one slot: later steps overwrite what was committed, and nothing of it can be
  // relied upon.
  bool overwriting = false;
  uint64_t previous_hash = 0;  // of the record before; of the first record: 0
  SealsRoot seals_root = {};   // over the seals of all tiles of the slot (tile_seals.h)
  uint64_t manifest_hash = 0;  // of what the store's manifests have in common (store_manifest.h)
  std::string trainer;         // JSON text, at most kCommitTrainerBytesMax
};

// What a record carries of the trainer's. UsageError where it does not fit.
absl::StatusOr<std::string> TrainerText(const Json& trainer);

// Whether both speak of the same contents of the same slot: the commits of steps that changed no
// tile do, and the mark that a slot is being overwritten.
bool HaveSameTiles(const CommitRecord& a, const CommitRecord& b);

// Requires: bytes.size() == kCommitRecordBytes and the trainer's text fits. Returns the record's
// hash.
uint64_t EncodeCommitRecord(const CommitRecord& record, std::span<std::byte> bytes);

enum class CopyState : uint8_t {
  kEmpty,  // never written: all zero
  kBad,    // cannot be read, is torn or damaged, or says what no store writes
  kGood,
};
struct DecodedCopy {
  CopyState state = CopyState::kEmpty;
  CommitRecord record;  // when kGood
  uint64_t hash = 0;    // when kGood
};
// CorruptError for an intact record of an unknown format version; `source` names the file.
absl::StatusOr<DecodedCopy> DecodeCommitRecord(std::span<const std::byte> bytes,
                                               std::string_view source);

// The newest good copy; nothing when the store was never committed (a torn first record included:
// its step never became real). CorruptError when both copies are damaged, when a record belongs to
// another store, or when two successive ones do not chain.
absl::StatusOr<std::optional<DecodedCopy>> ChooseCommit(const DecodedCopy& first,
                                                        const DecodedCopy& second,
                                                        const StoreUuid& uuid,
                                                        std::string_view source);

// What one folder of a store has of the record.
struct FolderCopies {
  std::string source;  // the file, for messages
  DecodedCopy first;
  DecodedCopy second;
  absl::Status unreadable;  // the error of a copy that is kBad because it could not be read
};

struct ChosenCommit {
  CommitRecord record;
  uint64_t hash = 0;
  std::string source;  // of a folder that has it
};

// As ChooseCommit in each folder, and then the newest of all: a record is written when all data of
// its step is durable in every folder. CorruptError also when a folder has an older state than a
// crash could have left it: its second copy must be the record before when the newest is in no
// second copy yet, as first copies are durable everywhere before a second one is touched.
absl::StatusOr<std::optional<ChosenCommit>> ChooseCommit(std::span<const FolderCopies> folders,
                                                         const StoreUuid& uuid);

}  // namespace forebay
