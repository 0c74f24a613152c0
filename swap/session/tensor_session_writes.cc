// What the session's own thread does: released values go into their tiles, tiles to disk, steps are
// committed and forgotten.
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/session/tensor_session_impl.h"

namespace forebay {

// ---- What is still to be written of a tile

void TensorSession::Impl::CountElems() {
  const TileMap& tiles = store->tiles();
  elems_of_tile.assign(tiles.tiles().size(), 0);
  for (const TensorSpec& tensor : store->inventory().tensors()) {
    const TileRange range = TilesOf(tiles, tensor);
    for (int tile = range.first; tile < range.end; ++tile) {
      elems_of_tile[tile] += PartInTile(tiles, tensor, tile).num_elems;
    }
  }
}

void TensorSession::Impl::ForgetCoverage() {
  const MomentSet moments = store->tiles().moment_set();
  const int num_state_planes =
      (LiesIn(store->tiles().layout(), TensorPlane::kMaster, TileHalf::kState)) + moments.m +
      moments.v;
  missing_elems[static_cast<int>(TileHalf::kWeights)] = elems_of_tile;
  std::vector<int64_t>& of_state = missing_elems[static_cast<int>(TileHalf::kState)];
  of_state = elems_of_tile;
  for (size_t i = 0; i < of_state.size(); ++i) {
    of_state[i] *= store->tiles().tiles()[i].raw ? 0 : num_state_planes;
  }
  for (Group& group : groups) group.covered = false;
}

// ---- Scattering

// Copies released values into their tiles. A tile all of whose values were released since the last
// commit is written at once: most trainers write each once in a step. Without the lock.
absl::Status TensorSession::Impl::Scatter(const PendingWrite& write, bool first_time) {
  const TensorSpec& tensor = store->inventory().tensors()[write.tensor];
  const TileMap& tiles = store->tiles();
  const TileRange range = TilesOf(tiles, tensor);
  const std::span<const std::byte> values = ValuesAt(write.tensor, write.plane, write.begin_bytes);
  for (int tile = range.first; tile < range.end; ++tile) {
    const int64_t num_elems = PartInTile(tiles, tensor, tile).num_elems;
    for (const TileHalf half : kTileHalves) {
      if (!LiesIn(tiles.layout(), write.plane, half)) continue;
      TileCache& cache = CacheOf(half);
      {
        const bool replaces = half == TileHalf::kWeights && num_elems == elems_of_tile[tile];
        FOREBAY_ASSIGN_OR_RETURN(const TileCache::Pin pin, cache.Change(tile, replaces));
        CopyToTile(tiles, tile, half, pin.bytes(), tensor, write.plane, values);
      }
      int64_t& missing = missing_elems[static_cast<int>(half)][tile];
      if (first_time) missing -= num_elems;
      if (first_time && missing == 0) FOREBAY_RETURN_IF_ERROR(cache.WriteBack(tile));
    }
  }
  return absl::OkStatus();
}

void TensorSession::Impl::ScatterNext(Lock& lock) {
  const PendingWrite write = queue[queue_front++];
  if (queue_front == queue.size()) {
    queue.clear();
    queue_front = 0;
  }
  Group& group = groups[GroupOf(write.tensor, write.plane)];
  changed.wait(lock, [&] { return group.gathers == 0; });
  // After an error the step cannot be committed any more, whatever is in the tiles.
  absl::Status status = failure;
  if (status.ok()) status = MarkOverwriting(lock);
  if (status.ok()) {
    const bool first_time = !group.covered;
    lock.unlock();
    status = Scatter(write, first_time);
    lock.lock();
    group.covered = true;
  }
  failure.Update(status);
  --group.pending;
  GiveBack(write);
  changed.notify_all();
}

void TensorSession::Impl::GiveBack(const PendingWrite& write) {
  const int64_t bytes =
      store->inventory().tensors()[write.tensor].num_elems * BytesPerElem(write.plane);
  arena->GiveBack(write.begin_bytes, LeaseArena::RangeBytes(bytes));
}

// With one slot, the first write after a commit ends what is committed; nobody reads it then.
absl::Status TensorSession::Impl::MarkOverwriting(Lock& lock) {
  if (store->num_slots() > 1 || is_overwriting) return absl::OkStatus();
  is_overwriting = true;
  changed.wait(lock, [this] { return num_snapshots == 0; });
  lock.unlock();
  const absl::Status status = store->BeginWriting();
  lock.lock();
  is_final |= !status.ok();
  return status;
}

// ---- Commit and abort

absl::Status TensorSession::Impl::DoCommit(Lock& lock) {
  FOREBAY_RETURN_IF_ERROR(failure);
  absl::Status status = MarkOverwriting(lock);
  if (!status.ok()) {
    failure = status;
    return status;
  }
  lock.unlock();
  for (const TileHalf half : kTileHalves) {
    if (status.ok()) status = CacheOf(half).CompleteSlot();
  }
  lock.lock();
  // An error of a write stays; a copy whose tile could not be read may be tried again.
  for (const TileHalf half : kTileHalves) failure.Update(CacheOf(half).write_failure());
  FOREBAY_RETURN_IF_ERROR(status);
  publishing = true;
  changed.wait(lock, [this] { return num_snapshots == 0; });
  lock.unlock();
  status = store->Commit(*commit_info);
  if (status.ok()) {
    for (const TileHalf half : kTileHalves) CacheOf(half).OnCommitted();
  }
  lock.lock();
  publishing = false;
  if (status.ok()) {
    committed = *commit_info;
    written = false;
    is_overwriting = false;
    ++counts.commits;
    ForgetCoverage();
  } else {
    failure = status;
    is_final = true;
  }
  return status;
}

absl::Status TensorSession::Impl::DoAbort(Lock& lock) {
  if (is_final) return failure;
  if (store->num_slots() == 1 && committed.has_value()) {
    if (!failure.ok()) {
      return Annotate(
          failure,
          fmt::format("the store in '{}' has one slot, and step {} was overwritten in part when "
                      "this failed: there is nothing to go back to, and no commit any more. Open "
                      "the store again; where that fails, 'forebay inspect RUN --repair' finds out "
                      "what is whole",
                      store->directory(), committed->step));
    }
    if (!written && !is_overwriting) return absl::OkStatus();  // nothing to forget
    return UsageError(fmt::format(
        "the store in '{}' has one slot, and step {} was overwritten in part: there is nothing to "
        "go back to. Write what is missing and commit; a store with two slots can abort",
        store->directory(), committed->step));
  }
  gate_closed = true;
  changed.wait(lock, [this] { return num_gathers == 0; });
  for (; queue_front < queue.size(); ++queue_front) {
    const PendingWrite& write = queue[queue_front];
    --groups[GroupOf(write.tensor, write.plane)].pending;
    GiveBack(write);
  }
  queue.clear();
  queue_front = 0;
  lock.unlock();
  for (const TileHalf half : kTileHalves) CacheOf(half).Discard();
  store->DiscardWrites();
  lock.lock();
  failure = absl::OkStatus();
  written = false;
  is_overwriting = false;
  gate_closed = false;
  ForgetCoverage();
  return absl::OkStatus();
}

void TensorSession::Impl::RunWriter() {
  Lock lock(mutex);
  while (command != Command::kStop) {
    const bool asked = command != Command::kNone && !command_done;
    if (asked && command == Command::kAbort) {
      command_result = DoAbort(lock);
      command_done = true;
    } else if (queue_front < queue.size()) {
      ScatterNext(lock);
    } else if (asked) {
      command_result = DoCommit(lock);
      command_done = true;
    } else {
      wake.wait(lock);
    }
    changed.notify_all();
  }
}

absl::Status TensorSession::Impl::Run(Command new_command, const CommitInfo* info) {
  Lock lock(mutex);
  changed.wait(lock, [this] { return command == Command::kNone; });
  if (num_write_leases > 0) {
    return UsageError(fmt::format(
        "{} needs all write leases to have ended, and {} {} out: a step is whole or not at all",
        new_command == Command::kCommit ? "a commit" : "an abort", num_write_leases,
        num_write_leases == 1 ? "is" : "are"));
  }
  command = new_command;
  commit_info = info;
  command_done = false;
  wake.notify_all();
  changed.wait(lock, [this] { return command_done; });
  command = Command::kNone;
  changed.notify_all();
  return std::exchange(command_result, absl::OkStatus());
}

absl::Status TensorSession::Commit(int64_t step, const Json& user) {
  // Before anything is done for it: with one slot a commit begins with giving up the one before.
  FOREBAY_RETURN_IF_ERROR(TrainerText(user).status());
  const CommitInfo info{step, user};
  return impl_->Run(Impl::Command::kCommit, &info);
}

absl::Status TensorSession::Abort() {
  return impl_->Run(Impl::Command::kAbort, nullptr);
}

}  // namespace forebay
