#include "forebay/model/cuda_decoder/sequence_cache.h"

#include <utility>

#include "forebay/base/errors.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<SequenceCache>> SequenceCache::Create(
    const SequenceCacheShape& shape, Device* device, Stream* compute, MemoryBudget* device_budget,
    MemoryBudget* host_budget) {
  std::unique_ptr<SequenceCache> made(new SequenceCache(shape, compute));
  FOREBAY_ASSIGN_OR_RETURN(
      made->on_device_,
      DeviceAllocation::Create(device_budget, device, "keys and values", shape.DeviceBytes()));
  FOREBAY_ASSIGN_OR_RETURN(
      made->in_ram_, HostBuffer::Create(host_budget, "keys and values of the GPU", shape.RamBytes(),
                                        {.device = device}));
  if (shape.num_in_ram == 0) return made;
  for (Place& place : made->places_) {
    FOREBAY_ASSIGN_OR_RETURN(place.is_free, device->CreateEvent());
    FOREBAY_ASSIGN_OR_RETURN(place.is_there, device->CreateEvent());
  }
  FOREBAY_ASSIGN_OR_RETURN(made->copies_, device->CreateStream());
  return made;
}

SequenceCache::OfBlock SequenceCache::OnDevice(int block) const {
  const int place = block < shape_.num_in_ram ? block % SequenceCacheShape::kNumPlaces
                                              : block - shape_.num_in_ram + shape_.num_places();
  std::byte* const keys = on_device_.address() + 2 * place * shape_.block_bytes;
  return {keys, keys + shape_.block_bytes};
}

template <typename Copy>
absl::Status SequenceCache::ForRows(int block, std::span<const Rows> rows, const Copy& copy) const {
  const OfBlock on_device = OnDevice(block);
  std::byte* const keys = in_ram_.data() + 2 * block * shape_.block_bytes;
  for (const Rows& some : rows) {
    if (some.count == 0) continue;
    const int64_t offset = some.first * shape_.row_bytes;
    const auto size = static_cast<size_t>(some.count * shape_.row_bytes);
    FOREBAY_RETURN_IF_ERROR(copy(std::span(keys + offset, size), on_device.keys + offset));
    FOREBAY_RETURN_IF_ERROR(
        copy(std::span(keys + shape_.block_bytes + offset, size), on_device.values + offset));
  }
  return absl::OkStatus();
}

// To the block's place, where nothing is read or added any more when that is free.
absl::Status SequenceCache::Bring(int block) {
  if (block >= shape_.num_in_ram) return absl::OkStatus();
  Place& place = places_[block % SequenceCacheShape::kNumPlaces];
  FOREBAY_RETURN_IF_ERROR(copies_->WaitFor(*place.is_free));
  FOREBAY_RETURN_IF_ERROR(ForRows(block, cached_, [&](std::span<std::byte> in_ram, void* to) {
    return copies_->CopyToDevice(to, in_ram);
  }));
  return copies_->Record(*place.is_there);
}

absl::Status SequenceCache::BeginPass(std::vector<Rows> cached, std::vector<Rows> added) {
  cached_ = std::move(cached);
  added_ = std::move(added);
  for (int block = 0; block < shape_.num_places(); ++block) {
    FOREBAY_RETURN_IF_ERROR(compute_.Record(*places_[block].is_free));
    FOREBAY_RETURN_IF_ERROR(Bring(block));
  }
  return absl::OkStatus();
}

absl::StatusOr<SequenceCache::OfBlock> SequenceCache::Use(int block) {
  if (block < shape_.num_in_ram) {
    const Place& place = places_[block % SequenceCacheShape::kNumPlaces];
    FOREBAY_RETURN_IF_ERROR(compute_.WaitFor(*place.is_there));
  }
  return OnDevice(block);
}

absl::Status SequenceCache::End(int block) {
  if (block >= shape_.num_in_ram) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(ForRows(block, added_, [&](std::span<std::byte> in_ram, void* from) {
    return compute_.CopyToHost(in_ram, from);
  }));
  FOREBAY_RETURN_IF_ERROR(
      compute_.Record(*places_[block % SequenceCacheShape::kNumPlaces].is_free));
  return Bring(block + SequenceCacheShape::kNumPlaces);
}

}  // namespace forebay
