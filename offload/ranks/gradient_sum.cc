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

absl::StatusOr<std::unique_ptr<GradientSum>> GradientSum::Create(const Inventory& inventory,
                                                                 const InventoryParts* parts,
                                                                 Communicator* ranks,
                                                                 MemoryBudget* budget) {
  std::unique_ptr<GradientSum> sum(new GradientSum(parts, ranks));
  FOREBAY_ASSIGN_OR_RETURN(sum->buffer_, HostBuffer::Create(budget, "sum of gradients over ranks",
                                                            LargestGradientBytes(inventory)));
  return sum;
}

GradientSum::~GradientSum() {
  Drop();
}

int64_t GradientSum::ChargedBytes(const Inventory& inventory) {
  return HostBuffer::ChargedBytes(LargestGradientBytes(inventory));
}

void GradientSum::Start(int layer, std::span<const float> gradient) {
  const TraceScope trace("gradient to be summed over ranks");
  const std::span<float> own = buffer_.As<float>().first(gradient.size());
  FOREBAY_CHECK(!IsUnderWay());
  std::ranges::copy(gradient, own.begin());
  ticket_ = parts_ == nullptr ? ranks_->StartAllReduce(OnHost(own))
                              : ranks_->StartReduceScatter(OnHost(own), parts_->Offsets(layer));
  layer_ = layer;
  num_elems_ = std::ssize(gradient);
}

absl::StatusOr<GradientSum::Sum> GradientSum::Await() {
  FOREBAY_CHECK(IsUnderWay());
  const int layer = std::exchange(layer_, -1);
  FOREBAY_RETURN_IF_ERROR(ranks_->Await(ticket_));
  const std::span<const float> elems = buffer_.As<float>().first(num_elems_);
  if (parts_ == nullptr) return Sum{layer, elems};
  const std::span<const int64_t> part = parts_->Offsets(layer).subspan(ranks_->rank(), 2);
  return Sum{layer, elems.subspan(part[0], part[1] - part[0])};
}

void GradientSum::Drop() {
  if (IsUnderWay()) Await().status().IgnoreError();
}

}  // namespace forebay
