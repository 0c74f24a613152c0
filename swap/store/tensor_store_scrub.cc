// Reading all of a slot, and comparing it with its checksums: at rest, and beside another
// process that works on the store.
#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {
namespace {

constexpr int kScrubTiles = 4;  // in flight, so that the disk works while tiles are hashed

struct ScrubBuffers {
  std::span<std::byte> weights;
  std::span<std::byte> state;
  IoOp weights_op;
  IoOp state_op;
};

}  // namespace

bool TensorStore::Impl::IsIntact(int tile, int first_plane, int end_plane,
                                 std::span<const std::byte> half, uint32_t slot) const {
  for (int64_t part = 0; part < NumSealParts(TileAt(tile)); ++part) {
    if (FirstBadPlane(tile, part, first_plane, end_plane, half, slot) >= 0) return false;
  }
  return true;
}

// Adds what is damaged of the weights or of the state that were read into `half`, or that could not
// be read. A drive may fail once and give the data the next time, and bits may flip on their way:
// what is read again is compared again.
void TensorStore::Impl::FindDamage(int tile, int first_plane, int end_plane, uint32_t slot,
                                   absl::Status read, std::span<std::byte> half,
                                   std::vector<TileDamage>& damaged) {
  const Tile& spec = TileAt(tile);
  if (read.ok() && IsIntact(tile, first_plane, end_plane, half, slot)) return;
  const bool weights = first_plane == 0;
  read = ReadPatiently(weights ? WeightsFile(spec) : StateFile(spec),
                       weights ? WeightOffset(spec, slot) : StateOffset(spec, slot), half);
  if (!read.ok()) {
    TileDamage& whole = damaged.emplace_back(DamageOf(tile, 0, first_plane, slot));
    whole.size_bytes = static_cast<int64_t>(half.size());
    whole.message = MessageOf(read);
    return;
  }
  for (int64_t part = 0; part < NumSealParts(TileAt(tile)); ++part) {
    for (int plane = first_plane; plane < end_plane; ++plane) {
      if (FirstBadPlane(tile, part, plane, plane + 1, half, slot) < 0) continue;
      damaged.push_back(DamageOf(tile, part, plane, slot));
    }
  }
}

int64_t TensorStore::ScrubBytes(const TileMap& tiles) {
  return tiles.max_weight_bytes() + tiles.max_state_bytes();
}

int TensorStore::Impl::ScrubTiles(uint32_t slot, int first_tile, std::span<std::byte> memory,
                                  const TakeScrubbed& take) {
  const int64_t tile_bytes = ScrubBytes(tiles);
  std::array<ScrubBuffers, kScrubTiles> ring;
  const auto num_ahead = static_cast<int>(static_cast<int64_t>(memory.size()) / tile_bytes);
  FOREBAY_CHECK(num_ahead >= 1 && num_ahead <= kScrubTiles);
  const auto start = [&](int tile) {
    ScrubBuffers& buffers = ring[tile % num_ahead];
    const Tile& spec = tiles.tiles()[tile];
    const auto bytes = memory.subspan(static_cast<size_t>(tile % num_ahead * tile_bytes));
    buffers.weights = bytes.first(static_cast<size_t>(tiles.WeightBytes(spec)));
    buffers.state = bytes.subspan(static_cast<size_t>(tiles.max_weight_bytes()),
                                  static_cast<size_t>(tiles.StateBytes(spec)));
    Start(buffers.weights_op, IoKind::kRead, IoClass::kPrefetch, WeightsFile(spec),
          WeightOffset(spec, slot), buffers.weights);
    Start(buffers.state_op, IoKind::kRead, IoClass::kPrefetch, StateFile(spec),
          StateOffset(spec, slot), buffers.state);
  };
  int num_started = first_tile;
  int tile = first_tile;
  for (bool goes_on = true; goes_on && tile < tiles.num_tiles();) {
    for (; num_started < std::min(tile + num_ahead, tiles.num_tiles()); ++num_started) {
      start(num_started);
    }
    ScrubBuffers& buffers = ring[tile % num_ahead];
    std::vector<TileDamage> damaged;
    FindDamage(tile, 0, 1, slot, engine->Wait(buffers.weights_op), buffers.weights, damaged);
    FindDamage(tile, 1, NumPlanes(tile), slot, engine->Wait(buffers.state_op), buffers.state,
               damaged);
    const Scrubbed scrubbed = take(tile, std::move(damaged));
    if (scrubbed != Scrubbed::kAgain) ++tile;
    goes_on = scrubbed == Scrubbed::kNext;
  }
  for (ScrubBuffers& buffers : ring) {
    engine->Wait(buffers.weights_op).IgnoreError();
    engine->Wait(buffers.state_op).IgnoreError();
  }
  return tile;
}

absl::Status TensorStore::Impl::ScrubSlot(uint32_t slot, MemoryBudget* budget,
                                          const std::function<void(int64_t)>& progress,
                                          std::vector<TileDamage>& damaged) {
  FOREBAY_ASSIGN_OR_RETURN(
      const HostBuffer memory,
      HostBuffer::Create(budget, "tiles to verify", kScrubTiles * ScrubBytes(tiles)));
  int64_t done_bytes = 0;
  ScrubTiles(slot, 0, memory.bytes(), [&](int tile, std::vector<TileDamage> of_tile) {
    std::ranges::move(of_tile, std::back_inserter(damaged));
    done_bytes += BytesOf(tile);
    if (progress) progress(done_bytes);
    return Scrubbed::kNext;
  });
  return absl::OkStatus();
}

absl::Status TensorStore::Scrub(MemoryBudget* budget, const std::function<void(int64_t)>& progress,
                                std::vector<TileDamage>& damaged) {
  FOREBAY_CHECK(has_commit());
  return impl_->ScrubSlot(impl_->committed_slot(), budget, progress, damaged);
}

// ---- Beside another process

// The files may be of two moments: a commit is being written, or two folders have two commits. They
// are read again then, as a commit is over soon and the next is a step away. Damage stays.
absl::Status TensorStore::Impl::FollowCommit() {
  constexpr int kMostAttempts = 20;
  constexpr std::chrono::milliseconds kPause(25);
  absl::Status status;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(kPause);
    status = RecoverCommit();
    if (ExitCodeOf(status) != ExitCode::kCorrupt) return status;
  }
  return status;
}

// Whether the committed tiles are others by now than those that `record` speaks of. Then these may
// be being written over. A copy that still has the record, or a later one, proves either; what is
// just being written proves nothing, and is read again.
absl::StatusOr<bool> TensorStore::Impl::HasMovedOn() {
  constexpr int kMostAttempts = 20;
  constexpr std::chrono::milliseconds kPause(5);
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (attempt > 0) std::this_thread::sleep_for(kPause);
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<FolderCopies> folders, ReadCopies());
    bool is_the_same = false;
    for (const FolderCopies& folder : folders) {
      for (const DecodedCopy* copy : {&folder.first, &folder.second}) {
        const CommitRecord& found = copy->record;
        const bool counts = copy->state == CopyState::kGood && found.uuid == manifest.uuid &&
                            found.sequence >= record.sequence;
        if (counts && !HaveSameTiles(found, record)) return true;
        is_the_same = is_the_same || counts;
      }
    }
    if (is_the_same) return false;
  }
  return CorruptError(fmt::format(
      "the commit record of {} cannot be read any more, which was read a moment ago. Verify the "
      "run again when it has stopped",
      Where()));
}

// With two slots the committed tiles are written over from the first write of the step after the
// next commit on. So what differs from its checksum is damaged, as long as that commit has not come
// by then; else it is looked for in what is committed now.
absl::Status TensorStore::ScrubBesideWriter(MemoryBudget* budget,
                                            const std::function<void(int64_t)>& progress,
                                            std::vector<TileDamage>& damaged,
                                            std::vector<ScrubbedStep>& steps) {
  Impl& impl = *impl_;
  FOREBAY_CHECK(has_commit() && impl.access == StoreAccess::kBesideWriter && num_slots() > 1);
  FOREBAY_ASSIGN_OR_RETURN(const HostBuffer memory,
                           HostBuffer::Create(budget, "tiles to verify", ScrubBytes(impl.tiles)));
  constexpr int kMostAttempts = 100;
  int num_attempts = 0;
  int64_t done_bytes = 0;
  for (int tile = 0; tile < impl.tiles.num_tiles();) {
    ScrubbedStep& of_step = steps.emplace_back(ScrubbedStep{committed().step, 0});
    Stopwatch watch;
    absl::StatusOr<bool> has_moved_on = false;
    const auto take = [&](int scrubbed, std::vector<TileDamage> of_tile) {
      has_moved_on = impl.HasMovedOn();
      if (!has_moved_on.ok() || (*has_moved_on && !of_tile.empty())) return Impl::Scrubbed::kAgain;
      std::ranges::move(of_tile, std::back_inserter(damaged));
      of_step.bytes += impl.BytesOf(scrubbed);
      done_bytes += impl.BytesOf(scrubbed);
      if (progress) progress(done_bytes);
      // Half of the time the disk is the writer's alone.
      std::this_thread::sleep_for(std::chrono::duration<double>(watch.Seconds()));
      watch.Restart();
      return *has_moved_on ? Impl::Scrubbed::kLast : Impl::Scrubbed::kNext;
    };
    const int next = impl.ScrubTiles(impl.committed_slot(), tile, memory.bytes(), take);
    FOREBAY_RETURN_IF_ERROR(has_moved_on.status());
    if (next == tile && ++num_attempts == kMostAttempts) {
      return EnvironmentError(fmt::format(
          "the store in {} is written to so fast that tile {} cannot be read between two commits. "
          "Verify it when the run has stopped",
          impl.Where(), tile));
    }
    if (next > tile) num_attempts = 0;
    tile = next;
    if (of_step.bytes == 0) steps.pop_back();
    if (tile < impl.tiles.num_tiles()) FOREBAY_RETURN_IF_ERROR(impl.FollowCommit());
  }
  return absl::OkStatus();
}

}  // namespace forebay
