#include "forebay/model/checkpoint_source.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/start_thread.h"
#include "forebay/memory/host_buffer.h"

namespace forebay {
namespace {

constexpr char kPurpose[] = "weights";

int64_t BufferBytes(const LayerSpec& layer, DType dtype) {
  return HostBuffer::ChargedBytes(layer.num_elems * SizeOf(dtype));
}

// Which layers stay in memory, and how large the buffers of the window are that the others pass
// through. Two buffers for blocks: one is computed with while the next is read. One for embedding
// and output layer, which are never held together.
struct Residency {
  std::vector<bool> resident;  // per layer
  int64_t block_slot_bytes = 0;
  int64_t large_slot_bytes = 0;
  int64_t total_bytes = 0;  // resident layers and window

  static Residency All(const Inventory& inventory, DType dtype) {
    Residency all;
    all.resident.assign(inventory.layers().size(), true);
    for (const LayerSpec& layer : inventory.layers()) all.total_bytes += BufferBytes(layer, dtype);
    return all;
  }

  // As little as possible. A tied model's output layer is a norm and the embedding, which is in use
  // at both ends of a pass: the one buffer it would pass through may as well keep it.
  static Residency Least(const DecoderConfig& config, const Inventory& inventory, DType dtype) {
    Residency least;
    const auto& layers = inventory.layers();
    least.resident.assign(layers.size(), false);
    const int64_t embed_bytes = BufferBytes(layers.front(), dtype);
    const int64_t head_bytes = BufferBytes(layers.back(), dtype);
    least.block_slot_bytes = BufferBytes(layers[1], dtype);
    least.total_bytes = 2 * least.block_slot_bytes;
    if (config.tied_embeddings) {
      least.resident.front() = least.resident.back() = true;
      least.total_bytes += embed_bytes + head_bytes;
    } else {
      least.large_slot_bytes = std::max(embed_bytes, head_bytes);
      least.total_bytes += least.large_slot_bytes;
    }
    return least;
  }

  // As much as fits `max_bytes`, on top of the least: embedding and output layer first, as the
  // buffer of one of them becomes free; then blocks, spread evenly, so that computing with resident
  // ones covers reading the others.
  static Residency Within(const DecoderConfig& config, const Inventory& inventory, DType dtype,
                          int64_t max_bytes) {
    Residency all = All(inventory, dtype);
    if (max_bytes == 0 || all.total_bytes <= max_bytes) return all;
    Residency plan = Least(config, inventory, dtype);
    const auto& layers = inventory.layers();
    const int64_t both_bytes =
        BufferBytes(layers.front(), dtype) + BufferBytes(layers.back(), dtype);
    if (!plan.resident.front() &&
        plan.total_bytes - plan.large_slot_bytes + both_bytes <= max_bytes) {
      plan.resident.front() = plan.resident.back() = true;
      plan.total_bytes += both_bytes - plan.large_slot_bytes;
      plan.large_slot_bytes = 0;
    }
    const int64_t num_blocks = config.num_layers;
    const int64_t spare =
        std::max<int64_t>(0, max_bytes - plan.total_bytes) / plan.block_slot_bytes;
    const int64_t num_resident = std::min(spare, num_blocks);
    for (int64_t block = 0; block < num_blocks; ++block) {
      const bool resident =
          (block + 1) * num_resident / num_blocks > block * num_resident / num_blocks;
      plan.resident[static_cast<size_t>(BlockLayer(static_cast<int>(block)))] = resident;
    }
    plan.total_bytes += num_resident * plan.block_slot_bytes;
    return plan;
  }
};

// First in, first out; keeps its memory, so that a steady flow allocates nothing.
template <typename T>
class ReusedQueue {
 public:
  void Push(T value) {
    if (items_.size() == items_.capacity() && first_ > 0) {
      items_.erase(items_.begin(), items_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
    items_.push_back(value);
  }
  void Pop() {
    if (++first_ < items_.size()) return;
    items_.clear();
    first_ = 0;
  }
  bool empty() const { return first_ == items_.size(); }
  size_t size() const { return items_.size() - first_; }
  T& operator[](size_t i) { return items_[first_ + i]; }

 private:
  std::vector<T> items_;
  size_t first_ = 0;
};

// A buffer of the window.
struct Slot {
  HostBuffer memory;
  int layer = -1;              // whose weights it holds
  int num_users = 0;           // requests that were given it and have not released it
  Event* last_read = nullptr;  // when work on a device no longer reads it; nullptr: now
};

// A streamed layer that was announced and not yet acquired.
struct Request {
  int layer = -1;
  Slot* slot = nullptr;  // set when its weights are there
};

}  // namespace

struct CheckpointSource::Impl {
  DecoderConfig config;
  Inventory inventory;
  DType dtype = DType::kBF16;
  std::unique_ptr<CheckpointReader> reader;
  std::vector<const CheckpointReader::Tensor*> tensors;  // per tensor of the inventory
  std::vector<HostBuffer> resident;                      // per layer; empty where it streams
  std::vector<bool> is_resident;
  // Per layer that is resident: when work on a device no longer reads it; nullptr: now.
  std::vector<Event*> resident_last_read;
  std::array<Slot, 3>
      slots;  // two for blocks, one for embedding and output layer; memory is made where needed

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  ReusedQueue<int> order;         // announced, not yet acquired
  ReusedQueue<Request> requests;  // those of them that stream
  size_t num_loaded = 0;          // requests at the front of the queue that have their weights
  bool stopping = false;
  absl::Status failure;

  std::thread thread;

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
    // Errors were reported where the work was begun.
    for (Event* const last_read : resident_last_read) {
      if (last_read != nullptr) last_read->Await().IgnoreError();
    }
    for (const Slot& slot : slots) {
      if (slot.last_read != nullptr) slot.last_read->Await().IgnoreError();
    }
  }

  bool IsBlock(int layer) const { return layer != EmbedLayer() && layer != HeadLayer(config); }
  LayerWeights WeightsIn(const HostBuffer& memory, int layer) const {
    const int64_t bytes = inventory.layers()[static_cast<size_t>(layer)].num_elems * SizeOf(dtype);
    return {dtype, memory.bytes().first(static_cast<size_t>(bytes))};
  }

  absl::Status ReadLayer(int layer, const HostBuffer& memory) const;
  Slot* FindSlot(int layer);
  void ReadAhead();
};

// Reads and converts the tensors of a layer to their places, with zeros between them.
absl::Status CheckpointSource::Impl::ReadLayer(int layer, const HostBuffer& memory) const {
  const LayerSpec& spec = inventory.layers()[static_cast<size_t>(layer)];
  const int64_t elem_bytes = SizeOf(dtype);
  int64_t end = 0;
  const auto fill_gap = [&](int64_t until) {
    std::memset(memory.data() + end * elem_bytes, 0,
                static_cast<size_t>((until - end) * elem_bytes));
  };
  for (const TensorSpec* in_place : TensorsInPlace(inventory, layer)) {
    const TensorSpec& tensor = *in_place;
    const CheckpointReader::Tensor& source =
        *tensors[static_cast<size_t>(in_place - inventory.tensors().data())];
    fill_gap(tensor.offset_elems);
    FOREBAY_RETURN_IF_ERROR(reader->ReadAs(
        dtype, source, 0,
        memory.bytes().subspan(tensor.offset_elems * elem_bytes, tensor.num_elems * elem_bytes)));
    reader->DropCachedPages(source);
    end = tensor.offset_elems + tensor.num_elems;
  }
  fill_gap(spec.num_elems);
  return absl::OkStatus();
}

// A slot that holds `layer` already, else a free one of its kind, else nullptr.
Slot* CheckpointSource::Impl::FindSlot(int layer) {
  const std::span<Slot> candidates =
      IsBlock(layer) ? std::span(slots).first(2) : std::span(slots).last(1);
  Slot* free = nullptr;
  for (Slot& slot : candidates) {
    if (slot.layer == layer) return &slot;
    if (slot.num_users == 0) free = &slot;
  }
  return free;
}

// The reading thread: gives requests their weights in order, waiting for a free slot when there is
// none. It cannot wait for ever: the slots in use belong to leases, which end, and to earlier
// requests, which will be acquired first.
void CheckpointSource::Impl::ReadAhead() {
  std::unique_lock lock(mutex);
  while (true) {
    Slot* slot = nullptr;
    changed.wait(lock, [&] {
      if (stopping) return true;
      slot = num_loaded < requests.size() ? FindSlot(requests[num_loaded].layer) : nullptr;
      return slot != nullptr;
    });
    if (stopping) return;
    const int layer = requests[num_loaded].layer;
    ++slot->num_users;
    if (slot->layer != layer) {
      slot->layer = -1;
      Event* const last_read = std::exchange(slot->last_read, nullptr);
      lock.unlock();
      absl::Status status = last_read == nullptr ? absl::OkStatus() : last_read->Await();
      if (status.ok()) status = ReadLayer(layer, slot->memory);
      lock.lock();
      if (!status.ok()) {
        failure = status;
        changed.notify_all();
        return;
      }
      slot->layer = layer;
    }
    // The queue's front may have moved meanwhile, and num_loaded with it: this is still the first
    // request without weights.
    requests[num_loaded].slot = slot;
    ++num_loaded;
    changed.notify_all();
  }
}

CheckpointSource::CheckpointSource(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointSource::~CheckpointSource() = default;

int64_t CheckpointSource::LeastBytes(const DecoderConfig& config, DType dtype) {
  const Inventory inventory = BuildInventory(config);
  // A model of one block is smaller than the window for larger ones.
  return std::min(Residency::Least(config, inventory, dtype).total_bytes,
                  Residency::All(inventory, dtype).total_bytes);
}

absl::StatusOr<std::unique_ptr<CheckpointSource>> CheckpointSource::Create(
    const std::string& model_directory, const DecoderConfig& config, DType dtype, int64_t max_bytes,
    MemoryBudget* budget) {
  const int64_t least_bytes = LeastBytes(config, dtype);
  if (max_bytes != 0 && max_bytes < least_bytes) {
    return DoesNotFitError(
        fmt::format("the weights of '{}' were given {}, but streaming them layer by layer takes at "
                    "least {}. Give more memory (--ram)",
                    model_directory, FormatBinaryBytes(max_bytes), FormatBinaryBytes(least_bytes)));
  }
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  impl->inventory = BuildInventory(config);
  impl->dtype = dtype;
  FOREBAY_ASSIGN_OR_RETURN(impl->reader, CheckpointReader::Open(model_directory));
  FOREBAY_ASSIGN_OR_RETURN(impl->tensors, MatchCheckpoint(*impl->reader, config, impl->inventory));

  const Residency plan = Residency::Within(config, impl->inventory, dtype, max_bytes);
  impl->is_resident = plan.resident;
  impl->resident_last_read.resize(plan.resident.size());
  const int num_layers = impl->inventory.num_layers();
  impl->resident.resize(static_cast<size_t>(num_layers));
  bool streams = false;
  for (int layer = 0; layer < num_layers; ++layer) {
    const auto index = static_cast<size_t>(layer);
    if (!plan.resident[index]) {
      streams = true;
      continue;
    }
    const int64_t bytes = BufferBytes(impl->inventory.layers()[index], dtype);
    FOREBAY_ASSIGN_OR_RETURN(impl->resident[index], HostBuffer::Create(budget, kPurpose, bytes));
    FOREBAY_RETURN_IF_ERROR(impl->ReadLayer(layer, impl->resident[index]));
  }
  const std::array<int64_t, 3> slot_bytes = {plan.block_slot_bytes, plan.block_slot_bytes,
                                             plan.large_slot_bytes};
  for (size_t i = 0; i < slot_bytes.size(); ++i) {
    FOREBAY_ASSIGN_OR_RETURN(impl->slots[i].memory,
                             HostBuffer::Create(budget, kPurpose, slot_bytes[i]));
  }
  if (streams) {
    FOREBAY_ASSIGN_OR_RETURN(impl->thread, StartThread("reading weights ahead",
                                                       [raw = impl.get()] { raw->ReadAhead(); }));
  }
  return std::unique_ptr<CheckpointSource>(new CheckpointSource(std::move(impl)));
}

void CheckpointSource::Expect(std::span<const int> layers) {
  {
    const std::lock_guard lock(impl_->mutex);
    for (const int layer : layers) {
      FOREBAY_CHECK(layer >= 0 && layer < impl_->inventory.num_layers());
      impl_->order.Push(layer);
      if (!impl_->is_resident[static_cast<size_t>(layer)]) impl_->requests.Push({layer, nullptr});
    }
  }
  impl_->changed.notify_all();
}

absl::StatusOr<WeightsLease> CheckpointSource::Acquire(int layer) {
  std::unique_lock lock(impl_->mutex);
  if (!impl_->failure.ok() && impl_->num_loaded == 0) return impl_->failure;
  if (impl_->order.empty() || impl_->order[0] != layer) {
    return UsageError(fmt::format(
        "acquire: layer {} is not the next that was announced. Announce layers in the order in "
        "which they are acquired",
        layer));
  }
  if (impl_->is_resident[static_cast<size_t>(layer)]) {
    impl_->order.Pop();
    return WeightsLease(this, layer,
                        impl_->WeightsIn(impl_->resident[static_cast<size_t>(layer)], layer));
  }
  impl_->changed.wait(lock, [&] { return impl_->num_loaded > 0 || !impl_->failure.ok(); });
  if (impl_->num_loaded == 0) return impl_->failure;
  const Slot* const slot = impl_->requests[0].slot;
  impl_->order.Pop();
  impl_->requests.Pop();
  --impl_->num_loaded;
  return WeightsLease(this, layer, impl_->WeightsIn(slot->memory, layer));
}

void CheckpointSource::Release(int layer, Event* done) {
  if (impl_->is_resident[static_cast<size_t>(layer)]) {
    if (done != nullptr) impl_->resident_last_read[static_cast<size_t>(layer)] = done;
    return;
  }
  {
    const std::lock_guard lock(impl_->mutex);
    for (Slot& slot : impl_->slots) {
      if (slot.layer != layer) continue;
      FOREBAY_CHECK(slot.num_users > 0);
      --slot.num_users;
      if (done != nullptr) slot.last_read = done;
    }
  }
  impl_->changed.notify_all();
}

int CheckpointSource::num_resident_layers() const {
  return static_cast<int>(std::count(impl_->is_resident.begin(), impl_->is_resident.end(), true));
}

}  // namespace forebay
