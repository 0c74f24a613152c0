// The store: every tile's weights and optimizer state in two slots on NVMe, and the commit record
// that says which slot is real. The swap area is the checkpoint (docs/formats.md has the
// bytes).
//
// Life of a commit: all tiles are written to the slot that is not committed (StartWrite*), once or,
// where several steps share a commit, over and over; when every write is complete, Commit flushes
// the files and publishes one record in two places; from then on the new slot is the committed one.
// Reads return the newest completed write of a tile. A crash before the record is durable leaves
// the old slot, whole.
//
// A store with one slot takes half the space and survives no crash in between: before the first
// write over what is committed, BeginWriting publishes that it is being overwritten, and only the
// next Commit makes it whole again.
//
// A store may be striped over several folders, normally one for each disk (stripes.h). It is one
// store all the same: a commit is one commit, and it opens with all of its folders or not at all.
//
// Not for: deciding what lives in RAM (placement.h) or when to read (swapper.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/json.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/store/store_access.h"
#include "forebay/swap/tiles/tile_map.h"
#include "forebay/swap/tiles/tile_values.h"

namespace forebay {

// The files of a store. Without `records` it ends with its object, and its files with it: nobody
// opens it again, and no checksum, record or manifest is written. Such a store may have weights, or
// state, in no file: they are read once, as StoreOptions::first_values has them, and what is
// written of them is dropped. If nothing is in files, it makes no folder either.
struct StoreFiles {
  bool weights = true;
  bool state = true;
  bool records = true;
};

// Fills a tile (by its number): all its bytes, which are zero before.
using TileFiller =
    std::function<absl::Status(int tile, std::span<std::byte> weights, std::span<std::byte> state)>;

struct StoreOptions {
  std::vector<std::string> directories;  // of the store alone; created 0700. One or more
  StripeWeights stripe_weights;          // by directory; empty: all the same
  Layout layout = Layout::kBf16;
  MomentSet moment_set;
  int64_t tile_elems = kDefaultTileElems;
  int num_slots = kMostSlots;  // 1 or 2
  // As EnsureScratchArea.
  StripeBytes scratch_bytes;
  // For measurements alone: a store at step 0 whose tiles were never written, in files that have
  // their length but no space. Reads return whatever `engine` finds there
  // (aio/folding_engine.h).
  bool unfilled = false;
  StoreFiles files;
  // The values at the first commit of what is in no file. Given one half of a tile, the other is
  // empty. Used by the threads that read, one at a time, until ForgetFirstValues.
  TileFiller first_values;
  // For who has to know it before there is a store (NewStoreUuid); empty: a new one.
  std::optional<StoreUuid> uuid;
  // Writes kOwnerName (store_folders.h) into a folder of the store, as its first file; may be
  // empty.
  std::function<absl::Status(const std::string& directory)> write_owner;
  // The first commit does not end the creation, FinishCreation does: for several stores that are
  // made together, of which one without the others is not worth keeping.
  bool finished_by_owner = false;
};

// What a commit carries for a resume. `trainer` is the trainer's own object (data position, RNG,
// schedule, configuration digest, kernel identity); at most 3 KiB when written out.
struct CommitInfo {
  int64_t step = 0;
  Json trainer;
};

// Whether the seals of what is written have been taken (SealWeights, SealState).
enum class Sealed : uint8_t { kNotYet, kYes };

// A part of a tile that is not what was written there.
struct TileDamage {
  int tile = 0;
  std::string layer;
  std::string file;
  int64_t offset_bytes = 0;  // in the file: of the first part that is damaged
  int64_t size_bytes = 0;    // of that part
  std::string message;       // all of it, with the step
};

// The part of one committed step that a scrub beside a writer verified.
struct ScrubbedStep {
  int64_t step = 0;
  int64_t bytes = 0;
};

// What Repair found and did.
struct RepairReport {
  int64_t step_before = -1;         // committed; -1: no record was whole
  int64_t step = 0;                 // committed now
  bool changed = false;             // false: all that was committed is whole
  std::vector<TileDamage> damaged;  // of the step that was committed before
  std::vector<std::string> notes;   // TensorStore::notes
};

enum class TileFiles : uint8_t;  // tensor_store_impl.h

// Thread-safe for different tiles; ReadTensor* by any thread, but not while Commit runs, nor, with
// one slot, BeginWriting. Tiles may be read while Commit runs, but not written. One process at a
// time (flock, with the holder's PID in the error). `engine` must outlive the store, and every op
// it started must be complete when the store ends.
class TensorStore {
 public:
  // Reserves all space at once (DoesNotFitError names what is missing), writes nothing but the
  // manifests (WriteSpareSpace does). The store has no committed step until the first Commit.
  // UsageError if a folder holds anything of a store, or is named twice. A creation that fails
  // leaves nothing, and no folder that it made either. The rest of one that was killed before its
  // first commit is removed: its mark says that it is one (store_state.h).
  static absl::StatusOr<std::unique_ptr<TensorStore>> Create(const StoreOptions& options,
                                                             const Inventory& inventory,
                                                             Engine* engine);
  // Opens the newest committed state, as `access` says (store_access.h). `directories`: all of the
  // store's, in any order. `uuid`: of the store that is meant, as ToHex has it (store_manifest.h);
  // "": whichever lies there. CorruptError (damaged or foreign files, another store than `uuid`,
  // folders that do not belong together, unknown format version, one slot whose overwriting was
  // interrupted), EnvironmentError (in use by another process), BadInputError (no store there, a
  // folder missing or beside a copy of it), UsageError (a folder named twice), StorageError. Of a
  // store that is not the wanted one nothing is touched.
  static absl::StatusOr<std::unique_ptr<TensorStore>> Open(
      const std::vector<std::string>& directories, Engine* engine, const std::string& uuid = "",
      StoreAccess access = StoreAccess::kReadWrite);
  // Verifies what is committed; where some of it is damaged, or no commit record is whole, the
  // newest step of which every byte is what was written becomes the committed one: the step before,
  // as long as the next has overwritten none of it, or one that was complete but for its record,
  // unless a later one may have skipped it. Nothing is guessed and no steps are mixed; a crash
  // meanwhile leaves what was there, or what is there afterwards. `progress` (may be empty) is told
  // how many of a slot's bytes were read. The errors of Open; CorruptError when no step is whole,
  // or when the commit records contradict one another.
  static absl::StatusOr<RepairReport> Repair(
      const std::vector<std::string>& directories, Engine* engine, const std::string& uuid,
      MemoryBudget* budget, const std::function<void(int64_t done, int64_t all)>& progress);
  // Ends the creation: the folders lose their mark, durably, and from then on nothing removes the
  // store for a new one. The first commit does so, except with StoreOptions::finished_by_owner.
  // Opening the store to write to it does so too. StorageError. Requires: a commit.
  absl::Status FinishCreation();
  // Removes the files of the store in `directories`, whole or not, and each folder when nothing
  // else is in it; what no store makes stays. Returns the bytes that were freed. EnvironmentError
  // (in use), BadInputError (no store there), UsageError (a folder named twice), StorageError;
  // nothing was removed then.
  static absl::StatusOr<int64_t> Remove(const std::vector<std::string>& directories);
  // Takes Create back, for a caller that fails behind it: removes what it made, files and folders,
  // as far as that can be. The store is to be ended then. Requires: Create made this store.
  void RemoveCreated();
  ~TensorStore();

  // By stripe. `scratch_bytes`: as EnsureScratchArea.
  static StripeBytes DiskBytes(const TileMap& tiles, int num_slots,
                               const StripeBytes& scratch_bytes, StoreFiles files = {});
  // The size of the store's largest file.
  static int64_t LargestFileBytes(const TileMap& tiles, int num_slots,
                                  const StripeBytes& scratch_bytes, StoreFiles files = {});

  const Inventory& inventory() const;
  const TileMap& tiles() const;
  int num_slots() const;
  bool unfilled() const;  // StoreOptions::unfilled: nothing that is read can be verified
  StoreFiles files() const;
  // Once what is in no file was read.
  void ForgetFirstValues();
  bool has_commit() const;
  const CommitInfo& committed() const;                  // Requires: has_commit()
  uint32_t committed_slot() const;                      // the same
  const std::vector<std::string>& directories() const;  // by stripe
  const std::string& directory() const { return directories().front(); }
  const StoreUuid& uuid() const;
  bool direct_io() const;  // false: the file system has no O_DIRECT; the page cache is used
  const std::string& why_not_direct() const;
  // "" when the space of all files that this object made is theirs; else one line that says why
  // not, and what follows from it.
  const std::string& space_note() const;
  // One line for each copy that was found missing or damaged, and made anew from the other one. A
  // crash may leave a torn copy.
  const std::vector<std::string>& notes() const;
  // Those that were not taken yet: a commit may find more.
  std::vector<std::string> TakeNotes();

  // Writes zeros over the space that the first commit leaves unwritten: slot B and the area for
  // gradients. From then on a step writes over what was written before, which costs the
  // file system no records of its own, and the space is the store's also where fallocate promises
  // nothing: without it, and on volumes that are provisioned thinly (unless zeros take no space
  // there). Nothing is written where a file system copies on write. `scratch` is what is written
  // at a time: aligned to kIoAlignBytes, of whole blocks. `stop` (may be empty) is polled, and ends
  // it with InterruptedError; `progress` (may be empty) is told the share that is written.
  // StorageError. Requires: nothing is committed.
  absl::Status WriteSpareSpace(std::span<std::byte> scratch, const std::function<bool()>& stop,
                               const std::function<void(double)>& progress);
  // For whoever is going to write to a store that was opened: a copy of it may have holes, where
  // nothing was written yet or everything was zero, and a step could meet a full disk there. They
  // are filled with reserved space. DoesNotFitError, StorageError; what is in the files stays.
  absl::Status ReserveSpace();
  // The DoesNotFitError that ReserveSpace would end with, without changing anything.
  absl::Status CheckSpace() const;

  // Begins the writes of a step: from here until the next call, or the next Commit, each tile is
  // written once at most. In a store with one slot it publishes that what is committed is being
  // overwritten: what a crash leaves from here until the next Commit is not whole, and is not
  // opened as if it were; blocks for the flushes then. StorageError, after which the store takes no
  // further commit.
  absl::Status BeginWriting();
  // Whether a snapshot (store_snapshot.h) is left of what BeginWriting would give up: it requires
  // that there is none.
  bool AwaitsSnapshot() const;

  // Whether no tile was written since the last commit: then the other slot still holds the commit
  // before, where there was one.
  bool NothingIsWritten() const;
  // Weights and state of the tiles that are not written since then.
  int64_t UnwrittenBytes() const;

  // Asynchronous transfers of one tile; `op` is prepared and submitted, the caller waits with
  // engine->Wait. Buffers are kIoAlignBytes-aligned and of exactly WeightBytes/StateBytes(tile).
  // After a write completed without error the caller reports it with
  // MarkWeightsWritten/MarkStateWritten; later reads see it. Requires: a tile that is read was
  // committed or written before, and is not being written over meanwhile, as it is by a second
  // write between two commits, or by any in a store with one slot; BeginWriting, where two
  // steps share a commit, before every step in a store with one slot, and wherever there may be a
  // snapshot (store_snapshot.h): a tile is not written while one reads its place (FOREBAY_CHECK).
  void StartReadWeights(int tile, std::span<std::byte> buffer, IoClass io_class, IoOp& op);
  void StartReadState(int tile, std::span<std::byte> buffer, IoClass io_class, IoOp& op);
  // A write that is not sealed yet is sealed here, by the caller's thread.
  void StartWriteWeights(int tile, std::span<std::byte> buffer, IoOp& op,
                         Sealed sealed = Sealed::kNotYet);
  void StartWriteState(int tile, std::span<std::byte> buffer, IoOp& op,
                       Sealed sealed = Sealed::kNotYet);
  void MarkWeightsWritten(int tile);
  void MarkStateWritten(int tile);
  // Instead of a write, where the slot that is written to holds the committed value already: a
  // store has one slot, or the caller knows that the tile is the same in both, as it copied the
  // committed value for the commit before and has started no write of the tile since. Requires:
  // that it is so (checked as far as the checksums tell), and no write of it since the last commit.
  void KeepWeights(int tile);
  void KeepState(int tile);
  // Forgets all writes since the last commit: reads return what is committed again, if anything is.
  // Requires: two slots, or nothing committed; no transfer of a tile is pending.
  void DiscardWrites();

  // Checksums (tile_seals.h), part by part, so that whoever works on a tile takes them while it is
  // in the cache. What was read must be verified before it is used: VerifyWeights and VerifyState,
  // or VerifyStatePart for every part, between the wait for the read and the next write of the
  // tile. CorruptError names file, device, offset, layer, step and what can be saved. Thread-safe
  // for different parts of a tile.
  void SealWeights(int tile, int64_t part, std::span<const std::byte> weights);
  void SealState(int tile, int64_t part, std::span<const std::byte> state);
  absl::Status VerifyWeights(int tile, std::span<const std::byte> weights) const;
  absl::Status VerifyState(int tile, std::span<const std::byte> state) const;
  absl::Status VerifyWeightsPart(int tile, int64_t part, std::span<const std::byte> weights) const;
  absl::Status VerifyStatePart(int tile, int64_t part, std::span<const std::byte> state) const;
  // The memory that holds the checksums of all slots, from creation or opening on.
  static int64_t SealBytes(const TileMap& tiles, int num_slots);

  // Whether every file is still the one that was opened: StorageError names one that was removed or
  // replaced meanwhile. Each commit looks before it publishes a step.
  absl::Status CheckFiles();

  // Reads all of the committed slot, a few tiles ahead of their comparison. What is damaged or
  // cannot be read goes to `damaged`, in the order of the tiles; `progress` is told the bytes so
  // far. OutOfMemoryError.
  absl::Status Scrub(MemoryBudget* budget, const std::function<void(int64_t)>& progress,
                     std::vector<TileDamage>& damaged);
  // The same beside the process that writes to the store, and slowly: a tile is read, and then as
  // long nothing. Where the next step is committed meanwhile, it goes on with that: `steps` has
  // what was verified of which. What is being written over is never taken for damage.
  // CorruptError where the commit record or the checksums are damaged; EnvironmentError where the
  // writer commits faster than a tile is read; OutOfMemoryError. Requires:
  // StoreAccess::kBesideWriter, two slots.
  absl::Status ScrubBesideWriter(MemoryBudget* budget, const std::function<void(int64_t)>& progress,
                                 std::vector<TileDamage>& damaged,
                                 std::vector<ScrubbedStep>& steps);
  // The size of the memory that one tile is verified in.
  static int64_t ScrubBytes(const TileMap& tiles);

  // Scratch area for gradients and activations, with a part in each stripe, addressed by the
  // caller; nothing in it is relied upon after a restart. It is no part of what the store holds: a
  // store has none when it is opened, and who wants one asks for it here, which makes the area, or
  // makes it larger, and reserves its space. Only its own
  // files are touched. A crash in the middle leaves a store that opens; an error leaves the area as
  // it was, but that a part that was to grow is gone (of size 0, until it is asked for again) where
  // the lock on its file could not be taken anew: DoesNotFitError (no space), StorageError,
  // EnvironmentError (lock). `size_bytes`: by stripe; empty: none. Requires: no transfer of the
  // area is pending.
  absl::Status EnsureScratchArea(const StripeBytes& size_bytes);
  // The DoesNotFitError that EnsureScratchArea would end with, without changing anything.
  absl::Status CheckScratchArea(const StripeBytes& size_bytes) const;
  const StripeBytes& scratch_bytes() const;
  void StartReadScratch(int stripe, int64_t offset_bytes, std::span<std::byte> buffer, IoOp& op);
  void StartWriteScratch(int stripe, int64_t offset_bytes, std::span<std::byte> buffer, IoOp& op);

  // Publishes a step: the newest values of all tiles. Requires: every tile was written since the
  // last commit (FOREBAY_CHECK).
  // Blocks for the flushes. UsageError when `info.trainer` does not fit (nothing was touched).
  // After a StorageError the new step may or may not be the one that the next Open finds (it is one
  // or the other, whole), and the store refuses further commits.
  // `before_record` (may be empty) is called once the step is durable but for its record: from then
  // on PublishPrepared of a later process can make it the committed one. Its error ends the commit
  // as a StorageError does.
  absl::Status Commit(const CommitInfo& info,
                      const std::function<absl::Status()>& before_record = {});
  // Publishes a step that changes no tile, in the same way: its record alone is written. Requires:
  // a commit of an older step, and that no tile was written since (FOREBAY_CHECK) nor sealed.
  absl::Status CommitSkipped(const CommitInfo& info,
                             const std::function<absl::Status()>& before_record = {});

  // For several stores with one commit (rank_commits.h); requires: a commit, and no write since.
  // The commit of the step that the other slot holds whole but for its record, as the successor of
  // the committed one; nullopt: none, or a store with one slot. Nothing says whether its tiles were
  // overwritten since: only who knows that no later attempt began may publish it.
  std::optional<CommitInfo> Prepared();
  // Makes it the committed step. StorageError. Requires: Prepared(), and two slots.
  absl::Status PublishPrepared();
  // The step whose commit wrote the tiles in force: the committed one, or one that only skipped
  // steps came after.
  int64_t StepOfTiles() const;

  // Synchronous access to committed values: export, digest, inspect. Requires: they are not being
  // overwritten (BeginWriting). `out`: elements
  // [first_elem, first_elem + out.size()) of the tensor, fp32, whatever the layout. kMaster is
  // exact (bf16 layout: joined from w16 and r16). Requires: no kW16, no raw tensor; of moments,
  // that the store has them, in fp32.
  absl::Status ReadTensor(const TensorSpec& tensor, TensorPlane plane, int64_t first_elem,
                          std::span<float> out);
  // The bf16 weights as stored (never a re-cast of the master). Requires: that they are; no raw
  // tensor.
  absl::Status ReadTensorW16(const TensorSpec& tensor, int64_t first_elem, std::span<uint16_t> out);
  // Bytes [first_byte, first_byte + out.size()) of a raw tensor. Requires: a raw one.
  absl::Status ReadRaw(const TensorSpec& tensor, int64_t first_byte, std::span<std::byte> out);
  // The bytes of a plane (tile_planes.h) that belong to elements [first_elem, first_elem +
  // num_elems) of the tensor. Requires: the tensor's tiles have it; of scales, `first_elem` is a
  // multiple of kMomentBlockElems, and the last block is read whole.
  absl::Status ReadTilePlane(const TensorSpec& tensor, TilePlane kind, int64_t first_elem,
                             int64_t num_elems, std::span<std::byte> out);

  Engine& engine();

 private:
  friend class StoreSnapshot;
  struct Impl;
  static absl::StatusOr<std::unique_ptr<TensorStore>> OpenUncommitted(
      const std::vector<std::string>& directories, Engine* engine, const std::string& uuid,
      TileFiles tile_files, StoreAccess access);
  explicit TensorStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay
