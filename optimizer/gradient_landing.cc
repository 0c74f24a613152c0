#include "forebay/optimizer/gradient_landing.h"

#include <cstddef>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<GradientLanding>> GradientLanding::Create(
    Device* device, int64_t largest_layer_elems, MemoryBudget* budget) {
  std::unique_ptr<GradientLanding> landing(new GradientLanding());
  FOREBAY_ASSIGN_OR_RETURN(
      landing->memory_,
      HostBuffer::Create(budget, "gradient of one layer (fp32)",
                         largest_layer_elems * int64_t{sizeof(float)}, {.device = device}));
  FOREBAY_ASSIGN_OR_RETURN(landing->stream_, device->CreateStream());
  return landing;
}

absl::StatusOr<std::span<const float>> GradientLanding::Fetch(const LayerGradient& gradient) {
  const size_t bytes = gradient.elems.size_bytes();
  FOREBAY_CHECK(bytes <= memory_.bytes().size());
  if (gradient.ready != nullptr) FOREBAY_RETURN_IF_ERROR(stream_->WaitFor(*gradient.ready));
  FOREBAY_RETURN_IF_ERROR(stream_->CopyToHost(memory_.bytes().first(bytes), gradient.elems.data()));
  FOREBAY_RETURN_IF_ERROR(stream_->Await());
  return memory_.As<float>().first(gradient.elems.size());
}

}  // namespace forebay
