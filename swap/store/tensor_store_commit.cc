// Publishing a step, and finding the published one again (docs/formats.md, "Publishing a step").
#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/store_state.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {
absl::StatusOr<std::vector<FolderCopies>> TensorStore::Impl::ReadCopies() {
  std::vector<FolderCopies> folders;
  for (const Stripe& stripe : stripes) {
    FolderCopies& folder = folders.emplace_back();
    folder.source = JoinPath(stripe.directory, kCommitName);
    FOREBAY_ASSIGN_OR_RETURN(folder.first, ReadCopy(stripe, 0, folder.unreadable));
    FOREBAY_ASSIGN_OR_RETURN(folder.second, ReadCopy(stripe, 1, folder.unreadable));
  }
  return folders;
}

// A copy that cannot be read is as good as one that is damaged: the other one may be whole.
absl::StatusOr<DecodedCopy> TensorStore::Impl::ReadCopy(const Stripe& stripe, int copy,
                                                        absl::Status& unreadable) {
  const auto block = std::make_unique<RecordBlock>();
  const absl::Status read = ReadPatiently(stripe.commit_files[copy], 0, block->bytes);
  unreadable.Update(read);
  if (!read.ok()) return DecodedCopy{.state = CopyState::kBad};
  FOREBAY_ASSIGN_OR_RETURN(
      DecodedCopy decoded,
      DecodeCommitRecord(block->bytes, JoinPath(stripe.directory, kCommitNames[copy])));
  const bool is_lost = decoded.state == CopyState::kEmpty && IsRemade(stripe.commit_files[copy]);
  if (is_lost) decoded.state = CopyState::kBad;
  return decoded;
}

// One number for each folder.
std::vector<int> TensorStore::Impl::CommitFiles(int copy) const {
  std::vector<int> numbers;
  for (const Stripe& stripe : stripes) numbers.push_back(stripe.commit_files[copy]);
  return numbers;
}

// Writes one copy of the record in each folder, and flushes them.
absl::Status TensorStore::Impl::WriteCopy(int copy, std::span<std::byte> bytes) {
  const std::vector<int> commit_files = CommitFiles(copy);
  std::vector<IoOp> ops(commit_files.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    Start(ops[i], IoKind::kWrite, IoClass::kDemand, commit_files[i], 0, bytes);
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
  if (!on_disk.records) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(WriteCopy(0, record_bytes));
  return WriteCopy(1, record_bytes);
}

// All copies must hold the chosen record, durably, before any tile is written. Else the next
// commit could tear the only copy of it and fall back to the record before, whose slot was
// overwritten meanwhile; or a second copy could outlive the first one of another folder. In the
// order of WriteCopies, for the sake of a crash meanwhile. Copies that hold it already are written
// too: the process before may have been killed, or may have failed to flush them, and a power cut
// would take what was read from a cache.
//
// The data needs no such care: whoever wrote a record had flushed all data of it before, without an
// error, and what is there of a later step is written again.
absl::Status TensorStore::Impl::RepairCopies(std::span<const FolderCopies> folders) {
  for (size_t i = 0; i < folders.size(); ++i) {
    for (const DecodedCopy* copy : {&folders[i].first, &folders[i].second}) {
      const int number = copy == &folders[i].first ? 0 : 1;
      const int file = stripes[i].commit_files[number];
      if (copy->state != CopyState::kBad || file < 0 || IsRemade(file)) continue;
      NoteMended(fmt::format("the commit record in '{}' could not be read or was damaged",
                             JoinPath(stripes[i].directory, kCommitNames[number])));
    }
  }
  if (access != StoreAccess::kReadWrite) return absl::OkStatus();
  const auto block = std::make_unique<RecordBlock>();
  EncodeCommitRecord(record, block->bytes);
  return WriteCopies(block->bytes);
}

// Whether what the record speaks of can be used.
absl::Status TensorStore::Impl::CheckRecord(const CommitRecord& found,
                                            const std::string& source) const {
  const auto num_slots = static_cast<uint32_t>(manifest.num_slots);
  if (found.sequence >= static_cast<uint64_t>(kMostCommits)) {
    return CorruptError(fmt::format(
        "the commit record of '{}' has the number {}, which no run comes to: it is damaged. "
        "'forebay inspect RUN --repair' makes it anew from the checksums",
        source, found.sequence));
  }
  if (found.slot >= num_slots || (found.overwriting && num_slots > 1)) {
    return CorruptError(
        fmt::format("the commit record {} of '{}' is not of a store of {} slot{}. Put back the "
                    "files that belong together",
                    found.sequence, source, num_slots, num_slots == 1 ? "" : "s"));
  }
  if (found.manifest_hash != manifest_hash) {
    return CorruptError(fmt::format(
        "the commit record {} of '{}' was written with another manifest than '{}'. Put back the "
        "files that belong together",
        found.sequence, source, JoinPath(directories.front(), kManifestName)));
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
  const absl::StatusOr<std::optional<ChosenCommit>> choice = ChooseCommit(folders, manifest.uuid);
  for (const FolderCopies& folder : folders) {
    if (choice.ok() || folder.unreadable.ok()) continue;
    return Annotate(
        folder.unreadable,
        "without its commit records it cannot be said which slot of the store is whole. "
        "'forebay inspect RUN --repair' finds out from the checksums where those can be "
        "read");
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::optional<ChosenCommit> chosen, choice);
  if (!chosen.has_value()) return CheckIsBeingCreated();
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
  FOREBAY_RETURN_IF_ERROR(RepairCopies(folders));
  FOREBAY_RETURN_IF_ERROR(RestoreTables());
  return RepairManifests();
}

// A creation ends with a commit, so only a store whose creation was cut off has none.
absl::Status TensorStore::Impl::CheckIsBeingCreated() {
  FOREBAY_ASSIGN_OR_RETURN(is_being_created,
                           ProbePath(JoinPath(directories.front(), kCreatingName)));
  if (is_being_created || access == StoreAccess::kBesideWriter) return absl::OkStatus();
  std::vector<std::string> paths;
  for (const std::string& directory : directories) {
    paths.push_back(JoinPath(directory, kCommitName));
  }
  return CorruptError(fmt::format(
      "the commit records of a committed store are lost: {} {} zeros, and so {} in '{}'. Nothing "
      "was changed. 'forebay inspect RUN --repair' makes them anew from the checksums; else "
      "restore the store from a copy",
      QuotedList(paths), paths.size() == 1 ? "has" : "have",
      paths.size() == 1 ? "has its copy" : "have their copies", kCopyFolderName));
}

absl::Status TensorStore::Impl::FlushData() {
  if (!on_disk.records) return absl::OkStatus();
  std::vector<int> data_files;
  for (const Stripe& stripe : stripes) {
    for (const int number :
         {stripe.weights_file, stripe.state_file, stripe.seals_files[0], stripe.seals_files[1]}) {
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

int64_t TensorStore::UnwrittenBytes() const {
  const auto is_written = [](const std::atomic<TileProgress>& progress) {
    return progress.load(std::memory_order_acquire) == TileProgress::kWritten;
  };
  int64_t bytes = 0;
  for (int i = 0; i < impl_->tiles.num_tiles(); ++i) {
    const Tile& tile = impl_->tiles.tiles()[i];
    if (!is_written(impl_->weights_progress[i])) bytes += impl_->tiles.WeightBytes(tile);
    if (!is_written(impl_->state_progress[i])) bytes += impl_->tiles.StateBytes(tile);
  }
  return bytes;
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
  FOREBAY_CHECK(!has_commit || !is_being_created || unfilled);  // FinishCreation comes before
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

absl::Status TensorStore::Commit(const CommitInfo& info,
                                 const std::function<absl::Status()>& before_record) {
  FOREBAY_RETURN_IF_ERROR(impl_->CheckTakesCommits());
  FOREBAY_CHECK(impl_->AllTilesAre(TileProgress::kWritten));
  FOREBAY_RETURN_IF_ERROR(impl_->Publish(info, /*changes_tiles=*/true, before_record));
  if (!impl_->is_being_created || impl_->finished_by_owner) return absl::OkStatus();
  return impl_->failure = FinishCreation();
}

absl::Status TensorStore::CommitSkipped(const CommitInfo& info,
                                        const std::function<absl::Status()>& before_record) {
  FOREBAY_RETURN_IF_ERROR(impl_->CheckTakesCommits());
  FOREBAY_CHECK(impl_->has_commit && info.step > impl_->committed.step);
  FOREBAY_CHECK(impl_->AllTilesAre(TileProgress::kCommitted));
  return impl_->Publish(info, /*changes_tiles=*/false, before_record);
}

absl::Status TensorStore::Impl::Publish(const CommitInfo& info, bool changes_tiles,
                                        const std::function<absl::Status()>& before_record) {
  CommitRecord next;
  FOREBAY_ASSIGN_OR_RETURN(next.trainer, TrainerText(info.trainer));
  next.uuid = manifest.uuid;
  next.manifest_hash = manifest_hash;
  next.sequence = record.sequence + 1;
  next.step = info.step;
  next.slot = changes_tiles ? working_slot() : committed_slot();
  next.previous_hash = record_hash;
  next.seals_root = changes_tiles ? seals[next.slot].Close(next.sequence) : record.seals_root;
  const auto block = std::make_unique<RecordBlock>();
  const uint64_t hash = EncodeCommitRecord(next, block->bytes);

  // Data first, then the record that says it is there. A file that lost its name would take the
  // step with it, so none is published then.
  absl::Status status = CheckFiles(committed.step);
  if (status.ok() && changes_tiles) {
    seals[next.slot].SetRecord(block->bytes);
    status = WriteSeals(next.slot);
    if (status.ok()) status = FlushData();
  }
  if (status.ok() && before_record) status = before_record();
  if (status.ok()) status = WriteCopies(block->bytes);
  if (status.ok()) status = CheckFiles(info.step);
  if (!status.ok()) {
    failure = status;
    return Annotate(status, fmt::format("committing step {} to {} failed", info.step, Where()));
  }
  const std::lock_guard guard(slots_mutex);
  record = std::move(next);
  record_hash = hash;
  committed = info;
  has_commit = true;
  if (!changes_tiles) return absl::OkStatus();
  ++round;
  for (int i = 0; i < tiles.num_tiles(); ++i) {
    weights_progress[i].store(TileProgress::kCommitted, std::memory_order_release);
    state_progress[i].store(TileProgress::kCommitted, std::memory_order_release);
  }
  return absl::OkStatus();
}

}  // namespace forebay
