#include "forebay/offload/ranks/gradient_sum.h"

#include <algorithm>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/trace.h"

namespace forebay {
namespace {

int64_t LargestGradientBytes(const Inventory& inventory) {
  return inventory.largest_layer_elems() * int64_t{sizeof(float)};
}

}  // namespace

GradientSum::GradientSum(const Inventory* inventory, const InventoryParts* parts,
                         Communicator* ranks, const Options& options)
    : inventory_(inventory), parts_(parts), ranks_(ranks) {
  if (!options.tensors_may_lack) return;
  size_t most_tensors = 0;
  for (const LayerSpec& layer : inventory->layers()) {
    most_tensors = std::max(most_tensors, static_cast<size_t>(layer.num_tensors));
  }
  num_with_.resize(most_tensors);
  without_gradient_.reserve(most_tensors);
}

absl::StatusOr<std::unique_ptr<GradientSum>> GradientSum::Create(const Inventory* inventory,
                                                                 const InventoryParts* parts,
                                                                 Communicator* ranks,
                                                                 MemoryBudget* budget,
                                                                 const Options& options) {
  std::unique_ptr<GradientSum> sum(new GradientSum(inventory, parts, ranks, options));
  FOREBAY_ASSIGN_OR_RETURN(sum->buffer_, HostBuffer::Create(budget, "sum of gradients over ranks",
                                                            LargestGradientBytes(*inventory),
                                                            {.device = options.device}));
  if (options.device != nullptr) {
    FOREBAY_ASSIGN_OR_RETURN(sum->has_landed_, options.device->CreateEvent());
    FOREBAY_ASSIGN_OR_RETURN(sum->stream_, options.device->CreateStream());
  }
  return sum;
}

GradientSum::~GradientSum() {
  Drop();
}

int64_t GradientSum::ChargedBytes(const Inventory& inventory) {
  return HostBuffer::ChargedBytes(LargestGradientBytes(inventory));
}

// From the device, which goes on meanwhile: the communicator waits for it.
absl::Status GradientSum::Bring(const LayerGradient& gradient, std::span<float> to) {
  FOREBAY_CHECK(stream_ != nullptr);
  if (gradient.ready != nullptr) FOREBAY_RETURN_IF_ERROR(stream_->WaitFor(*gradient.ready));
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToHost(std::as_writable_bytes(to), gradient.elems.data()));
  if (gradient.taken != nullptr) FOREBAY_RETURN_IF_ERROR(stream_->Record(*gradient.taken));
  return stream_->Record(*has_landed_);
}

absl::Status GradientSum::Start(int layer, const LayerGradient& gradient,
                                std::span<const int> without_gradient) {
  const TraceScope trace("gradient to be summed over ranks");
  const std::span<float> own = buffer_.As<float>().first(gradient.elems.size());
  CollectiveMemory memory = OnHost(own);
  memory.layer = layer;
  FOREBAY_CHECK(!IsUnderWay());
  if (gradient.device == DeviceKind::kHost) {
    if (gradient.ready != nullptr) FOREBAY_RETURN_IF_ERROR(gradient.ready->Await());
    std::ranges::copy(gradient.elems, own.begin());
  } else {
    FOREBAY_RETURN_IF_ERROR(Bring(gradient, own));
    memory.ready = has_landed_.get();
  }
  if (num_with_.empty()) {
    FOREBAY_CHECK(without_gradient.empty());
  } else {
    StartCount(layer, without_gradient);
  }
  ticket_ = parts_ == nullptr ? ranks_->StartAllReduce(memory)
                              : ranks_->StartReduceScatter(memory, parts_->Offsets(layer));
  layer_ = layer;
  num_elems_ = std::ssize(own);
  return absl::OkStatus();
}

void GradientSum::StartCount(int layer, std::span<const int> without_gradient) {
  const LayerSpec& spec = inventory_->layers()[layer];
  const std::span<float> own = std::span(num_with_).first(static_cast<size_t>(spec.num_tensors));
  std::ranges::fill(own, 1.0f);
  for (const int tensor : without_gradient) {
    own[static_cast<size_t>(tensor - spec.first_tensor)] = 0.0f;
  }
  CollectiveMemory memory = OnHost(own);
  memory.layer = layer;
  count_ticket_ = ranks_->StartAllReduce(memory);
}

absl::Status GradientSum::AwaitCount(int layer) {
  without_gradient_.clear();
  if (num_with_.empty()) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(ranks_->Await(count_ticket_));
  const LayerSpec& spec = inventory_->layers()[layer];
  for (int i = 0; i < spec.num_tensors; ++i) {
    if (num_with_[static_cast<size_t>(i)] == 0) without_gradient_.push_back(spec.first_tensor + i);
  }
  return absl::OkStatus();
}

absl::StatusOr<GradientSum::Sum> GradientSum::Await() {
  FOREBAY_CHECK(IsUnderWay());
  const int layer = std::exchange(layer_, -1);
  // Both, so that nothing of theirs is under way whatever happens.
  absl::Status status = AwaitCount(layer);
  status.Update(ranks_->Await(ticket_));
  FOREBAY_RETURN_IF_ERROR(status);
  const std::span<const float> elems = buffer_.As<float>().first(num_elems_);
  if (parts_ == nullptr) return Sum{layer, elems, without_gradient_};
  const std::span<const int64_t> part = parts_->Offsets(layer).subspan(ranks_->rank(), 2);
  return Sum{layer, elems.subspan(part[0], part[1] - part[0]), without_gradient_};
}

void GradientSum::Drop() {
  if (IsUnderWay()) Await().status().IgnoreError();
}

}  // namespace forebay
