// The inside of TensorSession, shared by its source files: tensor_session.cc (creating, leases,
// reading) and tensor_session_writes.cc (the thread that writes). Not for use elsewhere.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "forebay/memory/host_buffer.h"
#include "forebay/swap/session/lease_arena.h"
#include "forebay/swap/session/tensor_session.h"
#include "forebay/swap/session/tile_cache.h"

namespace forebay {

// The planes that are written together: the master with its rounded copy, m, v; or the bytes of a
// raw tensor.
inline constexpr int kGroupsPerTensor = 3;
inline int GroupOf(int tensor, TensorPlane plane) {
  const int group = plane == TensorPlane::kM ? 1 : plane == TensorPlane::kV ? 2 : 0;
  return kGroupsPerTensor * tensor + group;
}

// Who touches what: callers' threads gather values from tiles; one thread, the writer, scatters
// released values into tiles, writes tiles and commits. All members under `mutex` but where said;
// it is never held during I/O or a copy.
//
// Waiting ends, but for leases, whose end is the caller's to care for. A gather waits for released
// values of its tensor to be in their tiles, before it begins; the writer waits for gathers of a
// tensor to end before it scatters its values; neither waits for the other in a tile cache
// (tile_cache.h). A commit and an abort wait for gathers and reads of committed values, which wait
// for transfers alone once they have begun.
struct TensorSession::Impl {
  struct Group {
    bool write_leased = false;
    bool covered = false;  // written since the last commit
    int gathers = 0;       // going on
    int pending = 0;       // releases that are not in their tiles yet
  };
  struct PendingWrite {
    int tensor = -1;
    TensorPlane plane = TensorPlane::kMaster;
    int64_t begin_bytes = 0;
  };
  enum class Command : uint8_t { kNone, kCommit, kAbort, kStop };
  using Lock = std::unique_lock<std::mutex>;

  static absl::StatusOr<std::unique_ptr<TensorSession>> Make(const SessionOptions& options,
                                                             std::unique_ptr<TensorStore> store,
                                                             bool is_new);

  explicit Impl(const SessionOptions& session_options, std::unique_ptr<TensorStore> the_store);
  absl::Status Start(bool is_new);
  void CountElems();

  TileCache& CacheOf(TileHalf half) { return *caches[static_cast<int>(half)]; }
  std::span<std::byte> ValuesAt(int tensor, TensorPlane plane, int64_t begin_bytes) const;

  // Callers.
  absl::StatusOr<int> FindTensor(std::string_view name, TensorPlane plane) const;
  absl::StatusOr<int> Resolve(const LeaseRequest& request) const;
  int64_t RangeBytesOf(const TensorLease& lease) const {
    const TensorSpec& tensor = inventory.tensors()[lease.tensor_];
    return LeaseArena::RangeBytes(tensor.num_elems * BytesPerElem(lease.plane_));
  }
  absl::Status Reserve(Lock& lock, std::span<const LeaseRequest> requests,
                       std::span<TensorLease> leases);
  absl::StatusOr<int64_t> TakeRoom(Lock& lock, int64_t bytes, std::string_view first);
  absl::Status NoRoomError(int64_t bytes, std::string_view first) const;
  absl::Status GatherAll(Lock& lock, std::span<const TensorLease> leases);
  absl::Status Gather(const TensorLease& lease);
  absl::Status Release(const TensorLease& lease, bool write_back);
  absl::Status Run(Command new_command, const CommitInfo* info);
  absl::StatusOr<const TensorSpec*> BeginSnapshot(std::string_view tensor, TensorPlane plane,
                                                  int64_t first_elem, size_t num_elems);
  void EndSnapshot();

  // The writer.
  void RunWriter();
  void ScatterNext(Lock& lock);
  absl::Status Scatter(const PendingWrite& write, bool first_time);
  void GiveBack(const PendingWrite& write);
  absl::Status MarkOverwriting(Lock& lock);
  absl::Status DoCommit(Lock& lock);
  absl::Status DoAbort(Lock& lock);
  void ForgetCoverage();

  const SessionOptions options;
  MemoryBudget budget;
  const Inventory inventory;
  std::unique_ptr<TensorStore> store;  // until the session ends
  HostBuffer lease_memory;
  std::unique_ptr<TileCache> caches[2];                      // by TileHalf
  std::unordered_map<std::string_view, int> tensor_of_name;  // never changed
  std::vector<int64_t> elems_of_tile;                        // without padding; never changed

  mutable std::mutex mutex;
  std::condition_variable wake;     // the writer
  std::condition_variable changed;  // callers
  std::vector<Group> groups;        // kGroupsPerTensor of each tensor
  std::optional<LeaseArena> arena;
  int64_t next_ticket = 0;
  std::vector<int64_t> waiting;  // for room: tickets, served in turn
  bool has_ended = false;
  int num_leases = 0;
  int num_write_leases = 0;
  int num_gathers = 0;
  int num_snapshots = 0;
  bool publishing = false;      // or about to: no read of committed values begins
  bool gate_closed = false;     // no gather begins
  bool written = false;         // something was released since the last commit
  bool is_overwriting = false;  // with one slot: what is committed is not whole any more
  std::vector<PendingWrite> queue;
  size_t queue_front = 0;
  Command command = Command::kNone;
  const CommitInfo* commit_info = nullptr;
  absl::Status command_result;
  bool command_done = false;
  absl::Status failure;   // of a write: until Abort
  bool is_final = false;  // it stays
  std::optional<CommitInfo> committed;
  SessionStats counts;  // those that the session counts itself

  std::vector<int64_t> missing_elems[2];  // the writer's: by TileHalf and tile, planes times
                                          // elements that were not written since the last commit
  std::thread writer;
};

}  // namespace forebay
