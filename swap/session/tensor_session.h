// Named tensors in a crash-safe store on disk, under a memory budget: for trainers that bring their
// own model, data and loop (docs/embedding.md has a whole program).
//
// A session leases tensors: Acquire brings one plane of a tensor (fp32 master, m, v, or the bf16
// weight as stored; of a raw tensor its bytes) into memory as one array, and Release hands it back;
// what was leased for writing goes to disk on a thread of the session's own. Commit makes
// everything that was released since the last commit one step, atomically: a crash leaves the step
// before or the new one, whole. Abort forgets everything since the last commit. What is committed
// can be read (ReadCommitted) while the next step is being written.
//
// The store keeps tiles, which tensors share, and a step is a slot that has all of them. So a
// commit copies forward every tile that was not written since the last one, where the slot does not
// hold it already, as it does from the second commit on that leaves it alone (SessionStats::copied,
// kept). A trainer that writes all of its state in a step copies nothing.
//
// Not for: trainers that stream layers in an order that they announce (offload/layer_session.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/tile_values.h"

namespace forebay {

struct SessionOptions {
  // Of everything that is resident: leased values, and tiles on their way between them and the
  // disk. Beside it the session has TensorStore::SealBytes and small tables.
  int64_t memory_bytes = int64_t{256} << 20;
  // Of it, for leased values, rounded up to whole blocks of 4 KiB; the rest is for tiles, at least
  // two. 0: half, or more where the largest tensor needs more for master, m and v at once.
  int64_t lease_bytes = 0;
  // Acquire gives up waiting for room after so long, and says who has it.
  double wait_limit_s = 300;
};

enum class LeaseAccess : uint8_t {
  kRead,
  kWrite,  // the values are there, and are written back
  // The values are anything: all of them will be set. Acquire reads nothing then. Their release
  // still reads the tiles that they go into, where those hold something else: the state of a tile
  // always does (m, v, and in bf16 the low half of the master), its weights at the tensor's ends.
  kOverwrite,
};

struct LeaseRequest {
  std::string_view tensor;
  TensorPlane plane = TensorPlane::kMaster;
  LeaseAccess access = LeaseAccess::kRead;
};

struct SessionStats {
  int64_t read_bytes = 0;    // from disk, whole tiles
  int64_t write_bytes = 0;   // to disk, whole tiles; checksums and records are not counted
  int64_t copied_bytes = 0;  // of write_bytes: copied forward by commits
  int64_t kept_bytes = 0;    // of unchanged tiles for which a commit had nothing to do
  int64_t tile_reads = 0;
  int64_t tile_hits = 0;  // uses of a tile that were served from memory
  int64_t leases = 0;     // that were given
  int64_t waits = 0;      // of Acquire, for room
  double wait_s = 0;
  int64_t commits = 0;
  int64_t leased_bytes = 0;    // now, with those released and not yet in their tiles
  int64_t resident_bytes = 0;  // now: leased values and tiles
  int64_t peak_leased_bytes = 0;
  int64_t peak_resident_bytes = 0;  // at most: leased values and tiles peak at different times
};

class TensorLease;

// Thread-safe. It may go from thread to thread, and end on any.
//
// Read leases share freely, and a write lease of a tensor may be out beside them: a read lease has
// the values that were released last before it, and keeps them. A second write lease of the same
// plane is an error.
//
// Acquire waits for what ends by itself: values of the tensor that were released and are not in
// their tiles yet, an abort, and for writing a commit too. And it waits for room, which comes from
// leases that end. So a thread that acquires while it holds leases may wait for itself, or for one
// that waits for it: acquire what belongs together in one call, or keep what is out at one time
// well within lease_bytes (the values of a call lie in one piece).
//
// `engine` (aio/open_engine.h) must outlive the session, and run on its own (RingDrive::kOwnThread,
// the default).
class TensorSession {
 public:
  // Makes a store (StoreOptions) for the tensors of `inventory`, whose values are zeros until they
  // are written. Errors of TensorStore::Create; UsageError for options or an inventory that no
  // store can have; DoesNotFitError when `memory_bytes` has no room for two tiles and a lease, or
  // the disk none for the store; OutOfMemoryError; EnvironmentError where no thread can be had.
  // Nothing is left behind by an error. Blocks while it writes what the first commit will not
  // (TensorStore::WriteSpareSpace), half of the store.
  static absl::StatusOr<std::unique_ptr<TensorSession>> Create(const SessionOptions& options,
                                                               const StoreOptions& store_options,
                                                               const Inventory& inventory,
                                                               Engine* engine);
  // Opens the newest committed step of a store; one that never was committed has zeros. Arguments
  // and errors of TensorStore::Open, and DoesNotFitError, OutOfMemoryError, EnvironmentError.
  static absl::StatusOr<std::unique_ptr<TensorSession>> Open(
      const SessionOptions& options, const std::vector<std::string>& directories, Engine* engine,
      const std::string& uuid = "");
  // Loses all that is not committed.
  ~TensorSession();

  // The least memory_bytes with which `num_elems` values can be leased at once, in fp32: one
  // tensor, or its three planes (for more, say lease_bytes as well). Four raw bytes count as a
  // value.
  static int64_t LeastMemoryBytes(const TileMap& tiles, int64_t num_elems);

  const Inventory& inventory() const;
  // For its tiles, folders and identity; what it says of commits is for who knows that none runs.
  const TensorStore& store() const;
  // The newest step; nullopt: there was no commit yet.
  std::optional<CommitInfo> committed() const;

  // Waits (see above), reads, verifies. UsageError: no such tensor or plane (a raw tensor has kRaw
  // alone, and no other has it), kW16 to be written, or the tensor is leased for writing already.
  // DoesNotFitError: more than lease_bytes. OutOfMemory- Error: no room within wait_limit_s.
  // StorageError, CorruptError: of the read, or the error of an earlier write, which lasts until
  // Abort.
  absl::StatusOr<TensorLease> Acquire(std::string_view tensor, TensorPlane plane,
                                      LeaseAccess access);
  // All of `requests` or none, without holding some while it waits for others. `leases`: as many,
  // in the order of the requests, and all without a lease; else UsageError.
  absl::Status AcquireAll(std::span<const LeaseRequest> requests, std::span<TensorLease> leases);
  // Starts reading what will be acquired next, as far as there is room for it now. A hint: nothing
  // waits, and nothing fails but UsageError for what cannot be acquired.
  absl::Status Expect(std::string_view tensor, TensorPlane plane);

  // Makes all that was released since the last commit step `step`; `user` comes back with it
  // (CommitInfo::trainer; at most 3 KiB of JSON text). Blocks until it is durable. UsageError: a
  // write lease is out, or `user` does not fit; nothing was touched, and the writes still wait to
  // be committed then. After a StorageError or CorruptError of a write or a copy the committed step
  // is what it was: Abort, or open the store again; with one slot it was overwritten in part, and
  // Open refuses it. The error of a write lasts until Abort, and a commit whose copies could not be
  // read may be tried again. After one of the publication itself the next Open finds the step
  // before or this one, whole; the session takes no further commit, and no Abort.
  absl::Status Commit(int64_t step, const Json& user = Json::object());
  // Forgets what was released since the last commit, and the error of a write. UsageError: a write
  // lease is out, or the store has one slot, a committed step, and something was released, as that
  // step may be overwritten: write what is missing and commit. After the error of a write there is
  // no commit either, and Abort returns that error: open the store again, or have it repaired
  // (TensorStore::Repair). Read leases that are out keep the values that they have.
  absl::Status Abort();

  // Copies elements [first_elem, first_elem + out.size()) of a tensor as they were committed,
  // while the next step is written. `plane`: any but kW16 and kRaw. UsageError: no such tensor,
  // plane or elements; nothing is committed; or the store has one slot and a write lease was
  // released since the last commit. StorageError, CorruptError.
  absl::Status ReadCommitted(std::string_view tensor, TensorPlane plane, int64_t first_elem,
                             std::span<float> out);
  absl::Status ReadCommittedW16(std::string_view tensor, int64_t first_elem, std::span<Bf16> out);
  absl::Status ReadCommittedRaw(std::string_view tensor, int64_t first_byte,
                                std::span<std::byte> out);

  SessionStats stats() const;

 private:
  friend class TensorLease;
  struct Impl;
  explicit TensorSession(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // leases that outlive the session share it
};

// The right to use the values of one plane of a tensor. Move-only; may go to another thread, and is
// used by one at a time. Where it outlives its session, its values stay readable, with the memory
// of all leases, and its Release writes nothing.
class TensorLease {
 public:
  TensorLease() = default;
  // As Discard: only Release writes, so that whoever leaves early, with half of the values set,
  // leaves nothing behind.
  ~TensorLease() { Discard(); }
  TensorLease(TensorLease&& other) noexcept;
  TensorLease& operator=(TensorLease&& other) noexcept;

  explicit operator bool() const { return is_out(); }
  bool is_out() const { return session_ != nullptr; }
  bool OutlivesSession() const;      // whether its session has ended
  const TensorSpec& tensor() const;  // an empty one without a lease
  TensorPlane plane() const { return plane_; }

  // [tensor().num_elems], row-major, 64-byte aligned: of any plane but kW16 and kRaw. Empty where
  // there are none.
  std::span<const float> values() const;
  // The same, to be set; empty without a lease for writing.
  std::span<float> floats();
  // [tensor().num_elems] of kW16, and empty of any other plane.
  std::span<const Bf16> bf16() const;
  // [tensor().num_elems] of kRaw, 64-byte aligned, and empty of any other plane.
  std::span<const std::byte> bytes() const;
  // The same, to be set; empty without a lease for writing.
  std::span<std::byte> writable_bytes();

  // Ends the lease, and has the values of a write lease written: every Acquire sees them from here
  // on. Returns the error for which the session takes no commit, if there is one, and UsageError
  // where a write lease has outlived its session; the lease has ended all the same. OK without a
  // lease.
  absl::Status Release();
  // Ends the lease, and forgets what was set.
  void Discard();

 private:
  friend class TensorSession;
  std::span<std::byte> BytesOf() const;

  std::shared_ptr<TensorSession::Impl> session_;  // nullptr: no lease
  int tensor_ = -1;
  TensorPlane plane_ = TensorPlane::kMaster;
  LeaseAccess access_ = LeaseAccess::kRead;
  int64_t begin_bytes_ = 0;  // in the session's memory
};

}  // namespace forebay
