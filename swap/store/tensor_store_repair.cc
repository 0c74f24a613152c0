// Making the newest slot that is whole the committed one.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {
// ---- Repair

// The record that the tables of `slot` were written with, when all of them are whole and belong
// together: what its tiles should be is known then, whether or not it was ever committed.
std::optional<DecodedCopy> TensorStore::Impl::RecordOfTables(uint32_t slot) {
  // A repair that was cut short may have left tables of two kinds, each of them whole in one copy.
  for (const int preferred_copy : {0, 1}) {
    std::optional<DecodedCopy> found = RecordOfTables(slot, preferred_copy);
    if (found.has_value()) return found;
  }
  return std::nullopt;
}

std::optional<DecodedCopy> TensorStore::Impl::RecordOfTables(uint32_t slot, int preferred_copy) {
  std::optional<DecodedCopy> found;
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    if (seals[slot].table(stripe).empty()) continue;
    const auto is_whole = [&](int copy) {
      return ReadPatiently(stripes[stripe].seals_files[copy], TableOffset(stripe, slot),
                           seals[slot].table(stripe))
                 .ok() &&
             seals[slot].CheckTable(stripe, kSealsName).ok();
    };
    if (!is_whole(preferred_copy) && !is_whole(1 - preferred_copy)) return std::nullopt;
    absl::StatusOr<DecodedCopy> head = DecodeCommitRecord(seals[slot].record(stripe), kSealsName);
    if (!head.ok() || head->state != CopyState::kGood) return std::nullopt;
    if (found.has_value() && found->hash != head->hash) return std::nullopt;
    found = *std::move(head);
  }
  if (!found.has_value() || found->record.uuid != manifest.uuid || found->record.slot != slot ||
      found->record.manifest_hash != manifest_hash ||
      found->record.seals_root != seals[slot].RootOfTables()) {
    return std::nullopt;
  }
  return found;
}

// The record of the commit that wrote the tiles in force, of its tables in memory.
CommitRecord TensorStore::Impl::RecordInForce() {
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    if (seals[committed_slot()].table(stripe).empty()) continue;
    const auto head = DecodeCommitRecord(seals[committed_slot()].record(stripe), kSealsName);
    FOREBAY_CHECK(head.ok() && HaveSameTiles(head->record, record));
    return head->record;
  }
  FOREBAY_CHECK(false);
}

// One copy after the other, as these tables are all that tells what the slot holds.
absl::Status TensorStore::Impl::WriteSealsInTurn(uint32_t slot) {
  for (const int copy : {0, 1}) {
    for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
      const std::span<std::byte> table = seals[slot].table(stripe);
      if (table.empty()) continue;
      FOREBAY_RETURN_IF_ERROR(RunOp(IoKind::kWrite, stripes[stripe].seals_files[copy],
                                    TableOffset(stripe, slot), table));
    }
    FOREBAY_RETURN_IF_ERROR(FlushData());
  }
  return absl::OkStatus();
}

// Commits what the tables of a slot describe, `of_tables`, as the successor of `newest`: so a crash
// in the middle leaves one or the other in all folders, as with every commit.
absl::Status TensorStore::Impl::CommitAgain(const DecodedCopy& of_tables,
                                            const DecodedCopy& newest) {
  CommitRecord again = of_tables.record;
  again.sequence = newest.record.sequence + 1;
  again.previous_hash = newest.hash;
  again.seals_root = seals[again.slot].Close(again.sequence);
  const auto block = std::make_unique<RecordBlock>();
  EncodeCommitRecord(again, block->bytes);
  seals[again.slot].SetRecord(block->bytes);
  FOREBAY_RETURN_IF_ERROR(WriteSealsInTurn(again.slot));
  return WriteCopies(block->bytes);
}

// A record that was written with another manifest is not of these tiles, and one without the
// trainer's state is of no use.
bool TensorStore::Impl::IsOfThisStore(const CommitRecord& found) const {
  return found.manifest_hash == manifest_hash &&
         found.sequence < static_cast<uint64_t>(kMostCommits) &&
         ParseJson(found.trainer, kCommitName).ok();
}

// What the commit files say, but for folders where no copy is whole. Files that contradict one
// another are not for a program to sort out: CorruptError.
absl::StatusOr<TensorStore::Impl::KnownCommit> TensorStore::Impl::FindCommit() {
  // A repair builds upon these records before it writes them again.
  for (int copy = 0; copy < kNumCopies; ++copy) {
    FOREBAY_RETURN_IF_ERROR(Flush(CommitFiles(copy)));
  }
  FOREBAY_ASSIGN_OR_RETURN(std::vector<FolderCopies> folders, ReadCopies());
  KnownCommit known;
  for (FolderCopies& folder : folders) {
    for (DecodedCopy* copy : {&folder.first, &folder.second}) {
      if (copy->state != CopyState::kGood || IsOfThisStore(copy->record)) continue;
      copy->state = CopyState::kBad;
      known.some_lost = true;
    }
  }
  known.some_lost |=
      std::erase_if(folders, [](const FolderCopies& folder) {
        return folder.first.state != CopyState::kGood && folder.second.state != CopyState::kGood;
      }) > 0;
  FOREBAY_ASSIGN_OR_RETURN(const std::optional<ChosenCommit> chosen,
                           ChooseCommit(folders, manifest.uuid));
  if (chosen.has_value()) {
    known.newest = DecodedCopy{CopyState::kGood, chosen->record, chosen->hash};
  }
  return known;
}

// What is in force for the tiles that `of_tables` describes: steps that changed none may have been
// committed since, and a slot may be marked as being overwritten.
DecodedCopy TensorStore::Impl::InForce(DecodedCopy of_tables, const KnownCommit& known) {
  if (!known.newest.has_value() || !HaveSameTiles(of_tables.record, known.newest->record)) {
    return of_tables;
  }
  if (!known.newest->record.overwriting) return *known.newest;
  of_tables.record.step = known.newest->record.step;
  of_tables.record.trainer = known.newest->record.trainer;
  return of_tables;
}

// The sequence of the commit that wrote the tiles of `newest`. The head of one table says so, even
// where all of the tables are damaged behind their heads.
std::optional<uint64_t> TensorStore::Impl::SequenceOfTiles(const CommitRecord& newest) {
  const auto block = std::make_unique<RecordBlock>();
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    if (seals[newest.slot].table(stripe).empty()) continue;
    for (const int copy : {0, 1}) {
      if (!ReadPatiently(stripes[stripe].seals_files[copy], TableOffset(stripe, newest.slot),
                         block->bytes)
               .ok()) {
        continue;
      }
      const auto head = DecodeCommitRecord(block->bytes, kSealsName);
      if (head.ok() && head->state == CopyState::kGood && HaveSameTiles(head->record, newest)) {
        return head->record.sequence;
      }
    }
  }
  return std::nullopt;
}

// An attempt at a step that was skipped afterwards may be whole in the other slot, tables and all.
// It is of no history, and has to be told from two that are: the step before, and one that was
// complete but for its record. What cannot be told from it is dropped too.
//
// - The step before was in force when the tiles in force were written: its sequence is lower than
//   theirs, where that of an attempt from then on is higher. Where theirs is lost with their
//   tables, it is that of the newest record if the record before it is of other tiles.
// - What was to follow the newest record, and what was to follow that, has its hash.
//
// With one slot nothing is dropped: a slot that was written to is marked as such, and no store that
// is marked is opened to skip a step.
void TensorStore::Impl::DropAbandoned(std::vector<DecodedCopy>& of_tables,
                                      const KnownCommit& known) {
  if (!known.newest.has_value() || manifest.num_slots == 1) return;
  const CommitRecord& newest = known.newest->record;
  std::optional<uint64_t> written = SequenceOfTiles(newest);
  for (const DecodedCopy& copy : of_tables) {
    if (copy.hash == newest.previous_hash && !HaveSameTiles(copy.record, newest)) {
      written = newest.sequence;
    }
  }
  std::ranges::sort(of_tables, {}, [](const DecodedCopy& copy) { return copy.record.sequence; });
  std::vector<DecodedCopy> kept;
  const DecodedCopy* last = &*known.newest;
  for (const DecodedCopy& copy : of_tables) {
    const CommitRecord& its = copy.record;
    const bool is_before = written.has_value() && its.sequence < *written;
    const bool follows =
        its.sequence == last->record.sequence + 1 && its.previous_hash == last->hash;
    if (follows) last = &copy;
    if (HaveSameTiles(its, newest) || is_before || follows) kept.push_back(copy);
  }
  of_tables = std::move(kept);
}

// Makes `whole` the committed step. Whether there was anything to do.
absl::StatusOr<bool> TensorStore::Impl::MakeCommitted(const DecodedCopy& whole,
                                                      const KnownCommit& known) {
  if (known.newest.has_value() && known.newest->hash != whole.hash) {
    FOREBAY_RETURN_IF_ERROR(CommitAgain(whole, *known.newest));
    return true;
  }
  if (!known.some_lost) return false;
  const auto block = std::make_unique<RecordBlock>();
  EncodeCommitRecord(whole.record, block->bytes);
  FOREBAY_RETURN_IF_ERROR(WriteCopies(block->bytes));
  return true;
}

absl::StatusOr<RepairReport> TensorStore::Impl::Repair(
    MemoryBudget* budget, const std::function<void(int64_t done, int64_t all)>& progress) {
  FOREBAY_ASSIGN_OR_RETURN(const KnownCommit known, FindCommit());
  std::vector<DecodedCopy> candidates;
  for (uint32_t slot = 0; slot < seals.size(); ++slot) {
    if (std::optional<DecodedCopy> of_tables = RecordOfTables(slot)) {
      candidates.push_back(*std::move(of_tables));
    }
  }
  const size_t num_readable = candidates.size();
  DropAbandoned(candidates, known);
  for (DecodedCopy& candidate : candidates) candidate = InForce(std::move(candidate), known);
  // What is committed first: a later step that was never committed is taken only in its place.
  const auto is_committed = [&](const DecodedCopy& copy) {
    return known.newest.has_value() && copy.hash == known.newest->hash;
  };
  std::ranges::sort(candidates, [&](const DecodedCopy& a, const DecodedCopy& b) {
    if (is_committed(a) != is_committed(b)) return is_committed(a);
    return a.record.sequence > b.record.sequence;
  });
  const auto tell = [&](int64_t done) {
    if (progress) progress(done, tiles.weight_area_bytes() + tiles.state_area_bytes());
  };
  RepairReport report;
  if (known.newest.has_value()) report.step_before = known.newest->record.step;
  std::string found;
  for (const DecodedCopy& candidate : candidates) {
    std::vector<TileDamage> damaged;
    FOREBAY_RETURN_IF_ERROR(ScrubSlot(candidate.record.slot, budget, tell, damaged));
    if (damaged.empty()) {
      report.step = candidate.record.step;
      FOREBAY_ASSIGN_OR_RETURN(report.changed, MakeCommitted(candidate, known));
      FOREBAY_RETURN_IF_ERROR(RepairLengths());
      FOREBAY_RETURN_IF_ERROR(RecoverCommit());
      report.notes = notes;
      return report;
    }
    found += fmt::format("; of step {}, in slot {}, {} {} damaged", candidate.record.step,
                         candidate.record.slot == 0 ? "A" : "B", damaged.size(),
                         damaged.size() == 1 ? "part is" : "parts are");
    if (is_committed(candidate)) report.damaged = std::move(damaged);
  }
  return CorruptError(fmt::format(
      "{} cannot be repaired: no step is whole{}{}{}. Restore the run from a copy, or start again "
      "from its last export",
      Where(), found, num_readable < seals.size() ? "; the checksums of a slot are lost" : "",
      candidates.size() < num_readable
          ? "; what the other slot holds cannot be told from an attempt at a step that was skipped "
            "afterwards"
          : ""));
}

absl::StatusOr<RepairReport> TensorStore::Repair(
    const std::vector<std::string>& directories, Engine* engine, const std::string& uuid,
    MemoryBudget* budget, const std::function<void(int64_t done, int64_t all)>& progress) {
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<TensorStore> store,
      OpenUncommitted(directories, engine, uuid, TileFiles::kAnyLength, StoreAccess::kReadWrite));
  return store->impl_->Repair(budget, progress);
}

}  // namespace forebay
