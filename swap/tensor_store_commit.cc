// Publishing a step, and finding the published one again (docs/formats.md, "Publishing a step").
#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/tensor_store_impl.h"

namespace forebay {
namespace {

int64_t OffsetOfCopy(int copy) {
  return copy * kCommitRecordBytes;
}

}  // namespace

// What is read here is built upon, so it has to be durable: the process before may have been killed
// with its newest copies in no more than a cache. Else a second copy of a record could outlive the
// first one of another folder; or the next commit could tear the one copy that a power cut would
// have left, after its step had overwritten what the copy before stands for.
//
// The data needs no such flush: whoever wrote a record had flushed all data of it before, without
// an error, and what is there of a later step is written again.
absl::StatusOr<std::vector<FolderCopies>> TensorStore::Impl::ReadCopies() {
  // A reader builds nothing.
  if (access == StoreAccess::kReadWrite) FOREBAY_RETURN_IF_ERROR(Flush(CommitFiles()));
  const auto block = std::make_unique<RecordBlock>();
  std::vector<FolderCopies> folders;
  for (const Stripe& stripe : stripes) {
    FolderCopies& folder = folders.emplace_back();
    folder.source = JoinPath(stripe.directory, kCommitName);
    for (DecodedCopy* copy : {&folder.first, &folder.second}) {
      const int64_t offset_bytes = OffsetOfCopy(copy == &folder.first ? 0 : 1);
      FOREBAY_RETURN_IF_ERROR(RunOp(IoKind::kRead, stripe.commit_file, offset_bytes, block->bytes));
      FOREBAY_ASSIGN_OR_RETURN(*copy, DecodeCommitRecord(block->bytes, folder.source));
    }
  }
  return folders;
}

std::vector<int> TensorStore::Impl::CommitFiles() const {
  std::vector<int> numbers;
  for (const Stripe& stripe : stripes) numbers.push_back(stripe.commit_file);
  return numbers;
}

// Writes one copy of the record to each of the files, and flushes them.
absl::Status TensorStore::Impl::WriteCopy(int copy, std::span<std::byte> bytes,
                                          std::span<const int> commit_files) {
  std::vector<IoOp> ops(commit_files.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    Start(ops[i], IoKind::kWrite, IoClass::kWriteBack, commit_files[i], OffsetOfCopy(copy), bytes);
  }
  absl::Status status;
  for (IoOp& op : ops) status.Update(engine->Wait(op));
  FOREBAY_RETURN_IF_ERROR(status);
  return Flush(commit_files);
}

// The first copies are durable in all folders before a second one is touched. So at every moment
// each folder has a whole copy, and a second copy that is new proves that all folders have the
// record.
absl::Status TensorStore::Impl::WriteCopies(std::span<std::byte> record_bytes) {
  const std::vector<int> commit_files = CommitFiles();
  FOREBAY_RETURN_IF_ERROR(WriteCopy(0, record_bytes, commit_files));
  return WriteCopy(1, record_bytes, commit_files);
}

// All copies must hold the chosen record before anything else is written. Else the next commit
// could tear the only copy of it and fall back to the record before, whose slot was overwritten
// meanwhile. In the order of WriteCopies, for the sake of a crash meanwhile: first copies that are
// left alone here are durable, as ReadCopies has flushed them.
absl::Status TensorStore::Impl::RepairCopies(std::span<const FolderCopies> folders) {
  if (access != StoreAccess::kReadWrite) return absl::OkStatus();
  const auto block = std::make_unique<RecordBlock>();
  EncodeCommitRecord(record, block->bytes);
  for (const int number : {0, 1}) {
    std::vector<int> commit_files;
    for (size_t i = 0; i < folders.size(); ++i) {
      const DecodedCopy& copy = number == 0 ? folders[i].first : folders[i].second;
      const bool current = copy.state == CopyState::kGood && copy.hash == record_hash;
      if (!current) commit_files.push_back(stripes[i].commit_file);
    }
    if (commit_files.empty()) continue;
    FOREBAY_RETURN_IF_ERROR(WriteCopy(number, block->bytes, commit_files));
  }
  return absl::OkStatus();
}

// Whether what the record speaks of can be used.
absl::Status TensorStore::Impl::CheckRecord(const CommitRecord& found,
                                            const std::string& source) const {
  const auto num_slots = static_cast<uint32_t>(manifest.num_slots);
  if (found.slot >= num_slots || (found.overwriting && num_slots > 1)) {
    return CorruptError(
        fmt::format("the commit record {} of '{}' is not of a store of {} slot{}. Put back the "
                    "files that belong together",
                    found.sequence, source, num_slots, num_slots == 1 ? "" : "s"));
  }
  // Beside a writer that is what a store with one slot looks like.
  if (!found.overwriting || access == StoreAccess::kBesideWriter) return absl::OkStatus();
  return CorruptError(fmt::format(
      "the store in {} keeps one copy (--durability=none), and was left while steps after step {} "
      "were written over it: by a crash, a kill or a power cut. What it holds may be of several "
      "steps and is not used. 'forebay inspect RUN --repair' finds out whether step {} is whole "
      "all the same; else start again, from the last export where there is one",
      Where(), found.step, found.step));
}

absl::Status TensorStore::Impl::RecoverCommit() {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<FolderCopies> folders, ReadCopies());
  FOREBAY_ASSIGN_OR_RETURN(const std::optional<ChosenCommit> chosen,
                           ChooseCommit(folders, manifest.uuid));
  if (!chosen.has_value()) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(CheckRecord(chosen->record, chosen->source));
  absl::StatusOr<Json> trainer = ParseJson(chosen->record.trainer, chosen->source);
  if (!trainer.ok()) {
    return CorruptError(
        fmt::format("the commit record {} of '{}' carries no valid trainer state ({}). Restore the "
                    "store from a copy, or start again from the last exported model",
                    chosen->record.sequence, chosen->source, MessageOf(trainer.status())));
  }
  record = chosen->record;
  record_hash = chosen->hash;
  FOREBAY_RETURN_IF_ERROR(ReadSeals(record.slot));
  committed = {record.step, *std::move(trainer)};
  has_commit = true;
  return RepairCopies(folders);
}

absl::Status TensorStore::Impl::FlushData() {
  std::vector<int> data_files;
  for (const Stripe& stripe : stripes) {
    for (const int number : {stripe.weights_file, stripe.state_file, stripe.seals_file}) {
      if (number >= 0) data_files.push_back(number);
    }
  }
  return Flush(data_files);
}

// The record of the committed step once more, as one that no longer stands for it.
absl::Status TensorStore::Impl::PublishOverwriting() {
  CommitRecord next = record;
  next.overwriting = true;
  next.sequence = record.sequence + 1;
  next.previous_hash = record_hash;
  const auto block = std::make_unique<RecordBlock>();
  const uint64_t hash = EncodeCommitRecord(next, block->bytes);
  FOREBAY_RETURN_IF_ERROR(WriteCopies(block->bytes));
  const std::lock_guard guard(slots_mutex);
  record = std::move(next);
  record_hash = hash;
  return absl::OkStatus();
}

bool TensorStore::AwaitsSnapshot() const {
  return impl_->IsRead(impl_->working_slot());
}

bool TensorStore::NothingIsWritten() const {
  return impl_->AllTilesAre(TileProgress::kCommitted);
}

absl::Status TensorStore::BeginWriting() {
  Impl& impl = *impl_;
  FOREBAY_RETURN_IF_ERROR(impl.CheckTakesCommits());
  FOREBAY_CHECK(!AwaitsSnapshot());
  ++impl.round;
  if (impl.manifest.num_slots > 1 || !impl.has_commit || impl.record.overwriting) {
    return absl::OkStatus();
  }
  impl.failure = impl.PublishOverwriting();
  return Annotate(impl.failure,
                  fmt::format("marking the one copy in {} as being overwritten failed; it still is "
                              "step {}, which 'forebay inspect RUN --repair' brings back if it is "
                              "marked all the same",
                              impl.Where(), impl.record.step));
}

void TensorStore::DiscardWrites() {
  Impl& impl = *impl_;
  FOREBAY_CHECK(impl.manifest.num_slots > 1 || !impl.has_commit);
  const std::lock_guard guard(impl.slots_mutex);
  ++impl.round;
  for (int i = 0; i < impl.tiles.num_tiles(); ++i) {
    impl.weights_progress[i].store(TileProgress::kCommitted, std::memory_order_release);
    impl.state_progress[i].store(TileProgress::kCommitted, std::memory_order_release);
  }
}

absl::Status TensorStore::Impl::CheckTakesCommits() const {
  if (failure.ok()) return absl::OkStatus();
  return Annotate(
      failure,
      fmt::format("the store {} takes no commit any more, because an earlier one failed", Where()));
}

bool TensorStore::Impl::AllTilesAre(TileProgress progress) const {
  const auto is = [progress](const std::atomic<TileProgress>& of_tile) {
    return of_tile.load(std::memory_order_acquire) == progress;
  };
  return std::ranges::all_of(weights_progress, is) && std::ranges::all_of(state_progress, is);
}

absl::Status TensorStore::Commit(const CommitInfo& info) {
  FOREBAY_RETURN_IF_ERROR(impl_->CheckTakesCommits());
  FOREBAY_CHECK(impl_->AllTilesAre(TileProgress::kWritten));
  return impl_->Publish(info, /*changes_tiles=*/true);
}

absl::Status TensorStore::CommitSkipped(const CommitInfo& info) {
  FOREBAY_RETURN_IF_ERROR(impl_->CheckTakesCommits());
  FOREBAY_CHECK(impl_->has_commit && info.step > impl_->committed.step);
  FOREBAY_CHECK(impl_->AllTilesAre(TileProgress::kCommitted));
  return impl_->Publish(info, /*changes_tiles=*/false);
}

absl::Status TensorStore::Impl::Publish(const CommitInfo& info, bool changes_tiles) {
  CommitRecord next;
  FOREBAY_ASSIGN_OR_RETURN(next.trainer, TrainerText(info.trainer));
  next.uuid = manifest.uuid;
  next.sequence = record.sequence + 1;
  next.step = info.step;
  next.slot = changes_tiles ? working_slot() : committed_slot();
  next.previous_hash = record_hash;
  next.seals_root = changes_tiles ? seals[next.slot].Close(next.sequence) : record.seals_root;
  const auto block = std::make_unique<RecordBlock>();
  const uint64_t hash = EncodeCommitRecord(next, block->bytes);

  // Data first, then the record that says it is there.
  absl::Status status;
  if (changes_tiles) {
    seals[next.slot].SetRecord(block->bytes);
    status = WriteSeals(next.slot);
    if (status.ok()) status = FlushData();
  }
  if (status.ok()) status = WriteCopies(block->bytes);
  if (!status.ok()) {
    failure = status;
    return Annotate(status, fmt::format("committing step {} to {} failed", info.step, Where()));
  }
  const std::lock_guard guard(slots_mutex);
  record = std::move(next);
  record_hash = hash;
  committed = info;
  const bool is_first = !std::exchange(has_commit, true);
  if (!changes_tiles) return absl::OkStatus();
  previous_is_known.store(!is_first && manifest.num_slots > 1, std::memory_order_release);
  ++round;
  for (int i = 0; i < tiles.num_tiles(); ++i) {
    weights_progress[i].store(TileProgress::kCommitted, std::memory_order_release);
    state_progress[i].store(TileProgress::kCommitted, std::memory_order_release);
  }
  return absl::OkStatus();
}

}  // namespace forebay
