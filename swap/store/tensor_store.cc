#include "forebay/swap/store/tensor_store.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file_space.h"
#include "forebay/swap/store/store_lock.h"
#include "forebay/swap/store/store_state.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {
namespace {

constexpr char kWhyHoles[] = "reserving what a copy of the store left out of its files as holes";

// `scratch_bytes` with one entry for each stripe, in whole blocks.
StripeBytes ScratchParts(const StripeBytes& scratch_bytes, int num_stripes) {
  FOREBAY_CHECK(scratch_bytes.empty() || static_cast<int>(scratch_bytes.size()) == num_stripes);
  StripeBytes parts = scratch_bytes;
  parts.resize(static_cast<size_t>(num_stripes));
  for (int64_t& bytes : parts) bytes = RoundUpToBlock(bytes);
  return parts;
}

}  // namespace

// ---- Space

absl::Status TensorStore::ReserveSpace() {
  for (int index = 0; index < impl_->tiles.num_stripes(); ++index) {
    for (const Impl::FileSpec& spec : impl_->FilesOf(index)) {
      // By its name, as the engine has the descriptor; the lock stays with that one.
      const auto reserved = OpenDirectFile(
          JoinPath(impl_->directories[index], spec.name),
          {.size_bytes = spec.size_bytes, .reserve = impl_->reserve_space, .direct = false});
      FOREBAY_RETURN_IF_ERROR(Annotate(reserved.status(), kWhyHoles));
    }
  }
  return absl::OkStatus();
}

absl::Status TensorStore::CheckSpace() const {
  StripeBytes missing_bytes(impl_->directories.size());
  for (int index = 0; index < impl_->tiles.num_stripes(); ++index) {
    for (const Impl::FileSpec& spec : impl_->FilesOf(index)) {
      const std::string path = JoinPath(impl_->directories[index], spec.name);
      FOREBAY_ASSIGN_OR_RETURN(const int64_t file_bytes, MissingFileSpace(path, spec.size_bytes));
      missing_bytes[index] += file_bytes;
    }
  }
  return Annotate(CheckFreeSpace(impl_->directories, missing_bytes, "they need another",
                                 "copy the store to another disk"),
                  kWhyHoles);
}

// All at once, so that devices work side by side. The first error.
absl::Status TensorStore::Impl::Flush(std::span<const int> numbers) {
  FOREBAY_CHECK(access == StoreAccess::kReadWrite);
  std::vector<IoOp> ops(numbers.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    ops[i].kind = IoKind::kFlush;
    ops[i].file = numbers[i];
    engine->Submit(ops[i]);
  }
  absl::Status status;
  for (IoOp& op : ops) status.Update(engine->Wait(op));
  return status;
}

void TensorStore::Impl::Start(IoOp& op, IoKind kind, IoClass io_class, int file,
                              int64_t offset_bytes, std::span<std::byte> buffer) {
  if (buffer.empty()) return;  // a state of no planes: done before it begins
  FOREBAY_CHECK(kind == IoKind::kRead || access == StoreAccess::kReadWrite);
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
  Start(op, kind, IoClass::kDemand, file, offset_bytes, buffer);
  return engine->Wait(op);
}

absl::Status TensorStore::Impl::ReadPatiently(int file, int64_t offset_bytes,
                                              std::span<std::byte> buffer) {
  constexpr int kTries = 3;
  constexpr std::chrono::milliseconds kPause(2);
  // A reader does without a copy that is not there (OpenFile).
  if (file < 0) return CorruptError("a copy of what the store's metadata is in is missing");
  absl::Status status = RunOp(IoKind::kRead, file, offset_bytes, buffer);
  for (int i = 1; i < kTries && ExitCodeOf(status) == ExitCode::kStorage; ++i) {
    std::this_thread::sleep_for(kPause);
    status = RunOp(IoKind::kRead, file, offset_bytes, buffer);
  }
  return status;
}

// ---- Creating and opening

TensorStore::TensorStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TensorStore::~TensorStore() = default;

int64_t TensorStore::LargestFileBytes(const TileMap& tiles, int num_slots,
                                      const StripeBytes& scratch_bytes, StoreFiles files) {
  int64_t largest_bytes = 0;
  for (const int64_t bytes : scratch_bytes) largest_bytes = std::max(largest_bytes, bytes);
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    largest_bytes =
        std::max({largest_bytes, files.weights ? num_slots * tiles.weight_area_bytes(stripe) : 0,
                  files.state ? num_slots * tiles.state_area_bytes(stripe) : 0});
  }
  return largest_bytes;
}

StripeBytes TensorStore::DiskBytes(const TileMap& tiles, int num_slots,
                                   const StripeBytes& scratch_bytes, StoreFiles files) {
  StripeBytes bytes = ScratchParts(scratch_bytes, tiles.num_stripes());
  for (int stripe = 0; stripe < tiles.num_stripes(); ++stripe) {
    if (files.weights) bytes[stripe] += num_slots * tiles.weight_area_bytes(stripe);
    if (files.state) bytes[stripe] += num_slots * tiles.state_area_bytes(stripe);
    if (!files.records) continue;
    bytes[stripe] +=
        kNumCopies * (num_slots * TileSeals::TableBytes(tiles, stripe) + kCommitFileBytes);
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<TensorStore>> TensorStore::Create(const StoreOptions& options,
                                                                 const Inventory& inventory,
                                                                 Engine* engine) {
  FOREBAY_CHECK(engine != nullptr && inventory.num_padded_elems() > 0);
  FOREBAY_CHECK(options.num_slots >= 1 && options.num_slots <= kMostSlots);
  const size_t num_stripes = options.directories.size();
  FOREBAY_CHECK(options.stripe_weights.empty() || options.stripe_weights.size() == num_stripes);
  StoreManifest manifest;
  if (options.uuid.has_value()) {
    manifest.uuid = *options.uuid;
  } else {
    FOREBAY_ASSIGN_OR_RETURN(manifest.uuid, NewStoreUuid());
  }
  manifest.layout = options.layout;
  manifest.moment_set = options.moment_set;
  manifest.tile_elems = options.tile_elems;
  manifest.num_slots = options.num_slots;
  manifest.inventory = inventory;
  manifest.stripe_weights = options.stripe_weights;
  if (manifest.stripe_weights.empty()) manifest.stripe_weights.assign(num_stripes, 1);

  std::vector<StoreFolder> folders;
  const StoreFiles& files = options.files;
  const bool any_file = files.weights || files.state || Total(options.scratch_bytes) > 0;
  FOREBAY_CHECK(files.records || options.num_slots == 1);
  FOREBAY_CHECK(!files.records || (files.weights && files.state));
  if (any_file) {
    FOREBAY_ASSIGN_OR_RETURN(folders, ClaimFolders(options.directories));
  } else {
    for (const std::string& directory : options.directories) folders.push_back({directory});
  }
  auto impl = std::make_unique<Impl>(std::move(folders), engine, std::move(manifest));
  impl->on_disk = files;
  impl->first_values = options.first_values;
  impl->reserve_space = !options.unfilled;
  impl->has_commit = options.unfilled;
  impl->unfilled = options.unfilled;
  impl->is_being_created = files.records;  // others keep their mark: a crash leaves a rest
  impl->finished_by_owner = options.finished_by_owner;
  StripeBytes needed_bytes =
      DiskBytes(impl->tiles, options.num_slots, options.scratch_bytes, files);
  if (options.unfilled) needed_bytes.assign(num_stripes, 0);
  absl::Status status;
  if (any_file) {
    status = CheckFreeSpace(options.directories, needed_bytes, "the store needs",
                            "choose another folder (--nvme)");
  }
  for (const std::string& directory : options.directories) {
    if (status.ok() && any_file && options.write_owner) status = options.write_owner(directory);
  }
  if (status.ok()) status = impl->CreateFiles();
  if (status.ok() && any_file) status = impl->EnsureScratchArea(options.scratch_bytes);
  if (status.ok()) status = impl->Flush(impl->files);
  if (status.ok()) status = impl->WriteManifests();
  if (!status.ok()) {
    impl->RemoveCreated();
    return Annotate(status, "creating a store");
  }
  return std::unique_ptr<TensorStore>(new TensorStore(std::move(impl)));
}

void TensorStore::Impl::RemoveCreated() {
  for (size_t i = stripes.size(); i-- > 0;) {  // one may have been made on the way to another
    const UniqueFd lock = std::move(stripes[i].lock);
    if (lock.get() < 0) continue;  // it was done
    // What stays has its lock, so that the next creation, or 'forebay clean', can remove it.
    if (RemoveStoreFiles(stripes[i].directory).ok()) RemoveLock(stripes[i].directory);
    RemoveMade(stripes[i].made);
  }
}

void TensorStore::RemoveCreated() {
  impl_->RemoveCreated();
}

namespace {

// Before memory is made for the tiles that a manifest speaks of: the files have to hold as many.
absl::Status CheckHoldsTiles(const OpenedFolders& opened) {
  const StoreManifest& manifest = opened.manifest;
  // One slot is enough: a file that lost its end may still have the other.
  int64_t least_bytes = 0;
  for (const LayerSpec& layer : manifest.inventory.layers()) {
    least_bytes += layer.num_elems * (layer.raw ? 1 : WeightBytesPerElem(manifest.layout));
  }
  int64_t found_bytes = 0;
  std::string paths;
  for (const StoreFolder& folder : opened.folders) {
    const std::string path = JoinPath(folder.directory, kWeightsName);
    found_bytes += FileSize(path).value_or(0);
    paths += fmt::format("{}'{}'", paths.empty() ? "" : " and ", path);
  }
  if (found_bytes >= least_bytes) return absl::OkStatus();
  return CorruptError(
      fmt::format("the store's file {} has {} bytes, but the manifest speaks of weights of {} "
                  "bytes. Put back the files that belong together, or restore the store from a "
                  "copy",
                  paths, found_bytes, least_bytes));
}

}  // namespace

// With the locks on all its files, but without a look at what is committed.
absl::StatusOr<std::unique_ptr<TensorStore>> TensorStore::OpenUncommitted(
    const std::vector<std::string>& directories, Engine* engine, const std::string& uuid,
    TileFiles tile_files, StoreAccess access) {
  FOREBAY_CHECK(engine != nullptr && !directories.empty());
  FOREBAY_ASSIGN_OR_RETURN(OpenedFolders opened, OpenFolders(directories, uuid, access));
  FOREBAY_RETURN_IF_ERROR(CheckHoldsTiles(opened));
  auto impl = std::make_unique<Impl>(std::move(opened.folders), engine, std::move(opened.manifest));
  impl->access = access;
  FOREBAY_RETURN_IF_ERROR(impl->OpenFiles(tile_files));
  return std::unique_ptr<TensorStore>(new TensorStore(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<TensorStore>> TensorStore::Open(
    const std::vector<std::string>& directories, Engine* engine, const std::string& uuid,
    StoreAccess access) {
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                           OpenUncommitted(directories, engine, uuid, TileFiles::kWhole, access));
  FOREBAY_RETURN_IF_ERROR(access == StoreAccess::kBesideWriter ? store->impl_->FollowCommit()
                                                               : store->impl_->RecoverCommit());
  if (access == StoreAccess::kReadWrite && store->has_commit()) {
    FOREBAY_RETURN_IF_ERROR(store->FinishCreation());
  }
  return store;
}

absl::Status TensorStore::FinishCreation() {
  FOREBAY_CHECK(has_commit());
  if (!impl_->on_disk.records) return absl::OkStatus();
  for (const std::string& directory : impl_->directories) {
    FOREBAY_RETURN_IF_ERROR(UnmarkCreating(directory));
  }
  impl_->is_being_created = false;
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TensorStore::Remove(const std::vector<std::string>& directories) {
  return RemoveFolders(directories);
}

// ---- The scratch area

// Neither the files nor their names are flushed: what a crash takes of them, the next call makes
// again. They are opened, and locked where they are new, before any of them is put to use, so that
// an area in use stays in use when this fails; space that was reserved by then stays with its file.
// A part that grows holds the lock on its file itself, and has to let go of it first.
absl::Status TensorStore::Impl::EnsureScratchArea(const StripeBytes& size_bytes) {
  const StripeBytes needed_bytes = ScratchParts(size_bytes, tiles.num_stripes());
  std::vector<std::optional<DirectFile>> opened(stripes.size());
  for (size_t i = 0; i < stripes.size(); ++i) {
    if (needed_bytes[i] <= scratch_bytes[i]) continue;
    const std::string path = JoinPath(directories[i], kScratchName);
    FOREBAY_ASSIGN_OR_RETURN(const bool is_there, ProbePath(path));
    FOREBAY_ASSIGN_OR_RETURN(opened[i], OpenDirectFile(path, {.create = !is_there,
                                                              .size_bytes = needed_bytes[i],
                                                              .reserve = reserve_space,
                                                              .direct = engine->direct()}));
    if (stripes[i].scratch_file < 0) {
      FOREBAY_RETURN_IF_ERROR(LockOpenFile(opened[i]->fd.get(), path));
    }
  }
  for (size_t i = 0; i < stripes.size(); ++i) {
    if (!opened[i].has_value()) continue;
    int& number = stripes[i].scratch_file;
    if (number >= 0) {
      engine->RemoveFile(number);  // and with it the lock on the file
      std::erase(files, number);
      std::erase_if(known_files, [&](const KnownFile& file) { return file.number == number; });
      number = -1;
      scratch_bytes[i] = 0;
    }
    FOREBAY_RETURN_IF_ERROR(
        AddFile(*std::move(opened[i]), JoinPath(directories[i], kScratchName), number));
    scratch_bytes[i] = needed_bytes[i];
  }
  return absl::OkStatus();
}

absl::Status TensorStore::EnsureScratchArea(const StripeBytes& size_bytes) {
  FOREBAY_RETURN_IF_ERROR(CheckScratchArea(size_bytes));
  return Annotate(impl_->EnsureScratchArea(size_bytes),
                  fmt::format("making a scratch area in {}", impl_->Where()));
}

absl::Status TensorStore::CheckScratchArea(const StripeBytes& size_bytes) const {
  if (!impl_->reserve_space || Total(size_bytes) == 0) return absl::OkStatus();
  StripeBytes missing_bytes = ScratchParts(size_bytes, impl_->tiles.num_stripes());
  for (size_t i = 0; i < missing_bytes.size(); ++i) {
    const std::string path = JoinPath(impl_->directories[i], kScratchName);
    // If there is no such file, or none that can be looked at, all of it.
    missing_bytes[i] = MissingFileSpace(path, missing_bytes[i]).value_or(missing_bytes[i]);
  }
  return CheckFreeSpace(impl_->directories, missing_bytes,
                        "what waits on disk for its use in a step needs another",
                        "use more memory (--ram), so that fewer gradients have to wait there, or "
                        "keep activations in it (--set=activations_tier=ram)");
}

const Inventory& TensorStore::inventory() const {
  return impl_->manifest.inventory;
}
const TileMap& TensorStore::tiles() const {
  return impl_->tiles;
}
int TensorStore::num_slots() const {
  return impl_->manifest.num_slots;
}
bool TensorStore::unfilled() const {
  return impl_->unfilled;
}
StoreFiles TensorStore::files() const {
  return impl_->on_disk;
}
void TensorStore::ForgetFirstValues() {
  impl_->first_values = nullptr;
}
bool TensorStore::has_commit() const {
  return impl_->has_commit;
}
const CommitInfo& TensorStore::committed() const {
  FOREBAY_CHECK(impl_->has_commit);
  return impl_->committed;
}
uint32_t TensorStore::committed_slot() const {
  FOREBAY_CHECK(impl_->has_commit);
  return impl_->committed_slot();
}
const StripeBytes& TensorStore::scratch_bytes() const {
  return impl_->scratch_bytes;
}

const std::vector<std::string>& TensorStore::directories() const {
  return impl_->directories;
}
const StoreUuid& TensorStore::uuid() const {
  return impl_->manifest.uuid;
}
bool TensorStore::direct_io() const {
  return impl_->why_not_direct.empty();
}
const std::string& TensorStore::why_not_direct() const {
  return impl_->why_not_direct;
}
const std::string& TensorStore::space_note() const {
  return impl_->space_note;
}
const std::vector<std::string>& TensorStore::notes() const {
  return impl_->notes;
}
std::vector<std::string> TensorStore::TakeNotes() {
  return std::exchange(impl_->notes, {});
}
Engine& TensorStore::engine() {
  return *impl_->engine;
}

}  // namespace forebay
