#include "forebay/swap/tensor_store.h"

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/swap/store_lock.h"
#include "forebay/swap/tensor_store_impl.h"

namespace forebay {
namespace {

constexpr char kManifestName[] = "manifest.json";
constexpr char kWeightsName[] = "weights.fbs";
constexpr char kStateName[] = "state.fbs";
constexpr char kGradientsName[] = "gradients.fbs";
constexpr char kCommitName[] = "commit.fbs";
constexpr char kLockName[] = "lock";
constexpr int64_t kManifestBytesMax = int64_t{64} << 20;
constexpr int64_t kCommitFileBytes = 2 * kCommitRecordBytes;

struct alignas(kIoAlignBytes) RecordBlock {
  std::array<std::byte, kCommitRecordBytes> bytes = {};
};

absl::StatusOr<StoreUuid> NewUuid() {
  StoreUuid uuid;
  if (::getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    return EnvironmentError("the kernel gave no random bytes for the store's identity: " +
                            ErrnoText(errno));
  }
  return uuid;
}

}  // namespace

// ---- Files

std::vector<TensorStore::Impl::FileSpec> TensorStore::Impl::FileSpecs() {
  return {{kWeightsName, 2 * tiles.weight_area_bytes(), &weights_file},
          {kStateName, 2 * tiles.state_area_bytes(), &state_file},
          {kCommitName, kCommitFileBytes, &commit_file}};
}

absl::Status TensorStore::Impl::AddFile(DirectFile file, const std::string& path, int& number) {
  FOREBAY_RETURN_IF_ERROR(LockOpenFile(file.fd.get(), path));
  if (!file.direct) why_not_direct = file.why_not_direct;
  number = engine->AddFile(std::move(file.fd), path);
  files.push_back(number);
  return absl::OkStatus();
}

absl::Status TensorStore::Impl::OpenFiles(bool create) {
  for (const FileSpec& spec : FileSpecs()) {
    const std::string path = JoinPath(directory, spec.name);
    if (!create) {
      const absl::StatusOr<int64_t> size_bytes = FileSize(path);
      if (!size_bytes.ok() || *size_bytes != spec.size_bytes) {
        return CorruptError(fmt::format(
            "the store's file '{}' {}, but the manifest says {} bytes. Restore it from a copy, or "
            "start the run again",
            path, size_bytes.ok() ? fmt::format("has {} bytes", *size_bytes) : "is missing",
            spec.size_bytes));
      }
    }
    FOREBAY_ASSIGN_OR_RETURN(DirectFile file,
                             OpenDirectFile(path, {.create = create,
                                                   .size_bytes = create ? spec.size_bytes : 0,
                                                   .reserve = reserve_space,
                                                   .direct = engine->direct()}));
    FOREBAY_RETURN_IF_ERROR(AddFile(std::move(file), path, *spec.number));
  }
  return absl::OkStatus();
}

absl::Status TensorStore::Impl::FlushAll() {
  for (const int file : files) FOREBAY_RETURN_IF_ERROR(engine->Flush(file));
  return absl::OkStatus();
}

void TensorStore::Impl::Start(IoOp& op, IoKind kind, IoClass io_class, int file,
                              int64_t offset_bytes, std::span<std::byte> buffer) {
  op.kind = kind;
  op.io_class = io_class;
  op.file = file;
  op.offset_bytes = offset_bytes;
  op.buffer = buffer;
  engine->Submit(op);
}

absl::Status TensorStore::Impl::RunOp(IoKind kind, int file, int64_t offset_bytes,
                                      std::span<std::byte> buffer) {
  IoOp op;
  Start(op, kind, kind == IoKind::kRead ? IoClass::kDemandRead : IoClass::kWriteBack, file,
        offset_bytes, buffer);
  return engine->Wait(op);
}

// ---- Commit and recovery

absl::Status TensorStore::Impl::ReadCopies(DecodedCopy& first, DecodedCopy& second) {
  const std::string path = JoinPath(directory, kCommitName);
  const auto block = std::make_unique<RecordBlock>();
  for (DecodedCopy* copy : {&first, &second}) {
    const int64_t offset_bytes = copy == &first ? 0 : kCommitRecordBytes;
    FOREBAY_RETURN_IF_ERROR(RunOp(IoKind::kRead, commit_file, offset_bytes, block->bytes));
    FOREBAY_ASSIGN_OR_RETURN(*copy, DecodeCommitRecord(block->bytes, path));
  }
  return absl::OkStatus();
}

// The first copy is durable before the second is touched, so at every moment at least one of them
// is whole.
absl::Status TensorStore::Impl::WriteCopies(const CommitRecord& new_record, uint64_t& hash) {
  const auto block = std::make_unique<RecordBlock>();
  hash = EncodeCommitRecord(new_record, block->bytes);
  for (const int64_t offset_bytes : {int64_t{0}, kCommitRecordBytes}) {
    FOREBAY_RETURN_IF_ERROR(RunOp(IoKind::kWrite, commit_file, offset_bytes, block->bytes));
    FOREBAY_RETURN_IF_ERROR(engine->Flush(commit_file));
  }
  return absl::OkStatus();
}

absl::Status TensorStore::Impl::RecoverCommit() {
  const std::string path = JoinPath(directory, kCommitName);
  DecodedCopy first;
  DecodedCopy second;
  FOREBAY_RETURN_IF_ERROR(ReadCopies(first, second));
  FOREBAY_ASSIGN_OR_RETURN(const std::optional<DecodedCopy> chosen,
                           ChooseCommit(first, second, manifest.uuid, path));
  if (!chosen.has_value()) return absl::OkStatus();
  absl::StatusOr<Json> trainer = ParseJson(chosen->record.trainer, path);
  if (!trainer.ok()) {
    return CorruptError(
        fmt::format("the commit record {} of '{}' carries no valid trainer state ({}). Restore the "
                    "store from a copy, or start again from "
                    "the last exported model",
                    chosen->record.sequence, path, MessageOf(trainer.status())));
  }
  record = chosen->record;
  record_hash = chosen->hash;
  committed = {record.step, *std::move(trainer)};
  has_commit = true;
  // Both copies must hold this record before anything else is written. Else the next commit could
  // tear the only copy of it and fall back to the record before, whose slot was overwritten
  // meanwhile.
  const bool both_current = first.state == CopyState::kGood && second.state == CopyState::kGood &&
                            first.hash == second.hash;
  if (both_current) return absl::OkStatus();
  const bool repair_first = first.state != CopyState::kGood || first.hash != record_hash;
  const auto block = std::make_unique<RecordBlock>();
  EncodeCommitRecord(record, block->bytes);
  FOREBAY_RETURN_IF_ERROR(
      RunOp(IoKind::kWrite, commit_file, repair_first ? 0 : kCommitRecordBytes, block->bytes));
  return engine->Flush(commit_file);
}

absl::Status TensorStore::Commit(const CommitInfo& info) {
  Impl& impl = *impl_;
  if (!impl.failure.ok()) {
    return Annotate(
        impl.failure,
        fmt::format("the store '{}' takes no commit any more, because an earlier one failed",
                    impl.directory));
  }
  for (int i = 0; i < impl.tiles.num_tiles(); ++i) {
    FOREBAY_CHECK(impl.weights_progress[i].load(std::memory_order_acquire) ==
                  TileProgress::kWritten);
    FOREBAY_CHECK(impl.state_progress[i].load(std::memory_order_acquire) == TileProgress::kWritten);
  }
  CommitRecord record;
  try {
    record.trainer = info.trainer.dump();
  } catch (const Json::exception& error) {
    return UsageError(fmt::format("the trainer's state cannot be committed: {}", error.what()));
  }
  if (static_cast<int64_t>(record.trainer.size()) > kCommitTrainerBytesMax) {
    return UsageError(
        fmt::format("the trainer's state has {} bytes of JSON; a commit holds {}. Shorten what it "
                    "records (names, paths)",
                    record.trainer.size(), kCommitTrainerBytesMax));
  }
  record.uuid = impl.manifest.uuid;
  record.sequence = impl.record.sequence + 1;
  record.step = info.step;
  record.slot = impl.working_slot();
  record.previous_hash = impl.record_hash;

  // Data first, then the record that says it is there.
  uint64_t hash = 0;
  absl::Status status = impl.engine->Flush(impl.weights_file);
  if (status.ok()) status = impl.engine->Flush(impl.state_file);
  if (status.ok()) status = impl.WriteCopies(record, hash);
  if (!status.ok()) {
    impl.failure = status;
    return Annotate(status,
                    fmt::format("committing step {} to '{}' failed", info.step, impl.directory));
  }
  const std::lock_guard guard(impl.slots_mutex);
  impl.record = std::move(record);
  impl.record_hash = hash;
  impl.committed = info;
  impl.has_commit = true;
  for (int i = 0; i < impl.tiles.num_tiles(); ++i) {
    impl.weights_progress[i].store(TileProgress::kCommitted, std::memory_order_release);
    impl.state_progress[i].store(TileProgress::kCommitted, std::memory_order_release);
  }
  return absl::OkStatus();
}

// ---- Creating and opening

namespace {

constexpr const char* kDataNames[] = {kWeightsName, kStateName, kGradientsName, kCommitName};

void RemoveStoreFiles(const std::string& directory) {
  ::unlink(JoinPath(directory, kManifestName).c_str());
  for (const char* name : kDataNames) ::unlink(JoinPath(directory, name).c_str());
}

// Takes the lock and makes sure that the folder is free for a new store.
absl::StatusOr<UniqueFd> ClaimFolder(const std::string& directory) {
  FOREBAY_RETURN_IF_ERROR(MakeDirectories(directory));
  const auto holds_store = [&directory] {
    return UsageError(
        fmt::format("'{}' already holds a store, which is not overwritten. Continue it with "
                    "--resume, remove it with 'forebay clean', or "
                    "choose another folder",
                    directory));
  };
  const std::string manifest_path = JoinPath(directory, kManifestName);
  const std::string lock_path = JoinPath(directory, kLockName);
  if (FileExists(manifest_path)) return holds_store();
  // Data files beside a lock are the rest of a creation that was killed. Without a lock they are
  // somebody else's.
  const bool had_lock = FileExists(lock_path);
  for (const char* name : kDataNames) {
    if (!had_lock && FileExists(JoinPath(directory, name))) {
      return UsageError(
          fmt::format("'{}' holds a file '{}' that no store of forebay made. Move it away or "
                      "choose another folder",
                      directory, name));
    }
  }
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd lock, TakeStoreLock(lock_path));
  if (FileExists(manifest_path)) return holds_store();  // created while this waited for the lock
  RemoveStoreFiles(directory);
  return lock;
}

absl::Status CheckFreeSpace(const std::string& directory, int64_t needed_bytes) {
  FOREBAY_ASSIGN_OR_RETURN(const int64_t free_bytes, FreeSpace(directory));
  if (needed_bytes <= free_bytes) return absl::OkStatus();
  return DoesNotFitError(
      fmt::format("the store needs {} ({} bytes) in '{}', but {} ({} bytes) are free there. Free "
                  "{}, or choose another folder (--nvme)",
                  FormatBytes(needed_bytes), needed_bytes, directory, FormatBytes(free_bytes),
                  free_bytes, FormatBytes(needed_bytes - free_bytes)));
}

}  // namespace

TensorStore::TensorStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TensorStore::~TensorStore() = default;

int64_t TensorStore::DiskBytes(const TileMap& tiles, int64_t gradient_area_bytes) {
  return 2 * (tiles.weight_area_bytes() + tiles.state_area_bytes()) +
         RoundUpToBlock(gradient_area_bytes) + kCommitFileBytes;
}

absl::StatusOr<std::unique_ptr<TensorStore>> TensorStore::Create(const StoreOptions& options,
                                                                 const Inventory& inventory,
                                                                 Engine* engine) {
  FOREBAY_CHECK(engine != nullptr && inventory.num_padded_elems() > 0);
  StoreManifest manifest;
  FOREBAY_ASSIGN_OR_RETURN(manifest.uuid, NewUuid());
  manifest.layout = options.layout;
  manifest.tile_elems = options.tile_elems;
  manifest.inventory = inventory;
  const std::string manifest_text = EncodeManifest(manifest);

  FOREBAY_ASSIGN_OR_RETURN(UniqueFd lock, ClaimFolder(options.directory));
  auto impl = std::make_unique<Impl>(options.directory, engine, std::move(manifest));
  impl->lock = std::move(lock);
  impl->reserve_space = !options.unfilled;
  impl->has_commit = options.unfilled;
  const int64_t needed_bytes =
      options.unfilled ? 0 : DiskBytes(impl->tiles, options.gradient_area_bytes);
  absl::Status status = CheckFreeSpace(options.directory, needed_bytes);
  if (status.ok()) status = impl->OpenFiles(/*create=*/true);
  if (status.ok()) status = impl->EnsureGradientArea(options.gradient_area_bytes);
  if (status.ok()) status = impl->FlushAll();
  // Last, because the manifest is what makes these files a store.
  if (status.ok()) {
    status = WriteFileAtomically(JoinPath(options.directory, kManifestName), manifest_text);
  }
  if (!status.ok()) {
    RemoveStoreFiles(options.directory);
    ::unlink(JoinPath(options.directory, kLockName).c_str());
    return Annotate(status, "creating a store");
  }
  return std::unique_ptr<TensorStore>(new TensorStore(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<TensorStore>> TensorStore::Open(const std::string& directory,
                                                               Engine* engine) {
  FOREBAY_CHECK(engine != nullptr);
  const std::string manifest_path = JoinPath(directory, kManifestName);
  if (!FileExists(manifest_path)) {
    return BadInputError(
        fmt::format("'{}' holds no store ({} is missing). Name the folder of a run that was "
                    "started with its state on NVMe",
                    directory, kManifestName));
  }
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd lock, TakeStoreLock(JoinPath(directory, kLockName)));
  FOREBAY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(manifest_path, kManifestBytesMax));
  FOREBAY_ASSIGN_OR_RETURN(StoreManifest manifest, DecodeManifest(text, manifest_path));
  auto impl = std::make_unique<Impl>(directory, engine, std::move(manifest));
  impl->lock = std::move(lock);
  FOREBAY_RETURN_IF_ERROR(impl->OpenFiles(/*create=*/false));
  FOREBAY_RETURN_IF_ERROR(impl->RecoverCommit());
  return std::unique_ptr<TensorStore>(new TensorStore(std::move(impl)));
}

// ---- The area for gradients

// Neither the file nor its name is flushed: what a crash takes of them, the next call makes again.
absl::Status TensorStore::Impl::EnsureGradientArea(int64_t size_bytes) {
  const int64_t needed_bytes = RoundUpToBlock(size_bytes);
  if (needed_bytes <= gradient_area_bytes) return absl::OkStatus();
  const std::string path = JoinPath(directory, kGradientsName);
  // Through a descriptor of its own, so that an area in use stays in use when this fails.
  FOREBAY_ASSIGN_OR_RETURN(DirectFile file, OpenDirectFile(path, {.create = !FileExists(path),
                                                                  .size_bytes = needed_bytes,
                                                                  .reserve = reserve_space,
                                                                  .direct = engine->direct()}));
  if (gradients_file >= 0) {
    engine->RemoveFile(gradients_file);  // and with it the lock on the file
    std::erase(files, gradients_file);
    gradients_file = -1;
    gradient_area_bytes = 0;
  }
  FOREBAY_RETURN_IF_ERROR(AddFile(std::move(file), path, gradients_file));
  gradient_area_bytes = needed_bytes;
  return absl::OkStatus();
}

absl::Status TensorStore::EnsureGradientArea(int64_t size_bytes) {
  FOREBAY_RETURN_IF_ERROR(CheckGradientArea(size_bytes));
  return Annotate(impl_->EnsureGradientArea(size_bytes),
                  fmt::format("making room for gradients in '{}'", impl_->directory));
}

absl::Status TensorStore::CheckGradientArea(int64_t size_bytes) const {
  const std::string path = JoinPath(impl_->directory, kGradientsName);
  const int64_t missing_bytes = RoundUpToBlock(size_bytes) - FileSize(path).value_or(0);
  if (missing_bytes <= 0) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const int64_t free_bytes, FreeSpace(impl_->directory));
  if (missing_bytes <= free_bytes) return absl::OkStatus();
  return DoesNotFitError(fmt::format(
      "gradients that do not fit in RAM need {} ({} bytes) more in '{}', but {} ({} bytes) are "
      "free "
      "there. Free {}, or use more memory (--ram), so that fewer gradients have to wait on disk",
      FormatBytes(missing_bytes), missing_bytes, impl_->directory, FormatBytes(free_bytes),
      free_bytes, FormatBytes(missing_bytes - free_bytes)));
}

absl::StatusOr<int64_t> TensorStore::Remove(const std::string& directory) {
  const std::string lock_path = JoinPath(directory, kLockName);
  if (!FileExists(lock_path)) {
    return BadInputError(fmt::format(
        "'{}' holds no store of forebay ('{}' is missing), so nothing of it was removed", directory,
        kLockName));
  }
  FOREBAY_ASSIGN_OR_RETURN(const UniqueFd lock, TakeStoreLock(lock_path));
  int64_t freed_bytes = 0;
  for (const char* name : kDataNames) {
    const std::string path = JoinPath(directory, name);
    freed_bytes += FileExists(path) ? FileSize(path).value_or(0) : 0;
  }
  RemoveStoreFiles(directory);
  ::unlink(lock_path.c_str());
  // Fails where something else is in the folder, which then stays.
  ::rmdir(directory.c_str());
  return freed_bytes;
}

const Inventory& TensorStore::inventory() const {
  return impl_->manifest.inventory;
}
const TileMap& TensorStore::tiles() const {
  return impl_->tiles;
}
bool TensorStore::has_commit() const {
  return impl_->has_commit;
}
const CommitInfo& TensorStore::committed() const {
  FOREBAY_CHECK(impl_->has_commit);
  return impl_->committed;
}
int64_t TensorStore::gradient_area_bytes() const {
  return impl_->gradient_area_bytes;
}

const std::string& TensorStore::directory() const {
  return impl_->directory;
}
bool TensorStore::direct_io() const {
  return impl_->why_not_direct.empty();
}
const std::string& TensorStore::why_not_direct() const {
  return impl_->why_not_direct;
}
Engine& TensorStore::engine() {
  return *impl_->engine;
}

}  // namespace forebay
