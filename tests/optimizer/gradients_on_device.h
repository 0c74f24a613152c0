// Hands gradients over as a device does: computed into one place for all layers, on its way when
// the call returns.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/errors.h"
#include "forebay/device/device.h"
#include "forebay/optimizer/offloaded_optimizer.h"

namespace forebay {

class GradientsOnDevice {
 public:
  static absl::StatusOr<std::unique_ptr<GradientsOnDevice>> Create(Device* device,
                                                                   int64_t largest_layer_elems) {
    auto made = std::make_unique<GradientsOnDevice>();
    FOREBAY_ASSIGN_OR_RETURN(made->memory_, device->Allocate(largest_layer_elems * 4));
    FOREBAY_ASSIGN_OR_RETURN(made->ready_, device->CreateEvent());
    FOREBAY_ASSIGN_OR_RETURN(made->taken_, device->CreateEvent());
    FOREBAY_ASSIGN_OR_RETURN(made->stream_, device->CreateStream());
    return made;
  }

  absl::Status Hand(OffloadedOptimizer& optimizer, int layer, std::vector<float> gradient,
                    ThreadPool& pool, std::span<const int> without = {}) {
    sent_.push_back(std::move(gradient));
    const std::span<const float> from = sent_.back();
    FOREBAY_RETURN_IF_ERROR(stream_->WaitFor(*taken_));
    FOREBAY_RETURN_IF_ERROR(stream_->CopyToDevice(memory_.address(), std::as_bytes(from)));
    FOREBAY_RETURN_IF_ERROR(stream_->Record(*ready_));
    return optimizer.Hand(OnDevice(layer, from.size(), 0, without), pool);
  }

  // The same in parts of so many elements, each in the memory of the one before.
  absl::Status HandParts(OffloadedOptimizer& optimizer, int layer, std::vector<float> gradient,
                         int64_t part_elems, ThreadPool& pool) {
    sent_.push_back(std::move(gradient));
    const std::span<const float> all = sent_.back();
    for (int64_t first = 0; first < std::ssize(all); first += part_elems) {
      const std::span<const float> from =
          all.subspan(first, std::min(part_elems, std::ssize(all) - first));
      FOREBAY_RETURN_IF_ERROR(stream_->WaitFor(*taken_));
      FOREBAY_RETURN_IF_ERROR(stream_->CopyToDevice(memory_.address(), std::as_bytes(from)));
      FOREBAY_RETURN_IF_ERROR(stream_->Record(*ready_));
      FOREBAY_RETURN_IF_ERROR(optimizer.Hand(OnDevice(layer, from.size(), first, {}), pool));
    }
    return absl::OkStatus();
  }

 private:
  LayerGradient OnDevice(int layer, size_t num_elems, int64_t first_elem,
                         std::span<const int> missing) const {
    return {.layer = layer,
            .bytes = std::as_bytes(std::span<const float>(memory_.As<float>(), num_elems)),
            .first_elem = first_elem,
            .missing = missing,
            .device = DeviceKind::kCuda,
            .ready = ready_.get(),
            .taken = taken_.get()};
  }

  DeviceBuffer memory_;
  std::vector<std::vector<float>> sent_;  // until the stream has read them, whenever that is
  std::unique_ptr<Event> ready_, taken_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace forebay
