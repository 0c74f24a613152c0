#include "forebay/swap/session/tensor_session.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/process/start_thread.h"
#include "forebay/swap/session/session_options.h"
#include "forebay/swap/session/tensor_session_impl.h"

namespace forebay {
namespace {

constexpr int kMostTilesAhead = 8;  // of a gather
constexpr double kLongestWaitS = 1e7;
constexpr int64_t kMostScratchBytes = int64_t{16} << 20;

bool IsOfFloats(TensorPlane plane) {
  return plane != TensorPlane::kW16 && plane != TensorPlane::kRaw;
}

}  // namespace

// ---- Life

TensorSession::Impl::Impl(const SessionOptions& session_options,
                          std::unique_ptr<TensorStore> the_store)
    : options(session_options),
      budget(session_options.memory_bytes),
      inventory(the_store->inventory()),
      store(std::move(the_store)) {
  const std::vector<TensorSpec>& tensors = inventory.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensor_of_name.emplace(tensors[i].name, static_cast<int>(i));
  }
  groups.resize(tensors.size() * kGroupsPerTensor);
  queue.reserve(groups.size());
  waiting.reserve(64);
  if (store->has_commit()) committed = store->committed();
  CountElems();
  ForgetCoverage();
}

// What the system may refuse: memory, space on disk, a thread.
absl::Status TensorSession::Impl::Start(bool is_new) {
  FOREBAY_ASSIGN_OR_RETURN(const SessionMemory memory,
                           Divide(options, store->inventory(), store->tiles()));
  for (const TileHalf half : kTileHalves) {
    FOREBAY_ASSIGN_OR_RETURN(caches[static_cast<int>(half)],
                             TileCache::Create(store.get(), half, memory.num_cells, &budget));
  }
  FOREBAY_ASSIGN_OR_RETURN(lease_memory,
                           HostBuffer::Create(&budget, "leased values", memory.lease_bytes));
  if (is_new && !store->unfilled()) {
    const int64_t scratch_bytes = std::min(memory.lease_bytes, kMostScratchBytes);
    FOREBAY_RETURN_IF_ERROR(
        store->WriteSpareSpace(lease_memory.bytes().first(scratch_bytes), {}, {}));
  }
  arena.emplace(memory.lease_bytes);
  FOREBAY_ASSIGN_OR_RETURN(writer, StartThread("the writes of a session", [this] { RunWriter(); }));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TensorSession>> TensorSession::Impl::Make(
    const SessionOptions& options, std::unique_ptr<TensorStore> store, bool is_new) {
  auto impl = std::make_shared<Impl>(options, std::move(store));
  absl::Status status = impl->Start(is_new);
  if (!status.ok()) {
    if (is_new) impl->store->RemoveCreated();
    return status;
  }
  return std::unique_ptr<TensorSession>(new TensorSession(std::move(impl)));
}

TensorSession::TensorSession(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

TensorSession::~TensorSession() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->has_ended = true;
    impl_->command = Impl::Command::kStop;
    impl_->wake.notify_all();
  }
  impl_->writer.join();
  // Leases may outlive this, but not what they would be written to.
  for (std::unique_ptr<TileCache>& cache : impl_->caches) cache.reset();
  impl_->store.reset();
}

absl::StatusOr<std::unique_ptr<TensorSession>> TensorSession::Create(
    const SessionOptions& options, const StoreOptions& store_options, const Inventory& inventory,
    Engine* engine) {
  FOREBAY_RETURN_IF_ERROR(CheckStoreOptions(store_options, inventory));
  StoreOptions absolute = store_options;
  FOREBAY_ASSIGN_OR_RETURN(absolute.directories, AbsolutePaths(store_options.directories));
  const TileMap tiles(inventory, store_options.layout, store_options.tile_elems, {1},
                      store_options.moment_set);
  FOREBAY_RETURN_IF_ERROR(Divide(options, inventory, tiles).status());
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                           TensorStore::Create(absolute, inventory, engine));
  return Impl::Make(options, std::move(store), /*is_new=*/true);
}

absl::StatusOr<std::unique_ptr<TensorSession>> TensorSession::Open(
    const SessionOptions& options, const std::vector<std::string>& directories, Engine* engine,
    const std::string& uuid) {
  if (directories.empty()) return UsageError("a store lies in one folder or more; none was named");
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> absolute, AbsolutePaths(directories));
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                           TensorStore::Open(absolute, engine, uuid));
  FOREBAY_RETURN_IF_ERROR(CheckIsExact(store->tiles().layout()));
  FOREBAY_RETURN_IF_ERROR(store->ReserveSpace());
  return Impl::Make(options, std::move(store), /*is_new=*/false);
}

int64_t TensorSession::LeastMemoryBytes(const TileMap& tiles, int64_t num_elems) {
  return TileCache::kLeastCells * TilePairBytes(tiles) +
         HostBuffer::ChargedBytes(LeaseArena::RangeBytes(std::max<int64_t>(1, 4 * num_elems)));
}

const Inventory& TensorSession::inventory() const {
  return impl_->inventory;
}
const TensorStore& TensorSession::store() const {
  return *impl_->store;
}
std::optional<CommitInfo> TensorSession::committed() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->committed;
}

SessionStats TensorSession::stats() const {
  SessionStats stats;
  {
    const std::lock_guard lock(impl_->mutex);
    stats = impl_->counts;
    stats.leased_bytes = impl_->arena->used_bytes();
    stats.peak_leased_bytes = impl_->arena->peak_bytes();
  }
  stats.resident_bytes = stats.leased_bytes;
  stats.peak_resident_bytes = stats.peak_leased_bytes;
  for (const auto& cache : impl_->caches) {
    const TileCacheStats of_tiles = cache->stats();
    stats.read_bytes += of_tiles.read_bytes;
    stats.write_bytes += of_tiles.write_bytes;
    stats.copied_bytes += of_tiles.copied_bytes;
    stats.kept_bytes += of_tiles.kept_bytes;
    stats.tile_reads += of_tiles.reads;
    stats.tile_hits += of_tiles.hits;
    stats.resident_bytes += of_tiles.resident_bytes;
    stats.peak_resident_bytes += of_tiles.peak_resident_bytes;
  }
  return stats;
}

// ---- Finding tensors and room

absl::StatusOr<int> TensorSession::Impl::FindTensor(std::string_view name,
                                                    TensorPlane plane) const {
  const auto found = tensor_of_name.find(name);
  if (found == tensor_of_name.end()) {
    return UsageError(
        fmt::format("the store in '{}' has no tensor '{}'", store->directory(), name));
  }
  const TensorSpec& tensor = inventory.tensors()[found->second];
  if (!Has(store->tiles(), tensor, plane)) {
    if (tensor.raw) {
      return UsageError(
          fmt::format("'{}' is a raw tensor, whose bytes are no {}: ask for TensorPlane::kRaw",
                      name, NameOf(plane)));
    }
    if (plane == TensorPlane::kRaw) {
      return UsageError(fmt::format(
          "'{}' is no raw tensor (Inventory::AddRaw): ask for its master, m or v", name));
    }
    if (plane == TensorPlane::kW16) {
      return UsageError(fmt::format("'{}' has no w16: the store's layout is {}. Use the master",
                                    name, NameOf(store->tiles().layout())));
    }
    return UsageError(
        fmt::format("'{}' has no {}: the store was created without it "
                    "(StoreOptions::moment_set)",
                    name, NameOf(plane)));
  }
  return found->second;
}

absl::StatusOr<int> TensorSession::Impl::Resolve(const LeaseRequest& request) const {
  FOREBAY_ASSIGN_OR_RETURN(const int tensor, FindTensor(request.tensor, request.plane));
  if (request.plane == TensorPlane::kW16 && request.access != LeaseAccess::kRead) {
    return UsageError(
        fmt::format("w16 of '{}' is the master rounded and cannot be written by itself; write the "
                    "master",
                    request.tensor));
  }
  return tensor;
}

absl::Status TensorSession::Impl::NoRoomError(int64_t bytes, std::string_view first) const {
  return OutOfMemoryError(fmt::format(
      "no room for {} of values ('{}') within {} s: {} leases, and releases that are being written "
      "back, hold {} of the {} for leases. End leases earlier, acquire what belongs together in "
      "one call (AcquireAll), or raise memory_bytes",
      FormatBinaryBytes(bytes), first, options.wait_limit_s, num_leases,
      FormatBinaryBytes(arena->used_bytes()), FormatBinaryBytes(arena->size_bytes())));
}

// In the order of the calls, so that a large request is not passed by small ones for ever.
absl::StatusOr<int64_t> TensorSession::Impl::TakeRoom(Lock& lock, int64_t bytes,
                                                      std::string_view first) {
  const int64_t ticket = next_ticket++;
  waiting.push_back(ticket);
  std::optional<int64_t> begin;
  const auto has_room = [&] {
    if (waiting.front() == ticket) begin = arena->Take(bytes);
    return begin.has_value();
  };
  if (!has_room()) {
    const Stopwatch stopwatch;
    ++counts.waits;
    const double limit_s = std::clamp(options.wait_limit_s, 0.0, kLongestWaitS);
    changed.wait_for(lock, std::chrono::duration<double>(limit_s), has_room);
    counts.wait_s += stopwatch.Seconds();
  }
  std::erase(waiting, ticket);
  changed.notify_all();  // the next in the queue
  if (!begin.has_value()) return NoRoomError(bytes, first);
  return *begin;
}

// ---- Leases

std::span<std::byte> TensorSession::Impl::ValuesAt(int tensor, TensorPlane plane,
                                                   int64_t begin_bytes) const {
  const int64_t bytes = inventory.tensors()[tensor].num_elems * BytesPerElem(plane);
  return lease_memory.bytes().subspan(static_cast<size_t>(begin_bytes), static_cast<size_t>(bytes));
}

// Fills in `leases`, with room and marked, so that their values can be gathered; or none of them.
absl::Status TensorSession::Impl::Reserve(Lock& lock, std::span<const LeaseRequest> requests,
                                          std::span<TensorLease> leases) {
  const auto writes = [](const TensorLease& lease) { return lease.access_ != LeaseAccess::kRead; };
  if (std::ranges::any_of(leases, writes)) {
    changed.wait(lock, [this] { return command == Command::kNone; });
  }
  FOREBAY_RETURN_IF_ERROR(failure);
  size_t num_marked = 0;
  absl::Status status;
  int64_t all_bytes = 0;
  for (; num_marked < leases.size(); ++num_marked) {
    const TensorLease& lease = leases[num_marked];
    all_bytes += RangeBytesOf(lease);
    if (!writes(lease)) continue;
    if (std::exchange(groups[GroupOf(lease.tensor_, lease.plane_)].write_leased, true)) {
      status = UsageError(
          fmt::format("{} of '{}' is leased for writing already; release that lease first",
                      NameOf(lease.plane_), requests[num_marked].tensor));
      break;
    }
    ++num_write_leases;
  }
  int64_t begin_bytes = 0;
  if (status.ok() && all_bytes > arena->size_bytes()) {
    status = DoesNotFitError(fmt::format(
        "values of {} bytes ('{}'{}) can never fit in the {} bytes that the session has for "
        "leases. Raise memory_bytes or lease_bytes, or acquire less in one call",
        all_bytes, requests.front().tensor, requests.size() > 1 ? " and others" : "",
        arena->size_bytes()));
  }
  if (status.ok()) {
    absl::StatusOr<int64_t> room = TakeRoom(lock, all_bytes, requests.front().tensor);
    status = room.status();
    if (room.ok()) begin_bytes = *room;
  }
  if (!status.ok()) {
    for (const TensorLease& lease : leases.first(num_marked)) {
      if (!writes(lease)) continue;
      groups[GroupOf(lease.tensor_, lease.plane_)].write_leased = false;
      --num_write_leases;
    }
    return status;
  }
  for (TensorLease& lease : leases) {
    lease.begin_bytes_ = begin_bytes;
    begin_bytes += RangeBytesOf(lease);
  }
  num_leases += static_cast<int>(leases.size());
  counts.leases += static_cast<int64_t>(leases.size());
  return absl::OkStatus();
}

// Of one tensor, from its tiles. Without the lock.
absl::Status TensorSession::Impl::Gather(const TensorLease& lease) {
  const TensorSpec& tensor = lease.tensor();
  const TileMap& tiles = store->tiles();
  const TileRange range = TilesOf(tiles, tensor);
  const std::span<std::byte> values = ValuesAt(lease.tensor_, lease.plane_, lease.begin_bytes_);
  int next_ahead[2] = {range.first, range.first};
  for (int tile = range.first; tile < range.end; ++tile) {
    for (const TileHalf half : kTileHalves) {
      if (!LiesIn(tiles.layout(), lease.plane_, half)) continue;
      TileCache& cache = CacheOf(half);
      int& ahead = next_ahead[static_cast<int>(half)];
      ahead = std::max(ahead, tile);
      while (ahead < std::min(range.end, tile + kMostTilesAhead) &&
             cache.ReadAhead(ahead, IoClass::kDemand)) {
        ++ahead;
      }
      FOREBAY_ASSIGN_OR_RETURN(const TileCache::Pin pin, cache.Read(tile));
      CopyFromTile(tiles, tile, half, pin.bytes(), tensor, lease.plane_, values);
    }
  }
  return absl::OkStatus();
}

absl::Status TensorSession::Impl::GatherAll(Lock& lock, std::span<const TensorLease> leases) {
  const auto gathers = [](const TensorLease& lease) {
    return lease.access_ != LeaseAccess::kOverwrite;
  };
  changed.wait(lock, [&] {
    return !gate_closed && std::ranges::all_of(leases, [&](const TensorLease& lease) {
      return !gathers(lease) || groups[GroupOf(lease.tensor_, lease.plane_)].pending == 0;
    });
  });
  // What was waited for may have failed meanwhile, and left its tiles as they were.
  FOREBAY_RETURN_IF_ERROR(failure);
  for (const TensorLease& lease : leases) {
    if (gathers(lease)) ++groups[GroupOf(lease.tensor_, lease.plane_)].gathers;
  }
  ++num_gathers;
  lock.unlock();
  absl::Status status;
  for (const TensorLease& lease : leases) {
    if (status.ok() && gathers(lease)) status = Gather(lease);
  }
  lock.lock();
  for (const TensorLease& lease : leases) {
    if (gathers(lease)) --groups[GroupOf(lease.tensor_, lease.plane_)].gathers;
  }
  --num_gathers;
  changed.notify_all();
  return status;
}

absl::Status TensorSession::AcquireAll(std::span<const LeaseRequest> requests,
                                       std::span<TensorLease> leases) {
  if (requests.size() != leases.size() || std::ranges::any_of(leases, &TensorLease::is_out)) {
    return UsageError(fmt::format(
        "acquire: {} requests and {} leases, of which {} are out: give one for each request, and "
        "release it first",
        requests.size(), leases.size(), std::ranges::count_if(leases, &TensorLease::is_out)));
  }
  for (size_t i = 0; i < leases.size(); ++i) {
    FOREBAY_ASSIGN_OR_RETURN(leases[i].tensor_, impl_->Resolve(requests[i]));
    leases[i].plane_ = requests[i].plane;
    leases[i].access_ = requests[i].access;
  }
  if (leases.empty()) return absl::OkStatus();
  Impl::Lock lock(impl_->mutex);
  FOREBAY_RETURN_IF_ERROR(impl_->Reserve(lock, requests, leases));
  for (TensorLease& lease : leases) lease.session_ = impl_;
  const absl::Status status = impl_->GatherAll(lock, leases);
  lock.unlock();
  if (!status.ok()) {
    for (TensorLease& lease : leases) lease.Discard();
  }
  return status;
}

absl::StatusOr<TensorLease> TensorSession::Acquire(std::string_view tensor, TensorPlane plane,
                                                   LeaseAccess access) {
  const LeaseRequest request{tensor, plane, access};
  TensorLease lease;
  FOREBAY_RETURN_IF_ERROR(AcquireAll({&request, 1}, {&lease, 1}));
  return lease;
}

absl::Status TensorSession::Expect(std::string_view tensor, TensorPlane plane) {
  FOREBAY_ASSIGN_OR_RETURN(const int index, impl_->FindTensor(tensor, plane));
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->gate_closed) return absl::OkStatus();
    ++impl_->num_gathers;
  }
  const TileMap& tiles = impl_->store->tiles();
  const TileRange range = TilesOf(tiles, inventory().tensors()[index]);
  for (const TileHalf half : kTileHalves) {
    if (!LiesIn(tiles.layout(), plane, half)) continue;
    for (int tile = range.first; tile < range.end; ++tile) {
      if (!impl_->CacheOf(half).ReadAhead(tile, IoClass::kPrefetch)) break;
    }
  }
  const std::lock_guard lock(impl_->mutex);
  --impl_->num_gathers;
  impl_->changed.notify_all();
  return absl::OkStatus();
}

absl::Status TensorSession::Impl::Release(const TensorLease& lease, bool write_back) {
  const std::lock_guard lock(mutex);
  --num_leases;
  if (has_ended) {
    if (!write_back || lease.access_ == LeaseAccess::kRead) return absl::OkStatus();
    return UsageError(
        fmt::format("release: the session of '{}' has ended before its lease: nothing of it is "
                    "written. Release leases, and commit, before the session ends",
                    inventory.tensors()[lease.tensor_].name));
  }
  if (lease.access_ != LeaseAccess::kRead) {
    Group& group = groups[GroupOf(lease.tensor_, lease.plane_)];
    group.write_leased = false;
    --num_write_leases;
    if (write_back) {
      written = true;
      ++group.pending;
      if (queue.size() == queue.capacity()) {  // in place of growing, where the front is free
        queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(queue_front));
        queue_front = 0;
      }
      queue.push_back({lease.tensor_, lease.plane_, lease.begin_bytes_});
      wake.notify_all();
      return failure;
    }
  }
  arena->GiveBack(lease.begin_bytes_, RangeBytesOf(lease));
  changed.notify_all();
  return failure;
}

TensorLease::TensorLease(TensorLease&& other) noexcept {
  *this = std::move(other);
}
TensorLease& TensorLease::operator=(TensorLease&& other) noexcept {
  if (this == &other) return *this;
  Discard();
  session_ = std::move(other.session_);
  tensor_ = other.tensor_;
  plane_ = other.plane_;
  access_ = other.access_;
  begin_bytes_ = other.begin_bytes_;
  return *this;
}

absl::Status TensorLease::Release() {
  if (session_ == nullptr) return absl::OkStatus();
  const std::shared_ptr<TensorSession::Impl> session = std::move(session_);
  return session->Release(*this, /*write_back=*/true);
}
void TensorLease::Discard() {
  if (session_ == nullptr) return;
  const std::shared_ptr<TensorSession::Impl> session = std::move(session_);
  session->Release(*this, /*write_back=*/false).IgnoreError();
}

bool TensorLease::OutlivesSession() const {
  if (session_ == nullptr) return false;
  const std::lock_guard lock(session_->mutex);
  return session_->has_ended;
}

const TensorSpec& TensorLease::tensor() const {
  static const TensorSpec none;
  return session_ != nullptr ? session_->inventory.tensors()[tensor_] : none;
}
std::span<std::byte> TensorLease::BytesOf() const {
  return session_->ValuesAt(tensor_, plane_, begin_bytes_);
}
std::span<const float> TensorLease::values() const {
  if (session_ == nullptr || !IsOfFloats(plane_)) return {};
  const std::span<std::byte> bytes = BytesOf();
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::span<float> TensorLease::floats() {
  if (session_ == nullptr || access_ == LeaseAccess::kRead || !IsOfFloats(plane_)) return {};
  const std::span<std::byte> bytes = BytesOf();
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}
std::span<const Bf16> TensorLease::bf16() const {
  if (session_ == nullptr || plane_ != TensorPlane::kW16) return {};
  const std::span<std::byte> bytes = BytesOf();
  return {reinterpret_cast<const Bf16*>(bytes.data()), bytes.size() / sizeof(Bf16)};
}
std::span<const std::byte> TensorLease::bytes() const {
  if (session_ == nullptr || plane_ != TensorPlane::kRaw) return {};
  return BytesOf();
}
std::span<std::byte> TensorLease::writable_bytes() {
  if (session_ == nullptr || access_ == LeaseAccess::kRead || plane_ != TensorPlane::kRaw) {
    return {};
  }
  return BytesOf();
}

// ---- Committed values

absl::StatusOr<const TensorSpec*> TensorSession::Impl::BeginSnapshot(std::string_view tensor,
                                                                     TensorPlane plane,
                                                                     int64_t first_elem,
                                                                     size_t num_elems) {
  FOREBAY_ASSIGN_OR_RETURN(const int index, FindTensor(tensor, plane));
  const TensorSpec& spec = store->inventory().tensors()[index];
  const auto count = static_cast<int64_t>(num_elems);
  if (first_elem < 0 || count > spec.num_elems || first_elem > spec.num_elems - count) {
    return UsageError(fmt::format("'{}' has {} elements; {} from {} on were asked for", tensor,
                                  spec.num_elems, count, first_elem));
  }
  Lock lock(mutex);
  changed.wait(lock, [this] { return !publishing; });
  if (!committed.has_value()) {
    return UsageError(fmt::format("nothing is committed to '{}' yet", store->directory()));
  }
  if (store->num_slots() == 1 && (written || is_overwriting)) {
    return UsageError(fmt::format(
        "the store in '{}' has one slot, and step {} is being overwritten in it: it can be read "
        "after the next commit. A store with two slots can be read at any time",
        store->directory(), committed->step));
  }
  ++num_snapshots;
  return &spec;
}

void TensorSession::Impl::EndSnapshot() {
  const std::lock_guard lock(mutex);
  --num_snapshots;
  changed.notify_all();
}

absl::Status TensorSession::ReadCommitted(std::string_view tensor, TensorPlane plane,
                                          int64_t first_elem, std::span<float> out) {
  if (plane == TensorPlane::kW16) return UsageError("w16 is read with ReadCommittedW16");
  if (plane == TensorPlane::kRaw) {
    return UsageError(fmt::format("the bytes of '{}' are read with ReadCommittedRaw", tensor));
  }
  FOREBAY_ASSIGN_OR_RETURN(const TensorSpec* const spec,
                           impl_->BeginSnapshot(tensor, plane, first_elem, out.size()));
  const absl::Status status = impl_->store->ReadTensor(*spec, plane, first_elem, out);
  impl_->EndSnapshot();
  return status;
}

absl::Status TensorSession::ReadCommittedRaw(std::string_view tensor, int64_t first_byte,
                                             std::span<std::byte> out) {
  FOREBAY_ASSIGN_OR_RETURN(const TensorSpec* const spec,
                           impl_->BeginSnapshot(tensor, TensorPlane::kRaw, first_byte, out.size()));
  const absl::Status status = impl_->store->ReadRaw(*spec, first_byte, out);
  impl_->EndSnapshot();
  return status;
}

absl::Status TensorSession::ReadCommittedW16(std::string_view tensor, int64_t first_elem,
                                             std::span<Bf16> out) {
  FOREBAY_ASSIGN_OR_RETURN(const TensorSpec* const spec,
                           impl_->BeginSnapshot(tensor, TensorPlane::kW16, first_elem, out.size()));
  const absl::Status status = impl_->store->ReadTensorW16(*spec, first_elem, out);
  impl_->EndSnapshot();
  return status;
}

}  // namespace forebay
