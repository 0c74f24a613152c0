#include "forebay/model/cuda_decoder/device_batches.h"

#include <algorithm>
#include <numeric>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/rope.h"

namespace forebay {
namespace {

// Pieces begin at multiples of 16 bytes.
constexpr int64_t kAlignElems = 4;
// Those of a DeviceBatch: five of a token's, and two pairs of an order and its runs.
constexpr int64_t kPieces = 9;

int64_t Aligned(int64_t elems) {
  return (elems + kAlignElems - 1) / kAlignElems * kAlignElems;
}

}  // namespace

int64_t DeviceBatches::BytesFor(int64_t tokens, int64_t num_batches) {
  const int64_t elems = kPieces * tokens + num_batches * kPieces * kAlignElems;
  return elems * static_cast<int64_t>(sizeof(int32_t));
}

absl::StatusOr<std::unique_ptr<DeviceBatches>> DeviceBatches::Create(int64_t tokens,
                                                                     int64_t num_batches,
                                                                     Device* device,
                                                                     MemoryBudget* device_budget,
                                                                     MemoryBudget* host_budget) {
  std::unique_ptr<DeviceBatches> batches(new DeviceBatches);
  const int64_t size_bytes = BytesFor(tokens, num_batches);
  FOREBAY_ASSIGN_OR_RETURN(batches->memory_, DeviceAllocation::Create(device_budget, device,
                                                                      "micro-batches", size_bytes));
  FOREBAY_ASSIGN_OR_RETURN(
      batches->staging_,
      HostBuffer::Create(host_budget, "micro-batches for the GPU", size_bytes, {.device = device}));
  FOREBAY_ASSIGN_OR_RETURN(batches->uploaded_, device->CreateEvent());
  batches->batches_.reserve(static_cast<size_t>(num_batches));
  return batches;
}

int32_t* DeviceBatches::Place(int64_t count) {
  const std::span<int32_t> all = staging_.As<int32_t>();
  FOREBAY_CHECK(used_ + count <= std::ssize(all));
  int32_t* const place = all.data() + used_;
  used_ += Aligned(count);
  return place;
}

template <typename Values>
const int32_t* DeviceBatches::Add(const Values& values) {
  const int64_t offset = used_;
  std::ranges::copy(values, Place(std::ssize(values)));
  return reinterpret_cast<const int32_t*>(memory_.address()) + offset;
}

cuda::TokenRuns DeviceBatches::AddRuns(std::span<const int32_t> values) {
  const int64_t order_offset = used_;
  const std::span<int32_t> order(Place(std::ssize(values)), values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](int32_t a, int32_t b) {
    return values[a] != values[b] ? values[a] < values[b] : a < b;
  });
  const int64_t begin_offset = used_;
  int32_t* const begin = Place(std::ssize(values) + 1);
  int64_t num_runs = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || values[order[i]] != values[order[i - 1]]) {
      begin[num_runs++] = static_cast<int32_t>(i);
    }
  }
  begin[num_runs] = static_cast<int32_t>(values.size());
  const auto* const device = reinterpret_cast<const int32_t*>(memory_.address());
  return {device + order_offset, device + begin_offset, num_runs};
}

absl::Status DeviceBatches::Upload(std::span<const MicroBatch> batches, const RopeConfig& rope,
                                   Stream& stream) {
  FOREBAY_CHECK(batches.size() <= batches_.capacity());
  FOREBAY_RETURN_IF_ERROR(uploaded_->Await());
  used_ = 0;
  batches_.clear();
  for (const MicroBatch& batch : batches) {
    const int64_t tokens = std::ssize(batch.tokens);
    DeviceBatch& added = batches_.emplace_back();
    added.tokens = tokens;
    added.token = Add(batch.tokens);
    added.target = Add(batch.targets);
    const auto* const device = reinterpret_cast<const int32_t*>(memory_.address());
    added.position = device + used_;
    const std::span<int32_t> position(Place(tokens), batch.tokens.size());
    std::ranges::copy(batch.positions, position.begin());
    added.segment_begin = device + used_;
    const std::span<int32_t> begin(Place(tokens), batch.tokens.size());
    added.segment_end = device + used_;
    const std::span<int32_t> end(Place(tokens), batch.tokens.size());
    std::ranges::fill(begin, 0);
    std::ranges::fill(end, 0);
    for (const Segment& segment : batch.segments) {
      const auto first_row = static_cast<int32_t>(FirstRopeRow(rope, segment.length));
      for (int32_t& row : position.subspan(segment.begin, segment.length)) row += first_row;
      std::ranges::fill(begin.subspan(segment.begin, segment.length),
                        static_cast<int32_t>(segment.begin));
      std::ranges::fill(end.subspan(segment.begin, segment.length),
                        static_cast<int32_t>(segment.begin + segment.length));
    }
    added.token_runs = AddRuns(batch.tokens);
    added.position_runs = AddRuns(batch.positions);
  }
  FOREBAY_RETURN_IF_ERROR(stream.CopyToDevice(
      memory_.address(), std::as_bytes(staging_.As<int32_t>().first(static_cast<size_t>(used_)))));
  return stream.Record(*uploaded_);
}

}  // namespace forebay
