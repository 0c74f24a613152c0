#include "forebay/offload/ranks/gathered_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/trace.h"
#include "forebay/device/device.h"

namespace forebay {

// Reached when the window has this rank's part of a layer; then it is copied to its place among the
// others, and the window has its buffer back. On the communicator's thread.
class GatheredWeights::PartArrival : public Event {
 public:
  explicit PartArrival(Swapper* swapper) : swapper_(swapper) {}
  void Expect(int layer, std::span<std::byte> place) {
    layer_ = layer;
    place_ = place;
  }
  // `reader`: reached when nothing reads the place any more; nullptr: nothing does.
  void ComesBehind(Event* reader) { reader_ = reader; }

  absl::Status AwaitReader() {
    Event* const reader = std::exchange(reader_, nullptr);
    return reader == nullptr ? absl::OkStatus() : reader->Await();
  }

  absl::Status Await() override {
    FOREBAY_RETURN_IF_ERROR(AwaitReader());
    FOREBAY_ASSIGN_OR_RETURN(const std::span<const std::byte> part, swapper_->Acquire(layer_));
    FOREBAY_CHECK(part.size() == place_.size());
    if (!part.empty()) std::memcpy(place_.data(), part.data(), part.size());
    swapper_->Release(layer_);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> IsReached() override {
    if (reader_ != nullptr) {
      FOREBAY_ASSIGN_OR_RETURN(const bool is_read, reader_->IsReached());
      if (!is_read) return false;
    }
    if (!swapper_->NextIsReady()) return false;
    FOREBAY_RETURN_IF_ERROR(Await());
    return true;
  }
  absl::StatusOr<double> SecondsSince(Event&) override {
    return absl::UnimplementedError("the arrival of a part is not timed");
  }

 private:
  Swapper* const swapper_;
  int layer_ = -1;
  std::span<std::byte> place_;
  Event* reader_ = nullptr;
};

GatheredWeights::GatheredWeights(const InventoryParts* parts, DType dtype, GatheredFor length,
                                 Communicator* ranks, Swapper* swapper)
    : parts_(parts), elem_bytes_(SizeOf(dtype)), length_(length), ranks_(ranks), swapper_(swapper) {
  for (int layer = 0; layer < parts->whole().num_streamed_layers(); ++layer) {
    std::vector<int64_t>& offsets = offsets_bytes_.emplace_back();
    for (const int64_t elems : parts->Offsets(layer)) offsets.push_back(elems * elem_bytes_);
  }
  // For the forward pass, once more inside a segment, and backward; a tied head reads the first.
  announced_.reserve(3 * offsets_bytes_.size() + 1);
}

std::vector<int64_t> GatheredWeights::BufferBytes(const Inventory& whole, DType dtype,
                                                  GatheredWeightsOptions options) {
  std::vector<int64_t> bytes;
  if (options.length == GatheredFor::kUse) {
    bytes.assign(static_cast<size_t>(options.most_held) + 1,
                 whole.largest_layer_elems() * SizeOf(dtype));
    return bytes;
  }
  for (int layer = 0; layer < whole.num_streamed_layers(); ++layer) {
    bytes.push_back(whole.layers()[layer].num_elems * SizeOf(dtype));
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<GatheredWeights>> GatheredWeights::Create(
    const InventoryParts* parts, DType dtype, GatheredWeightsOptions options, Communicator* ranks,
    Swapper* swapper, MemoryBudget* budget) {
  std::unique_ptr<GatheredWeights> gathered(
      new GatheredWeights(parts, dtype, options.length, ranks, swapper));
  for (const int64_t bytes : BufferBytes(parts->whole(), dtype, options)) {
    Buffer& buffer = gathered->buffers_.emplace_back();
    FOREBAY_ASSIGN_OR_RETURN(buffer.memory, HostBuffer::Create(budget, "weights of all ranks",
                                                               bytes, {.device = options.device}));
    buffer.part = std::make_unique<PartArrival>(swapper);
  }
  return gathered;
}

// The communicator may still fill a buffer, and a device read one.
GatheredWeights::~GatheredWeights() {
  AwaitStarted();
  for (Buffer& buffer : buffers_) {
    // Nobody reads behind an error of the device either.
    if (buffer.part != nullptr) buffer.part->AwaitReader().IgnoreError();
  }
}

int64_t GatheredWeights::ChargedBytes(const Inventory& whole, DType dtype,
                                      GatheredWeightsOptions options) {
  int64_t charged = 0;
  for (const int64_t bytes : BufferBytes(whole, dtype, options)) {
    charged += HostBuffer::ChargedBytes(bytes);
  }
  return charged;
}

void GatheredWeights::Expect(std::span<const int> layers) {
  for (const int layer : layers) {
    announced_.push_back(layer);
    if (length_ == GatheredFor::kUse) swapper_->Expect(std::span(&layer, 1));
  }
  if (length_ == GatheredFor::kStep) ExpectRest();
}

void GatheredWeights::ExpectRest() {
  if (std::exchange(rest_is_expected_, true)) return;
  for (int layer = num_gathered_; layer < num_layers(); ++layer) {
    swapper_->Expect(std::span(&layer, 1));
  }
}

GatheredWeights::Buffer* GatheredWeights::Find(int layer) {
  const auto is_it = [&](const Buffer& buffer) {
    return buffer.layer == layer && (length_ == GatheredFor::kStep || buffer.num_lent == 0);
  };
  const auto found = std::ranges::find_if(buffers_, is_it);
  return found == buffers_.end() ? nullptr : &*found;
}

GatheredWeights::Buffer* GatheredWeights::FindFree() {
  const auto found = std::ranges::find(buffers_, -1, &Buffer::layer);
  return found == buffers_.end() ? nullptr : &*found;
}

std::span<std::byte> GatheredWeights::BytesOf(Buffer& buffer) const {
  return buffer.memory.bytes().first(offsets_bytes_[buffer.layer].back());
}

void GatheredWeights::Start(Buffer& buffer, int layer) {
  FOREBAY_CHECK(buffer.num_lent == 0 && !buffer.is_under_way);
  buffer.layer = layer;
  const std::vector<int64_t>& offsets = offsets_bytes_[layer];
  const int rank = ranks_->rank();
  buffer.part->Expect(layer,
                      BytesOf(buffer).subspan(offsets[rank], offsets[rank + 1] - offsets[rank]));
  CollectiveMemory memory = OnHost(BytesOf(buffer));
  memory.ready = buffer.part.get();
  memory.layer = layer;
  buffer.ticket = ranks_->StartAllGather(memory, offsets);
  buffer.is_under_way = true;
}

void GatheredWeights::StartUpTo(int layer) {
  ExpectRest();
  for (; num_gathered_ <= layer; ++num_gathered_) Start(buffers_[num_gathered_], num_gathered_);
}

// Where the layer is, or will be.
absl::StatusOr<GatheredWeights::Buffer*> GatheredWeights::BufferFor(int layer) {
  if (length_ == GatheredFor::kStep) {
    StartUpTo(layer);
    return &buffers_[layer];
  }
  if (Buffer* const found = Find(layer)) return found;
  Buffer* const free = FindFree();
  if (free == nullptr) {
    return UsageError(
        fmt::format("acquire: '{}' would be one layer too many, as {} can be held at a time. "
                    "Release one first",
                    parts_->whole().layers()[layer].name, buffers_.size()));
  }
  Start(*free, layer);
  return free;
}

// The next layer, while the one before it is used.
void GatheredWeights::StartAhead() {
  const int ahead = announced_[next_];
  if (length_ == GatheredFor::kStep) {
    if (ahead >= num_gathered_) StartUpTo(num_gathered_);
  } else if (Find(ahead) == nullptr) {
    if (Buffer* const free = FindFree()) Start(*free, ahead);
  }
}

absl::StatusOr<std::span<const std::byte>> GatheredWeights::Acquire(int layer) {
  if (next_ == announced_.size() || announced_[next_] != layer) {
    return UsageError(fmt::format(
        "acquire: layer {} is not the next that was announced. Announce layers in the order in "
        "which they are acquired, or cancel what was announced",
        layer));
  }
  FOREBAY_ASSIGN_OR_RETURN(Buffer* const buffer, BufferFor(layer));
  if (buffer->is_under_way) {
    const TraceScope trace("weights of all ranks");
    FOREBAY_RETURN_IF_ERROR(ranks_->Await(buffer->ticket));
    buffer->is_under_way = false;
  }
  ++buffer->num_lent;
  ++next_;
  if (next_ == announced_.size()) {
    announced_.clear();
    next_ = 0;
  } else {
    StartAhead();
  }
  return BytesOf(*buffer);
}

void GatheredWeights::Release(int layer, Event* done) {
  const auto lent = std::ranges::find_if(
      buffers_, [&](const Buffer& buffer) { return buffer.layer == layer && buffer.num_lent > 0; });
  FOREBAY_CHECK(lent != buffers_.end());
  --lent->num_lent;
  if (done != nullptr) lent->part->ComesBehind(done);
  if (length_ == GatheredFor::kUse) lent->layer = -1;
}

void GatheredWeights::AwaitStarted() {
  for (Buffer& buffer : buffers_) {
    // An error is that of every later call.
    if (buffer.is_under_way) ranks_->Await(buffer.ticket).IgnoreError();
  }
}

void GatheredWeights::Settle() {
  if (num_gathered_ > 0) StartUpTo(num_layers() - 1);
  AwaitStarted();
}

void GatheredWeights::CancelExpected() {
  announced_.clear();
  next_ = 0;
  rest_is_expected_ = false;
  for (Buffer& buffer : buffers_) {
    if (!buffer.is_under_way) continue;
    // An error is that of every later call of the ranks. Half of a layer is nobody's weights.
    const bool is_whole = ranks_->Await(buffer.ticket).ok();
    buffer.is_under_way = length_ == GatheredFor::kStep && !is_whole;
    if (length_ == GatheredFor::kUse) buffer.layer = -1;
  }
}

void GatheredWeights::Forget() {
  FOREBAY_CHECK(announced_.empty());
  Settle();
  for (Buffer& buffer : buffers_) {
    FOREBAY_CHECK(buffer.num_lent == 0);
    buffer.is_under_way = false;
    buffer.layer = -1;
  }
  num_gathered_ = 0;
  rest_is_expected_ = false;
}

}  // namespace forebay
