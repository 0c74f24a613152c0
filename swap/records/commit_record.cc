#include "forebay/swap/records/commit_record.h"

#include <algorithm>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/sealed_record.h"

namespace forebay {
namespace {

constexpr uint32_t kFlagOverwriting = 1;

// The bytes on disk (docs/formats.md, "commit.fbs").
struct DiskRecord {
  static constexpr RecordKind kKind = {{'F', 'B', 'C', 'O', 'M', 'M', 'I', 'T'}, 4};
  RecordKind kind;
  uint32_t slot;
  uint8_t uuid[16];
  uint64_t sequence;
  int64_t step;
  uint64_t previous_hash;
  uint32_t trainer_bytes;
  uint32_t flags;  // kFlagOverwriting, or 0
  SealsRoot seals_root;
  uint64_t manifest_hash;
  char trainer[kCommitTrainerBytesMax];
  uint8_t zeros[kCommitRecordBytes - kCommitTrainerBytesMax - 96];
  uint64_t hash;  // XXH3-64 of everything before it
};
static_assert(sizeof(DiskRecord) == kCommitRecordBytes && offsetof(DiskRecord, trainer) == 88);

// Whether a store may have written it: anybody can make a hash that fits.
bool IsPossible(const DiskRecord& record) {
  return record.slot <= 1 && record.trainer_bytes <= kCommitTrainerBytesMax &&
         record.flags <= kFlagOverwriting && record.step >= 0 && record.step <= kMostCommits &&
         record.sequence >= 1 && record.sequence <= 2 * static_cast<uint64_t>(kMostCommits);
}

}  // namespace

absl::StatusOr<std::string> TrainerText(const Json& trainer) {
  std::string text;
  try {
    text = trainer.dump();
  } catch (const Json::exception& error) {
    return UsageError(fmt::format("the trainer's state cannot be committed: {}", error.what()));
  }
  if (static_cast<int64_t>(text.size()) > kCommitTrainerBytesMax) {
    return UsageError(
        fmt::format("the trainer's state has {} bytes of JSON; a commit holds {}. Shorten what it "
                    "records (names, paths)",
                    text.size(), kCommitTrainerBytesMax));
  }
  return text;
}

bool HaveSameTiles(const CommitRecord& a, const CommitRecord& b) {
  return a.uuid == b.uuid && a.slot == b.slot && a.seals_root == b.seals_root;
}

uint64_t EncodeCommitRecord(const CommitRecord& record, std::span<std::byte> bytes) {
  FOREBAY_CHECK(static_cast<int64_t>(record.trainer.size()) <= kCommitTrainerBytesMax);
  DiskRecord disk = {};
  disk.slot = record.slot;
  std::ranges::copy(record.uuid, disk.uuid);
  disk.sequence = record.sequence;
  disk.step = record.step;
  disk.previous_hash = record.previous_hash;
  disk.seals_root = record.seals_root;
  disk.manifest_hash = record.manifest_hash;
  disk.trainer_bytes = static_cast<uint32_t>(record.trainer.size());
  disk.flags = record.overwriting ? kFlagOverwriting : 0;
  std::ranges::copy(record.trainer, disk.trainer);
  SealRecord(disk, bytes);
  return disk.hash;
}

absl::StatusOr<DecodedCopy> DecodeCommitRecord(std::span<const std::byte> bytes,
                                               std::string_view source) {
  DecodedCopy copy;
  if (std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; })) return copy;
  DiskRecord disk;
  const RecordFault fault = OpenRecord(bytes, disk);
  copy.state = CopyState::kBad;
  if (fault == RecordFault::kOtherMagic || fault == RecordFault::kDamaged) return copy;
  if (fault == RecordFault::kOtherVersion) {
    return CorruptError(
        fmt::format("'{}' has records of format version {}; this program reads version {}. Use the "
                    "forebay that wrote it",
                    source, disk.kind.version, DiskRecord::kKind.version));
  }
  if (!IsPossible(disk)) return copy;
  copy.state = CopyState::kGood;
  std::ranges::copy(disk.uuid, copy.record.uuid.begin());
  copy.record.sequence = disk.sequence;
  copy.record.step = disk.step;
  copy.record.slot = disk.slot;
  copy.record.previous_hash = disk.previous_hash;
  copy.record.overwriting = disk.flags == kFlagOverwriting;
  copy.record.seals_root = disk.seals_root;
  copy.record.manifest_hash = disk.manifest_hash;
  copy.record.trainer.assign(disk.trainer, disk.trainer_bytes);
  copy.hash = disk.hash;
  return copy;
}

absl::StatusOr<std::optional<DecodedCopy>> ChooseCommit(const DecodedCopy& first,
                                                        const DecodedCopy& second,
                                                        const StoreUuid& uuid,
                                                        std::string_view source) {
  for (const DecodedCopy* copy : {&first, &second}) {
    if (copy->state == CopyState::kGood && copy->record.uuid != uuid) {
      return CorruptError(
          fmt::format("'{}' belongs to another store than the manifest beside it. Put back the "
                      "files that belong together",
                      source));
    }
  }
  const bool first_good = first.state == CopyState::kGood;
  const bool second_good = second.state == CopyState::kGood;
  if (!first_good && !second_good) {
    if (first.state == CopyState::kBad && second.state == CopyState::kBad) {
      return CorruptError(
          fmt::format("both commit records of '{}' are damaged, so it cannot be said which slot is "
                      "whole. 'forebay inspect RUN --repair' finds out from the checksums; else "
                      "restore the store from a copy, or start again from the last exported model",
                      source));
    }
    return std::nullopt;
  }
  if (!first_good) return second;
  if (!second_good) return first;
  const bool first_newer = first.record.sequence >= second.record.sequence;
  const DecodedCopy& newer = first_newer ? first : second;
  const DecodedCopy& older = first_newer ? second : first;
  const uint64_t apart = newer.record.sequence - older.record.sequence;
  if ((apart == 0 && newer.hash != older.hash) ||
      (apart == 1 && newer.record.previous_hash != older.hash)) {
    return CorruptError(
        fmt::format("the commit records {} and {} of '{}' do not belong to one history: parts of "
                    "two copies of the store were mixed. Put "
                    "back the files that belong together",
                    older.record.sequence, newer.record.sequence, source));
  }
  return newer;
}

namespace {

bool Holds(const DecodedCopy& copy, const DecodedCopy& record) {
  return copy.state == CopyState::kGood && copy.hash == record.hash;
}

std::string NewestText(const std::optional<DecodedCopy>& newest) {
  if (!newest.has_value()) return "was never committed";
  return fmt::format("was last committed at step {} (record {})", newest->record.step,
                     newest->record.sequence);
}

absl::Status MixedError(const FolderCopies& folder, const std::optional<DecodedCopy>& newest,
                        const FolderCopies& newer, const DecodedCopy& record) {
  return CorruptError(fmt::format(
      "the folders of the store do not belong together: '{}' {}, and '{}' {}. One of them is a "
      "copy from another time. Put back the folders that belong together",
      folder.source, NewestText(newest), newer.source, NewestText(record)));
}

}  // namespace

absl::StatusOr<std::optional<ChosenCommit>> ChooseCommit(std::span<const FolderCopies> folders,
                                                         const StoreUuid& uuid) {
  std::vector<std::optional<DecodedCopy>> newest;
  size_t chosen = 0;
  for (const FolderCopies& folder : folders) {
    FOREBAY_ASSIGN_OR_RETURN(newest.emplace_back(),
                             ChooseCommit(folder.first, folder.second, uuid, folder.source));
    const auto sequence = [&](size_t i) {
      return newest[i].has_value() ? newest[i]->record.sequence : 0;
    };
    if (sequence(newest.size() - 1) > sequence(chosen)) chosen = newest.size() - 1;
  }
  if (newest.empty() || !newest[chosen].has_value()) return std::nullopt;
  const DecodedCopy& record = *newest[chosen];
  const bool in_a_second_copy = std::ranges::any_of(
      folders, [&](const FolderCopies& folder) { return Holds(folder.second, record); });
  for (size_t i = 0; i < folders.size(); ++i) {
    const FolderCopies& folder = folders[i];
    if (Holds(folder.first, record) || Holds(folder.second, record)) continue;
    // Where the second copy is lost the first tells: it is the newer one of the two.
    const DecodedCopy& before =
        folder.second.state == CopyState::kGood ? folder.second : folder.first;
    const bool is_rival =
        newest[i].has_value() && newest[i]->record.sequence >= record.record.sequence;
    const bool is_first = record.record.sequence == 1;
    const bool follows = is_first ? before.state != CopyState::kGood
                                  : before.state == CopyState::kGood &&
                                        before.record.sequence + 1 == record.record.sequence &&
                                        before.hash == record.record.previous_hash;
    // Where another folder has it in its second copy this one had it too, in its first, and may
    // have lost that.
    const bool lost_it =
        is_first ? folder.first.state == CopyState::kBad : folder.first.state != CopyState::kGood;
    if ((in_a_second_copy && !lost_it) || is_rival || !follows) {
      return MixedError(folder, newest[i], folders[chosen], record);
    }
  }
  return ChosenCommit{record.record, record.hash, folders[chosen].source};
}

}  // namespace forebay
