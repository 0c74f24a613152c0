// The inside of TensorStore, shared by its source files: tensor_store.cc (creating, opening,
// removing), tensor_store_files.cc (its files, and what becomes of them), tensor_store_space.cc
// (space that is not written yet), tensor_store_commit.cc (committing and recovering),
// tensor_store_repair.cc, tensor_store_scrub.cc, tensor_store_seals.cc (checksums) and
// tensor_store_tiles.cc (tiles and tensors). Not for use elsewhere.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/round_up.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/records/store_manifest.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

inline int64_t RoundUpToBlock(int64_t bytes) {
  return RoundUp(bytes, kIoAlignBytes);
}

// The record, and the block at kSpareBlockOffsetBytes.
inline constexpr int64_t kCommitFileBytes = 2 * kCommitRecordBytes;

// What has happened to one half (weights or state) of a tile since the last commit.
enum class TileProgress : uint8_t {
  kCommitted,
  kWriting,  // for the first time
  kWritten,
  kRewriting,  // over what was written before
};

// A commit record as direct I/O moves it.
struct alignas(kIoAlignBytes) RecordBlock {
  std::array<std::byte, kCommitRecordBytes> bytes = {};
};

// Whether a store is opened whose tiles may be in files that are too short or too long.
enum class TileFiles : uint8_t { kWhole, kAnyLength };

struct TensorStore::Impl {
  // One folder, and the numbers that its files have in the engine; -1: it has none.
  struct Stripe {
    std::string directory;
    UniqueFd lock;
    std::vector<std::string> made;               // as StoreFolder
    std::vector<std::string> damaged_manifests;  // as StoreFolder
    int weights_file = -1;
    int state_file = -1;
    int scratch_file = -1;
    std::array<int, kNumCopies> seals_files = {-1, -1};   // by copy
    std::array<int, kNumCopies> commit_files = {-1, -1};  // by copy
  };

  Impl(std::vector<StoreFolder> folders, Engine* store_engine, StoreManifest store_manifest)
      : engine(store_engine),
        manifest(std::move(store_manifest)),
        manifest_hash(HashOfManifest(manifest)),
        tiles(manifest.inventory, manifest.layout, manifest.tile_elems, manifest.stripe_weights,
              manifest.moment_set),
        scratch_bytes(folders.size()),
        weights_progress(tiles.tiles().size()),
        state_progress(tiles.tiles().size()),
        weights_round(tiles.tiles().size(), -1),
        state_round(tiles.tiles().size(), -1) {
    for (StoreFolder& folder : folders) {
      directories.push_back(folder.directory);
      Stripe& stripe = stripes.emplace_back();
      stripe.directory = std::move(folder.directory);
      stripe.lock = std::move(folder.lock);
      stripe.made = std::move(folder.made);
      stripe.damaged_manifests = std::move(folder.damaged_manifests);
    }
    for (int slot = 0; slot < manifest.num_slots; ++slot) {
      seals.emplace_back(tiles, manifest.uuid, static_cast<uint32_t>(slot));
    }
    // Nothing is committed yet, and the first writes go to slot A.
    record.slot = static_cast<uint32_t>(manifest.num_slots) - 1;
  }
  ~Impl() {
    for (const int file : files) engine->RemoveFile(file);
    if (!on_disk.records) RemoveCreated();
  }

  // A file of a stripe, and where the engine's number of it goes.
  struct FileSpec {
    const char* name = "";
    int64_t size_bytes = 0;
    int* number = nullptr;
    const char* other_copy = nullptr;  // the file that holds the same; nullptr: there is none
  };
  struct KnownFile;
  std::vector<FileSpec> FilesOf(int index);
  absl::Status CreateFiles();
  absl::Status OpenFiles(TileFiles tile_files);
  absl::Status OpenFile(int index, const FileSpec& spec);
  absl::Status RemakeFile(int index, const FileSpec& spec, bool is_missing);
  std::string LengthProblem(int index, const char* name, int64_t size_bytes) const;
  absl::Status CheckKinds();
  absl::Status CheckCopies();
  absl::Status CheckLengths(TileFiles tile_files);
  absl::Status RepairLengths();
  absl::Status AddFile(DirectFile file, const std::string& path, int& number);
  std::string ManifestText(int index) const;
  absl::Status WriteManifests();
  void NoteLinks(KnownFile& file, int64_t num_links);
  absl::Status CheckFiles(int64_t newest_step);
  void RemoveCreated();
  absl::Status EnsureScratchArea(const StripeBytes& size_bytes);
  struct FileRange {
    int file = -1;
    int64_t first_byte = 0;
    int64_t end_byte = 0;
  };
  std::vector<FileRange> SpareSpace() const;
  absl::Status TakeWrittenSpace();
  absl::Status Flush(std::span<const int> numbers);
  absl::Status FlushData();
  absl::Status CheckTakesCommits() const;
  absl::Status PublishOverwriting();
  absl::Status RecoverCommit();
  absl::Status CheckIsBeingCreated();
  absl::Status CheckRecord(const CommitRecord& found, const std::string& source) const;
  absl::StatusOr<std::vector<FolderCopies>> ReadCopies();
  absl::StatusOr<DecodedCopy> ReadCopy(const Stripe& stripe, int copy, absl::Status& unreadable);
  std::vector<int> CommitFiles(int copy) const;
  absl::Status WriteCopies(std::span<std::byte> record_bytes);
  absl::Status WriteCopy(int copy, std::span<std::byte> record_bytes);
  absl::Status RepairCopies(std::span<const FolderCopies> folders);
  absl::Status RepairManifests();
  void NoteMended(const std::string& problem);
  absl::StatusOr<RepairReport> Repair(
      MemoryBudget* budget, const std::function<void(int64_t done, int64_t all)>& progress);
  struct KnownCommit {
    std::optional<DecodedCopy> newest;
    bool some_lost = false;  // a folder has no whole copy
  };
  absl::StatusOr<KnownCommit> FindCommit();
  bool IsOfThisStore(const CommitRecord& found) const;
  std::optional<uint64_t> SequenceOfTiles(const CommitRecord& newest);
  void DropAbandoned(std::vector<DecodedCopy>& of_tables, const KnownCommit& known);
  static DecodedCopy InForce(DecodedCopy of_tables, const KnownCommit& known);
  absl::StatusOr<bool> MakeCommitted(const DecodedCopy& whole, const KnownCommit& known);
  std::optional<DecodedCopy> RecordOfTables(uint32_t slot);
  std::optional<DecodedCopy> RecordOfTables(uint32_t slot, int preferred_copy);
  absl::Status CommitAgain(const DecodedCopy& of_tables, const DecodedCopy& newest);
  absl::Status WriteSealsInTurn(uint32_t slot);
  absl::Status WriteSeals(uint32_t slot);
  absl::Status ReadSeals(uint32_t slot);
  absl::Status ReadTableCopy(int stripe, uint32_t slot, int copy);
  std::string SealsPath(int stripe, int copy) const {
    return JoinPath(directories[stripe], kSealsNames[copy]);
  }
  absl::Status RepairTable(int stripe, uint32_t slot, int copy);
  absl::Status ReadTable(int stripe, uint32_t slot);
  absl::Status RestoreTables();
  absl::Status RunOp(IoKind kind, int file, int64_t offset_bytes, std::span<std::byte> buffer);
  // For reads whose failure would cost a step: a drive may fail once and give the data then.
  absl::Status ReadPatiently(int file, int64_t offset_bytes, std::span<std::byte> buffer);
  // "'a', 'b'": for messages.
  std::string Where() const { return QuotedList(directories); }

  // The caller holds slots_mutex, or is the thread that commits.
  uint32_t committed_slot() const { return record.slot; }
  uint32_t working_slot() const { return manifest.num_slots > 1 ? 1 - record.slot : 0; }
  // Whether a snapshot reads a slot; for who writes and commits, of the working slot, without
  // slots_mutex. Snapshots are taken of the committed slot, and counted with the mutex held with
  // which a commit exchanges the slots: so none comes to the working slot any more, and its count
  // can but fall. Acquire: what was read of it was read before it is written over.
  bool IsRead(uint32_t slot) const { return snapshots[slot].load(std::memory_order_acquire) > 0; }
  bool AllTilesAre(TileProgress progress) const;
  absl::Status Publish(const CommitInfo& info, bool changes_tiles,
                       const std::function<absl::Status()>& before_record);
  // The slot that holds a tile's newest value. Requires: it is not being written over.
  uint32_t NewestSlot(const std::atomic<TileProgress>& progress) const;
  int64_t WeightOffset(const Tile& tile, uint32_t slot) const {
    return slot * tiles.weight_area_bytes(tile.stripe) + tile.weight_offset_bytes;
  }
  int64_t StateOffset(const Tile& tile, uint32_t slot) const {
    return slot * tiles.state_area_bytes(tile.stripe) + tile.state_offset_bytes;
  }
  // Where a slot's table lies, in either copy of the file.
  int64_t TableOffset(int stripe, uint32_t slot) const {
    return slot * TileSeals::TableBytes(tiles, stripe);
  }
  // Where a part of a plane lies.
  struct PartPlace {
    int file = -1;
    const char* name = "";  // of the file
    int64_t offset_bytes = 0;
    int64_t size_bytes = 0;
  };
  PartPlace PlaceOf(int tile, int64_t part, int plane, uint32_t slot) const;
  // The first plane of [first_plane, end_plane) that is not what was sealed in `slot`; -1: none.
  int FirstBadPlane(int tile, int64_t part, int first_plane, int end_plane,
                    std::span<const std::byte> half, uint32_t slot) const;
  absl::Status VerifyPart(int tile, int64_t part, int first_plane, int end_plane,
                          std::span<const std::byte> half, uint32_t slot) const;
  absl::Status Verify(int tile, int first_plane, int end_plane, std::span<const std::byte> half,
                      uint32_t slot) const;
  int64_t BytesOf(int tile) const {
    return tiles.WeightBytes(TileAt(tile)) + tiles.StateBytes(TileAt(tile));
  }
  // How a scrub goes on behind a tile.
  enum class Scrubbed : uint8_t {
    kNext,   // it goes on
    kLast,   // it ends
    kAgain,  // it ends, and the tile is still to be verified
  };
  using TakeScrubbed = std::function<Scrubbed(int tile, std::vector<TileDamage> of_tile)>;
  // Verifies tiles of a slot from `first_tile` on, in their order, until `take` ends it. The first
  // tile that is still to be verified. `memory`: of one tile (ScrubBytes), or up to four, which are
  // read ahead; aligned.
  int ScrubTiles(uint32_t slot, int first_tile, std::span<std::byte> memory,
                 const TakeScrubbed& take);
  absl::Status FollowCommit();
  absl::StatusOr<bool> HasMovedOn();
  absl::Status ScrubSlot(uint32_t slot, MemoryBudget* budget,
                         const std::function<void(int64_t)>& progress,
                         std::vector<TileDamage>& damaged);
  void FindDamage(int tile, int first_plane, int end_plane, uint32_t slot, absl::Status read,
                  std::span<std::byte> half, std::vector<TileDamage>& damaged);
  bool IsIntact(int tile, int first_plane, int end_plane, std::span<const std::byte> half,
                uint32_t slot) const;
  CommitRecord RecordInForce();
  std::optional<DecodedCopy> PreparedRecord();
  TileDamage DamageOf(int tile, int64_t part, int plane, uint32_t slot) const;
  int WeightsFile(const Tile& tile) const { return stripes[tile.stripe].weights_file; }
  int StateFile(const Tile& tile) const { return stripes[tile.stripe].state_file; }
  const Tile& TileAt(int tile) const {
    FOREBAY_CHECK(tile >= 0 && tile < tiles.num_tiles());
    return tiles.tiles()[tile];
  }
  // Of weights and state.
  int NumPlanes(int tile) const { return tiles.PlanesOf(TileAt(tile)).size(); }
  // For the write of a half of a tile.
  void BeginWrite(std::atomic<TileProgress>& progress, int64_t& written_in_round);
  // Instead of it, for the planes [first_plane, end_plane).
  void Keep(int tile, int first_plane, int end_plane, std::atomic<TileProgress>& progress);
  void Start(IoOp& op, IoKind kind, IoClass io_class, int file, int64_t offset_bytes,
             std::span<std::byte> buffer);
  void TakeFirstValues(int tile, std::span<std::byte> weights, std::span<std::byte> state);
  void StartScratch(IoKind kind, IoClass io_class, int stripe, int64_t offset_bytes,
                    std::span<std::byte> buffer, IoOp& op);
  template <typename Convert>
  absl::Status ForEachPart(const TensorSpec& tensor, int64_t first_elem, int64_t num_elems,
                           const Convert& convert);
  // A part of a plane, verified. `bytes`: where in `buffer`, which is aligned, it is.
  absl::Status ReadPart(int tile, int64_t part, int plane, uint32_t slot,
                        std::span<std::byte> buffer, std::span<std::byte>& bytes);
  // From `slot`, which nobody writes to.
  template <typename Take>
  absl::Status ReadPlane(const TensorSpec& tensor, TilePlane kind, int64_t first_elem,
                         int64_t num_elems, uint32_t slot, const Take& take);
  absl::Status ReadTensor(const TensorSpec& tensor, TensorPlane plane, int64_t first_elem,
                          std::span<float> out, uint32_t slot);
  absl::Status ReadTensorW16(const TensorSpec& tensor, int64_t first_elem, std::span<uint16_t> out,
                             uint32_t slot);
  absl::Status ReadRaw(const TensorSpec& tensor, int64_t first_byte, std::span<std::byte> out,
                       uint32_t slot);

  std::vector<std::string> directories;  // by stripe
  std::vector<Stripe> stripes;
  Engine* const engine;
  const StoreManifest manifest;  // of the first stripe
  const uint64_t manifest_hash;  // HashOfManifest
  const TileMap tiles;
  std::vector<int> files;
  // Identifies each of them on the disk, so that a commit notices when a name is another file's.
  struct KnownFile {
    int number = -1;
    std::string path;
    dev_t device = 0;
    ino_t inode = 0;
    bool links_are_noted = false;
  };
  std::vector<KnownFile> known_files;
  // Numbers of those that were missing or had a wrong length. Zeros in them are no proof that
  // nothing was written there.
  std::vector<int> remade_files;
  bool IsRemade(int file) const { return std::ranges::count(remade_files, file) > 0; }
  StripeBytes scratch_bytes;
  StoreAccess access = StoreAccess::kReadWrite;
  bool reserve_space = true;
  bool unfilled = false;  // what is read is not what was written, and nobody minds
  StoreFiles on_disk;
  TileFiller first_values;
  absl::Status first_values_failure;  // of any of them; found as they are verified
  std::string why_not_direct;
  FileSpace space = FileSpace::kReserved;  // the worst of all files, which the note is about
  std::string space_note;
  std::vector<std::string> notes;  // TensorStore::notes

  // By slot; in the working slot's, those of the tiles that were written so far.
  std::vector<TileSeals> seals;

  bool is_being_created = false;  // the folders are marked (store_state.h)
  bool finished_by_owner = false;
  bool has_commit = false;
  CommitRecord record;  // the committed one
  uint64_t record_hash = 0;
  CommitInfo committed;
  absl::Status failure;  // of a commit: the store takes no further one
  std::array<std::atomic<int>, kMostSlots> snapshots = {};  // by slot

  // Held while a commit turns written tiles into committed ones: layers are read ahead meanwhile,
  // and must find the slot and their progress of the same moment.
  mutable std::mutex slots_mutex;
  std::vector<std::atomic<TileProgress>> weights_progress;
  std::vector<std::atomic<TileProgress>> state_progress;
  // BeginWriting and Commit begin a round of writes, of each tile one. By tile: of its last write.
  int64_t round = 0;
  std::vector<int64_t> weights_round;
  std::vector<int64_t> state_round;
};

}  // namespace forebay
