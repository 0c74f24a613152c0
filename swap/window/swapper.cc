#include "forebay/swap/window/swapper.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/start_thread.h"
#include "forebay/swap/store/transfer_buffer.h"
#include "forebay/swap/window/access_queue.h"

namespace forebay {

// Who touches what: everything is the staging thread's, except what is marked "mutex", which both
// threads touch under it. The mutex is never held during I/O or a call of the updater.
//
// No deadlock, counted in buffers. Acquire waits for the front access p. Buffers are assigned in
// order within a class: accesses before p are released or lent, and accesses behind p get none
// before p has one. So those of p's class that are in use are lent to other layers, and one is not
// (CheckAcquire). Taking it waits for reads, write-backs and devices only, and those wait for
// nobody.
struct Swapper::Impl {
  struct Buffer {
    BufferClass buffer_class = BufferClass::kBlock;
    TransferBuffer memory;
    std::unique_ptr<IoOp[]> ops;  // one for each tile of the layer that is being read
    int layer = -1;               // whose weights it holds or is reading
    int num_reads = 0;            // reads in flight
    bool in_write_back = false;   // AwaitWriteBack is still to be called
    int num_users = 0;            // mutex: accesses and leases that need it
    int num_exposed = 0;          // mutex: those of them that are ready or lent
    int64_t last_use = 0;         // mutex: by num_uses
    Event* last_read = nullptr;   // mutex: when work on a device no longer reads it; nullptr: now
  };
  struct Lease {
    int layer = -1;
    int buffer = -1;
  };
  enum class Command : uint8_t {
    kNone,
    kApplyAllUpdates,
    kCancelExpected,
    kForget,
    kSwitch,
    kStop
  };
  using Lock = std::unique_lock<std::mutex>;

  Impl(TensorStore* the_store, TileUpdater* the_updater) : store(the_store), updater(the_updater) {}

  absl::Status MakeBuffers(const WindowOptions& options, const Placement& placement,
                           MemoryBudget* budget, Device* device);
  absl::Status AddBuffer(BufferClass buffer_class, int64_t bytes, int max_tiles,
                         MemoryBudget* budget, Device* device);
  absl::Status LoadResidentLayers();

  // The staging thread.
  void Run();
  bool StageNext(Lock& lock, AccessQueue& queue);
  void AssignBuffers(Lock& lock, AccessQueue& queue);
  int ChooseBuffer(BufferClass buffer_class) const;
  void TakeBuffersBack();
  void ApplyDueUpdates(Lock& lock);
  absl::Status WriteResidentLayers();
  absl::Status Stage(Buffer& buffer, bool exposed);
  void StartReads(Buffer& buffer, int layer, IoClass io_class);
  absl::Status FinishReads(Buffer& buffer, bool verify);
  absl::Status FinishWriteBack(Buffer& buffer);
  absl::Status AwaitLastRead(Buffer& buffer);
  void ForgetSpeculative(Lock& lock);
  void Switch(Lock& lock);
  absl::Status Forget(Buffer& buffer);
  void Quiesce();
  void Fail(const absl::Status& status);

  // The caller's thread.
  absl::Status CheckAcquire(int layer);
  void Send(Lock& lock, Command new_command);

  BufferClass ClassOf(int layer) const { return class_of_layer[layer]; }
  const std::string& NameOfLayer(int layer) const {
    return store->inventory().layers()[layer].name;
  }
  std::span<std::byte> WeightsIn(const Buffer& buffer, int layer) const {
    return buffer.memory.bytes().first(
        static_cast<size_t>(LayerWeightBytes(store->tiles(), layer)));
  }

  TensorStore* const store;
  TileUpdater* const updater;
  std::vector<bool> is_speculative;  // by layer, or empty: none
  std::vector<BufferClass> class_of_layer;
  std::vector<Buffer> buffers;
  std::vector<int> buffer_of_layer;  // -1: in none
  AccessQueue updates;  // of ApplyAllUpdates: layers that no announced access brings in
  Generation generation = Generation::kNewest;  // changed under the mutex

  std::mutex mutex;
  std::condition_variable wake;                      // the staging thread
  std::condition_variable progress;                  // the caller
  bool wake_requested = false;                       // mutex
  Command command = Command::kNone;                  // mutex
  Generation next_generation = Generation::kNewest;  // mutex: of kSwitch
  AccessQueue announced;                             // mutex
  std::vector<Lease> leases;                         // mutex
  int64_t num_uses = 0;                              // mutex: accesses that have ended
  absl::Status failure;  // mutex: the first error; nothing is staged after it
  SwapperStats stats;    // mutex
  std::thread thread;
};

// ---- Buffers

absl::Status Swapper::Impl::AddBuffer(BufferClass buffer_class, int64_t bytes, int max_tiles,
                                      MemoryBudget* budget, Device* device) {
  Buffer buffer;
  buffer.buffer_class = buffer_class;
  const bool resident = buffer_class == BufferClass::kResident;
  FOREBAY_ASSIGN_OR_RETURN(
      buffer.memory,
      TransferBuffer::Create(store, budget, resident ? "resident weights" : "weights window", bytes,
                             store->tiles().max_weight_bytes(), device));
  buffer.ops = std::make_unique<IoOp[]>(static_cast<size_t>(max_tiles));
  buffers.push_back(std::move(buffer));
  return absl::OkStatus();
}

absl::Status Swapper::Impl::MakeBuffers(const WindowOptions& options, const Placement& placement,
                                        MemoryBudget* budget, Device* device) {
  const TileMap& tiles = store->tiles();
  const WindowShape shape = WindowShapeOf(options, tiles);
  class_of_layer = BufferClassesOf(options, placement, tiles);
  is_speculative = placement.speculative;
  int max_tiles = 0;
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    max_tiles = std::max(max_tiles, tiles.first_tile(layer + 1) - tiles.first_tile(layer));
  }
  for (int i = 0; i < options.num_block_buffers; ++i) {
    FOREBAY_RETURN_IF_ERROR(
        AddBuffer(BufferClass::kBlock, shape.block_bytes, max_tiles, budget, device));
  }
  for (int i = 0; shape.large_bytes > 0 && i < options.num_large_buffers; ++i) {
    FOREBAY_RETURN_IF_ERROR(
        AddBuffer(BufferClass::kLarge, shape.large_bytes, max_tiles, budget, device));
  }
  buffer_of_layer.assign(static_cast<size_t>(tiles.num_streamed_layers()), -1);
  for (int layer = 0; layer < tiles.num_streamed_layers(); ++layer) {
    if (ClassOf(layer) != BufferClass::kResident) continue;
    FOREBAY_RETURN_IF_ERROR(AddBuffer(BufferClass::kResident, LayerWeightBytes(tiles, layer),
                                      max_tiles, budget, device));
    buffers.back().layer = layer;
    buffer_of_layer[layer] = static_cast<int>(buffers.size()) - 1;
  }
  leases.reserve(buffers.size());
  return absl::OkStatus();
}

absl::Status Swapper::Impl::LoadResidentLayers() {
  absl::Status status;
  for (Buffer& buffer : buffers) {
    if (buffer.buffer_class == BufferClass::kResident) {
      StartReads(buffer, buffer.layer, IoClass::kDemandRead);
      status.Update(FinishReads(buffer, /*verify=*/true));
    }
  }
  return status;
}

void Swapper::Impl::StartReads(Buffer& buffer, int layer, IoClass io_class) {
  const TileMap& tiles = store->tiles();
  const std::span<std::byte> weights = WeightsIn(buffer, layer);
  const int first_tile = tiles.first_tile(layer);
  buffer.num_reads = tiles.first_tile(layer + 1) - first_tile;
  for (int i = 0; i < buffer.num_reads; ++i) {
    const Tile& tile = tiles.tiles()[first_tile + i];
    const auto offset = static_cast<size_t>(tile.first_elem * WeightBytesPerElem(tiles.layout()));
    const auto bytes = static_cast<size_t>(tiles.WeightBytes(tile));
    store->StartReadWeights(first_tile + i, weights.subspan(offset, bytes), io_class, buffer.ops[i],
                            generation);
  }
}

// `verify`: what was read will be used.
absl::Status Swapper::Impl::FinishReads(Buffer& buffer, bool verify) {
  absl::Status status;
  const int num_reads = std::exchange(buffer.num_reads, 0);
  for (int i = 0; i < num_reads; ++i) status.Update(store->engine().Wait(buffer.ops[i]));
  for (int i = 0; verify && status.ok() && i < num_reads; ++i) {
    status = store->VerifyWeights(store->tiles().first_tile(buffer.layer) + i, buffer.ops[i].buffer,
                                  generation);
  }
  return status.ok() ? status
                     : Annotate(status, fmt::format("reading the weights of '{}'",
                                                    NameOfLayer(buffer.layer)));
}

absl::Status Swapper::Impl::FinishWriteBack(Buffer& buffer) {
  if (!buffer.in_write_back) return absl::OkStatus();
  buffer.in_write_back = false;
  const absl::Status status = updater->AwaitWriteBack(buffer.layer);
  return status.ok()
             ? status
             : Annotate(status, fmt::format("writing '{}' back", NameOfLayer(buffer.layer)));
}

// Before the buffer gets other bytes.
absl::Status Swapper::Impl::AwaitLastRead(Buffer& buffer) {
  Event* last_read = nullptr;
  {
    const std::lock_guard lock(mutex);
    last_read = std::exchange(buffer.last_read, nullptr);
  }
  if (last_read == nullptr) return absl::OkStatus();
  const absl::Status status = last_read->Await();
  return status.ok() ? status
                     : Annotate(status, fmt::format("work on a device that reads '{}'",
                                                    NameOfLayer(buffer.layer)));
}

// ---- The staging thread

void Swapper::Impl::Run() {
  Lock lock(mutex);
  while (command != Command::kStop) {
    if (command == Command::kNone) {
      if (failure.ok() && StageNext(lock, announced)) continue;
      wake.wait(lock, [this] { return wake_requested; });
      wake_requested = false;
      continue;
    }
    TakeBuffersBack();
    if (command == Command::kCancelExpected) announced.Clear();
    if (command == Command::kApplyAllUpdates) ApplyDueUpdates(lock);
    if (command == Command::kForget) ForgetSpeculative(lock);
    if (command == Command::kSwitch) Switch(lock);
    command = Command::kNone;
    progress.notify_all();
  }
  lock.unlock();
  Quiesce();
}

// Stages the next access of `queue` and gives buffers to those behind it. False when there is
// nothing to do until the caller announces or releases something.
bool Swapper::Impl::StageNext(Lock& lock, AccessQueue& queue) {
  AssignBuffers(lock, queue);
  if (!failure.ok() || queue.ready_end() == queue.end()) return false;
  const int index = queue.At(queue.ready_end()).buffer;
  if (index < 0) return false;
  Buffer& buffer = buffers[index];
  const bool exposed = buffer.num_exposed > 0;
  lock.unlock();
  const absl::Status status = Stage(buffer, exposed);
  lock.lock();
  if (!status.ok()) {
    Fail(status);
    return false;
  }
  queue.MarkNextReady();
  ++buffer.num_exposed;
  progress.notify_all();
  return true;
}

// Gives buffers to waiting accesses in order, as far as there are any, and starts their reads.
void Swapper::Impl::AssignBuffers(Lock& lock, AccessQueue& queue) {
  bool exhausted[kNumWindowClasses] = {};
  for (int64_t position = queue.ready_end(); position < queue.end(); ++position) {
    const int layer = queue.At(position).layer;
    if (queue.At(position).buffer >= 0) continue;
    const BufferClass buffer_class = ClassOf(layer);
    const bool resident = buffer_class == BufferClass::kResident;
    // In order within a class: an access must not take a buffer, nor keep one busy, before those
    // ahead of it have theirs.
    if (!resident && exhausted[static_cast<int>(buffer_class)]) continue;
    const bool found = buffer_of_layer[layer] >= 0;
    const int index = found ? buffer_of_layer[layer] : ChooseBuffer(buffer_class);
    if (index < 0) {
      exhausted[static_cast<int>(buffer_class)] = true;
      continue;
    }
    Buffer& buffer = buffers[index];
    ++buffer.num_users;
    queue.At(position).buffer = index;
    if (found) continue;
    queue.At(position).was_read = true;
    ++stats.weight_reads;
    const bool next = position == queue.ready_end();
    lock.unlock();
    absl::Status status;
    if (buffer.layer >= 0) {
      // A cancelled access may have left reads behind.
      status.Update(FinishReads(buffer, /*verify=*/false));
      status.Update(FinishWriteBack(buffer));
      status.Update(AwaitLastRead(buffer));
      buffer_of_layer[buffer.layer] = -1;
    }
    buffer.layer = layer;
    buffer_of_layer[layer] = index;
    if (status.ok()) StartReads(buffer, layer, next ? IoClass::kDemandRead : IoClass::kPrefetch);
    lock.lock();
    if (!status.ok()) return Fail(status);
  }
}

// Of the buffers that nobody needs, the one that has been free for longest; -1: none. Layers are
// used up and down in turn, so its layer is the one that is used again last (Belady 1966). Buffers
// become free in this order too, so the choice does not depend on how many of them are free by now:
// a step reads the same layers however fast disk and caller are (step_transfers.h counts on it).
int Swapper::Impl::ChooseBuffer(BufferClass buffer_class) const {
  int chosen = -1;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    if (buffer.buffer_class != buffer_class || buffer.num_users > 0) continue;
    if (chosen < 0 || buffer.last_use < buffers[chosen].last_use) chosen = static_cast<int>(i);
  }
  return chosen;
}

// Brings the weights in `buffer` up to date. `exposed`: somebody may be reading them.
absl::Status Swapper::Impl::Stage(Buffer& buffer, bool exposed) {
  FOREBAY_RETURN_IF_ERROR(FinishReads(buffer, /*verify=*/true));
  if (updater == nullptr || !updater->UpdateIsDue(buffer.layer)) return absl::OkStatus();
  // An update is due only when all accesses of the step before it were released (see Expect).
  FOREBAY_CHECK(!exposed);
  FOREBAY_RETURN_IF_ERROR(FinishWriteBack(buffer));  // of the step before
  FOREBAY_RETURN_IF_ERROR(AwaitLastRead(buffer));
  buffer.in_write_back = true;  // even if the update fails: some of its writes may be in flight
  const absl::Status status = updater->UpdateLayer(buffer.layer, WeightsIn(buffer, buffer.layer));
  return status.ok() ? status
                     : Annotate(status, fmt::format("updating '{}'", NameOfLayer(buffer.layer)));
}

// Un-stages what was not acquired. The weights stay where they are and will be found there if
// nothing replaces them.
void Swapper::Impl::TakeBuffersBack() {
  for (int64_t position = announced.front(); position < announced.end(); ++position) {
    const int index = std::exchange(announced.At(position).buffer, -1);
    if (index < 0) continue;
    --buffers[index].num_users;
    if (position < announced.ready_end()) --buffers[index].num_exposed;
  }
  announced.Rewind();
}

void Swapper::Impl::ApplyDueUpdates(Lock& lock) {
  lock.unlock();
  // Layers that lie in a buffer first, before others push them out.
  for (const bool in_buffer : {true, false}) {
    for (int layer = 0; updater != nullptr && layer < store->tiles().num_streamed_layers();
         ++layer) {
      if ((buffer_of_layer[layer] >= 0) == in_buffer && updater->UpdateIsDue(layer))
        updates.Push(layer);
    }
  }
  lock.lock();
  while (failure.ok() && !updates.empty()) {
    // No lease is held (checked by the caller), so there is always a buffer for the first.
    const bool staged = StageNext(lock, updates);
    FOREBAY_CHECK(staged || !failure.ok());
    if (!staged) break;
    Buffer& buffer = buffers[updates.PopReady().buffer];
    --buffer.num_users;
    --buffer.num_exposed;
    buffer.last_use = ++num_uses;
  }
  absl::Status status = failure;
  lock.unlock();
  if (status.ok()) status = WriteResidentLayers();
  for (Buffer& buffer : buffers) status.Update(FinishWriteBack(buffer));
  lock.lock();
  if (!status.ok()) Fail(status);
}

absl::Status Swapper::Impl::WriteResidentLayers() {
  for (Buffer& buffer : buffers) {
    if (updater == nullptr || buffer.buffer_class != BufferClass::kResident) continue;
    buffer.in_write_back = true;
    const absl::Status status =
        updater->WriteDeferred(buffer.layer, WeightsIn(buffer, buffer.layer));
    if (!status.ok()) {
      return Annotate(status, fmt::format("writing '{}'", NameOfLayer(buffer.layer)));
    }
  }
  return absl::OkStatus();
}

void Swapper::Impl::ForgetSpeculative(Lock& lock) {
  FOREBAY_CHECK(announced.empty() && leases.empty());
  lock.unlock();
  absl::Status status;
  for (Buffer& buffer : buffers) {
    if (buffer.layer >= 0 && is_speculative[buffer.layer]) status.Update(Forget(buffer));
  }
  lock.lock();
  if (!status.ok()) Fail(status);
}

void Swapper::Impl::Switch(Lock& lock) {
  FOREBAY_CHECK(announced.empty() && leases.empty());
  const Generation next = next_generation;
  lock.unlock();
  absl::Status status;
  for (Buffer& buffer : buffers) {
    FOREBAY_CHECK(buffer.buffer_class != BufferClass::kResident);
    if (buffer.layer >= 0) status.Update(Forget(buffer));
  }
  lock.lock();
  generation = next;
  if (!status.ok()) Fail(status);
}

// What lies in the buffer, and ends its transfers.
absl::Status Swapper::Impl::Forget(Buffer& buffer) {
  // Of an access that was cancelled.
  FinishReads(buffer, /*verify=*/false).IgnoreError();
  absl::Status status = FinishWriteBack(buffer);
  status.Update(AwaitLastRead(buffer));
  buffer_of_layer[buffer.layer] = -1;
  buffer.layer = -1;
  return status;
}

// Ends every transfer from or to the buffers, so that they may be freed. Errors were reported, or
// nobody asked for the result.
void Swapper::Impl::Quiesce() {
  for (Buffer& buffer : buffers) {
    FinishReads(buffer, /*verify=*/false).IgnoreError();
    FinishWriteBack(buffer).IgnoreError();
    AwaitLastRead(buffer).IgnoreError();
  }
}

void Swapper::Impl::Fail(const absl::Status& status) {
  failure.Update(status);
  progress.notify_all();
}

// ---- The caller

void Swapper::Impl::Send(Lock& lock, Command new_command) {
  command = new_command;
  wake_requested = true;
  wake.notify_one();
  progress.wait(lock, [this] { return command == Command::kNone; });
}

Swapper::Swapper(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Swapper::~Swapper() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->command = Impl::Command::kStop;
    impl_->wake_requested = true;
  }
  impl_->wake.notify_one();
  impl_->thread.join();
}

int64_t Swapper::WindowBytes(const WindowOptions& options, const TileMap& tiles) {
  const WindowShape shape = WindowShapeOf(options, tiles);
  return options.num_block_buffers * shape.block_bytes +
         options.num_large_buffers * shape.large_bytes;
}

absl::StatusOr<std::unique_ptr<Swapper>> Swapper::Create(const WindowOptions& options,
                                                         const Placement& placement,
                                                         TensorStore* store, TileUpdater* updater,
                                                         MemoryBudget* budget, Device* device) {
  FOREBAY_CHECK(options.num_block_buffers >= 2 && options.num_large_buffers >= 1);
  FOREBAY_CHECK(store->has_commit());
  FOREBAY_RETURN_IF_ERROR(store->inventory().CheckRawLayersAreLast());
  FOREBAY_CHECK(static_cast<int>(placement.weights.size()) == store->tiles().num_streamed_layers());
  auto impl = std::make_unique<Impl>(store, updater);
  FOREBAY_RETURN_IF_ERROR(impl->MakeBuffers(options, placement, budget, device));
  FOREBAY_RETURN_IF_ERROR(impl->LoadResidentLayers());
  FOREBAY_ASSIGN_OR_RETURN(
      impl->thread, StartThread("reading weights ahead", [raw = impl.get()] { raw->Run(); }));
  return std::unique_ptr<Swapper>(new Swapper(std::move(impl)));
}

void Swapper::Expect(std::span<const int> layers) {
  {
    const std::lock_guard lock(impl_->mutex);
    for (const int layer : layers) {
      FOREBAY_CHECK(layer >= 0 && layer < impl_->store->tiles().num_streamed_layers());
      impl_->announced.Push(layer);
    }
    impl_->wake_requested = true;
  }
  impl_->wake.notify_one();
}

// The mistakes that a caller can make. Nothing has changed by then.
absl::Status Swapper::Impl::CheckAcquire(int layer) {
  if (layer < 0 || layer >= store->tiles().num_streamed_layers()) {
    return UsageError(fmt::format("acquire: there is no layer {}; the last is {}", layer,
                                  store->tiles().num_streamed_layers() - 1));
  }
  if (announced.empty() || announced.At(announced.front()).layer != layer) {
    const std::string next =
        announced.empty()
            ? "none is left"
            : fmt::format("the next is '{}'", NameOfLayer(announced.At(announced.front()).layer));
    return UsageError(fmt::format(
        "acquire: '{}' is not the next layer that was announced: {}. Announce layers in the order "
        "in which they are acquired, or cancel what was announced",
        NameOfLayer(layer), next));
  }
  // The deadlock that the comment at Impl excludes: the caller holds every buffer that this layer
  // could take.
  int num_free = 0;
  for (const Buffer& buffer : buffers) {
    const bool lent = std::ranges::any_of(leases, [&](const Lease& lease) {
      return &buffers[lease.buffer] == &buffer && lease.layer != layer;
    });
    if (buffer.buffer_class == ClassOf(layer) && !lent) ++num_free;
  }
  if (num_free > 0) return absl::OkStatus();
  return UsageError(fmt::format(
      "acquire: every buffer that '{}' could take is lent ({} layers are held). Release one first, "
      "or give the window more buffers",
      NameOfLayer(layer), leases.size()));
}

absl::StatusOr<std::span<const std::byte>> Swapper::Acquire(int layer) {
  const Stopwatch waited;
  Impl::Lock lock(impl_->mutex);
  AccessQueue& queue = impl_->announced;
  if (!impl_->failure.ok()) return impl_->failure;
  FOREBAY_RETURN_IF_ERROR(impl_->CheckAcquire(layer));
  impl_->progress.wait(lock,
                       [&] { return queue.front() < queue.ready_end() || !impl_->failure.ok(); });
  impl_->stats.wait_s += waited.Seconds();
  if (!impl_->failure.ok()) return impl_->failure;
  const Access access = queue.PopReady();
  if (!access.was_read) ++impl_->stats.weight_hits;
  impl_->leases.push_back({layer, access.buffer});
  return impl_->WeightsIn(impl_->buffers[access.buffer], layer);
}

void Swapper::Release(int layer, Event* done) {
  {
    const std::lock_guard lock(impl_->mutex);
    const auto lease = std::ranges::find(impl_->leases, layer, &Impl::Lease::layer);
    FOREBAY_CHECK(lease != impl_->leases.end());
    Impl::Buffer& buffer = impl_->buffers[lease->buffer];
    --buffer.num_users;
    --buffer.num_exposed;
    buffer.last_use = ++impl_->num_uses;
    if (done != nullptr) buffer.last_read = done;
    impl_->leases.erase(lease);
    impl_->wake_requested = true;
  }
  impl_->wake.notify_one();
}

absl::Status Swapper::ApplyAllUpdates() {
  Impl::Lock lock(impl_->mutex);
  FOREBAY_CHECK(impl_->leases.empty());
  impl_->Send(lock, Impl::Command::kApplyAllUpdates);
  return impl_->failure;
}

void Swapper::ForgetSpeculative() {
  Impl::Lock lock(impl_->mutex);
  impl_->Send(lock, Impl::Command::kForget);
}

void Swapper::SwitchTo(Generation generation) {
  Impl::Lock lock(impl_->mutex);
  if (generation == Generation::kNewest && impl_->generation == Generation::kNewest) return;
  impl_->next_generation = generation;
  impl_->Send(lock, Impl::Command::kSwitch);
}

void Swapper::CancelExpected() {
  Impl::Lock lock(impl_->mutex);
  impl_->Send(lock, Impl::Command::kCancelExpected);
}

SwapperStats Swapper::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace forebay
