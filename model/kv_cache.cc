#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder.h"
#include "forebay/model/rope.h"
#include "forebay/model/sequences.h"

namespace forebay {
namespace {

int64_t HalfHeadOf(const DecoderConfig& config) {
  return config.positions == PositionKind::kRope ? config.head_dim / 2 : 0;
}

}  // namespace

int64_t KvCache::BytesFor(const DecoderConfig& config, int64_t max_length) {
  const int64_t row = config.num_kv_heads * config.head_dim;
  const int64_t floats = max_length * (2 * config.num_layers * row + 2 * HalfHeadOf(config));
  return HostBuffer::ChargedBytes(floats * static_cast<int64_t>(sizeof(float)));
}

absl::StatusOr<KvCache> KvCache::Create(MemoryBudget* budget, const DecoderConfig& config,
                                        int64_t max_length) {
  FOREBAY_CHECK(max_length > 0);
  FOREBAY_RETURN_IF_ERROR(CheckMaxLength(config, max_length));
  KvCache cache;
  FOREBAY_ASSIGN_OR_RETURN(cache.memory_, HostBuffer::Create(budget, "keys and values (fp32)",
                                                             BytesFor(config, max_length)));
  cache.num_layers_ = config.num_layers;
  cache.row_floats_ = config.num_kv_heads * config.head_dim;
  cache.half_head_ = HalfHeadOf(config);
  cache.max_length_ = max_length;
  if (cache.half_head_ > 0) {
    FillRopeTables(ComputeRopeFrequencies(config.rope, config.head_dim, max_length), max_length,
                   cache.RopeCos(), cache.RopeSin());
  }
  return cache;
}

void KvCache::Truncate(int64_t length) {
  FOREBAY_CHECK(length >= 0 && length <= length_);
  length_ = length;
}

float* KvCache::Keys(int layer) const {
  return memory_.As<float>().data() + 2 * layer * max_length_ * row_floats_;
}

float* KvCache::Values(int layer) const {
  return Keys(layer) + max_length_ * row_floats_;
}

std::span<float> KvCache::RopeCos() const {
  return {Keys(num_layers_), static_cast<size_t>(max_length_ * half_head_)};
}

std::span<float> KvCache::RopeSin() const {
  return {Keys(num_layers_) + max_length_ * half_head_,
          static_cast<size_t>(max_length_ * half_head_)};
}

}  // namespace forebay
