#include "forebay/swap/session/session_options.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/swap/session/lease_arena.h"
#include "forebay/swap/session/tile_cache.h"

namespace forebay {
namespace {

// The most of all tensors, with `num_planes` of its planes; a raw one has a single plane.
int64_t LargestTensorBytes(const Inventory& inventory, int64_t num_planes) {
  int64_t largest_bytes = HostBuffer::ChargedBytes(0);
  for (const TensorSpec& tensor : inventory.tensors()) {
    const TensorPlane plane = tensor.raw ? TensorPlane::kRaw : TensorPlane::kMaster;
    const int64_t plane_bytes = LeaseArena::RangeBytes(tensor.num_elems * BytesPerElem(plane));
    largest_bytes = std::max(largest_bytes,
                             (tensor.raw ? 1 : num_planes) * HostBuffer::ChargedBytes(plane_bytes));
  }
  return largest_bytes;
}

absl::Status CheckFolders(const StoreOptions& options) {
  const size_t num_folders = options.directories.size();
  if (num_folders < 1 || num_folders > static_cast<size_t>(kMaxStripes)) {
    return UsageError(fmt::format("a store lies in 1 to {} folders; it was to have {}", kMaxStripes,
                                  num_folders));
  }
  for (const auto& [numbers, name] : {std::pair(&options.stripe_weights, "stripe_weights"),
                                      std::pair(&options.scratch_bytes, "scratch_bytes")}) {
    if (!numbers->empty() && numbers->size() != num_folders) {
      return UsageError(fmt::format(
          "{} has a number for each of the {} folders, or none at all; it was to have {}", name,
          num_folders, numbers->size()));
    }
  }
  for (const int64_t weight : options.stripe_weights) {
    if (weight < 1 || weight > kMaxStripeWeight) {
      return UsageError(fmt::format("stripe_weights has {}; a folder's weight is from 1 to {}",
                                    weight, kMaxStripeWeight));
    }
  }
  for (const int64_t bytes : options.scratch_bytes) {
    if (bytes < 0) {
      return UsageError(fmt::format("scratch_bytes has {}; 0 is the least", bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SessionMemory> Divide(const SessionOptions& options, const Inventory& inventory,
                                     const TileMap& tiles) {
  const int64_t pair_bytes = TilePairBytes(tiles);
  const int64_t least_cache_bytes = TileCache::kLeastCells * pair_bytes;
  const int64_t most_lease_bytes =
      (options.memory_bytes - least_cache_bytes) / kIoAlignBytes * kIoAlignBytes;
  if (most_lease_bytes < std::max(kIoAlignBytes, options.lease_bytes) || options.lease_bytes < 0) {
    return DoesNotFitError(fmt::format(
        "a session has {} bytes of memory, {} of them for leases, and needs {} for tiles ({} tiles "
        "of weights and of state). Raise memory_bytes ({} lets every tensor be leased), or "
        "create the store with smaller tiles (tile_elems, now {})",
        options.memory_bytes, options.lease_bytes, least_cache_bytes, TileCache::kLeastCells,
        least_cache_bytes + LargestTensorBytes(inventory, 1), tiles.tile_elems()));
  }
  SessionMemory memory;
  memory.lease_bytes = HostBuffer::ChargedBytes(options.lease_bytes);  // rounded up
  if (options.lease_bytes == 0) {
    memory.lease_bytes = std::min(
        most_lease_bytes, std::max(options.memory_bytes / 2, LargestTensorBytes(inventory, 3)));
  }
  const int64_t num_cells = (options.memory_bytes - memory.lease_bytes) / pair_bytes;
  memory.num_cells = static_cast<int>(std::clamp<int64_t>(
      num_cells, TileCache::kLeastCells, std::max(TileCache::kLeastCells, tiles.num_tiles())));
  if (options.lease_bytes == 0) {
    memory.lease_bytes =
        (options.memory_bytes - memory.num_cells * pair_bytes) / kIoAlignBytes * kIoAlignBytes;
  }
  return memory;
}

absl::Status CheckIsExact(Layout layout) {
  if (!IsLossy(layout)) return absl::OkStatus();
  return UsageError(fmt::format(
      "a session leases values as they are stored, and layout '{}' keeps rounded codes "
      "of the moments. Use an exact one: '{}', '{}' or '{}'",
      NameOf(layout), NameOf(Layout::kBf16), NameOf(Layout::kFp16), NameOf(Layout::kFp32)));
}

absl::Status CheckStoreOptions(const StoreOptions& options, const Inventory& inventory) {
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : inventory.tensors()) {
    if (!names.insert(tensor.name).second) {
      return UsageError(fmt::format(
          "the inventory has two tensors '{}'; names are how they are found", tensor.name));
    }
  }
  if (inventory.num_padded_elems() == 0) {
    return UsageError("the inventory has no elements: a store needs at least one tensor");
  }
  if (options.tile_elems <= 0 || options.tile_elems % kLayerAlignElems != 0) {
    return UsageError(fmt::format("tile_elems is {}; tiles have a multiple of {} elements",
                                  options.tile_elems, kLayerAlignElems));
  }
  FOREBAY_RETURN_IF_ERROR(CheckIsExact(options.layout));
  if (options.num_slots < 1 || options.num_slots > kMostSlots) {
    return UsageError(
        fmt::format("a store has 1 or {} slots; it was to have {}", kMostSlots, options.num_slots));
  }
  return CheckFolders(options);
}

}  // namespace forebay
