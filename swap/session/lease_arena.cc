#include "forebay/swap/session/lease_arena.h"

#include <algorithm>

#include "forebay/base/check.h"

namespace forebay {

LeaseArena::LeaseArena(int64_t size_bytes) : size_bytes_(size_bytes / kAlignBytes * kAlignBytes) {
  holes_.reserve(64);
  if (size_bytes_ > 0) holes_.push_back({0, size_bytes_});
}

std::optional<int64_t> LeaseArena::Take(int64_t bytes) {
  FOREBAY_CHECK(bytes >= 0 && bytes % kAlignBytes == 0);
  if (bytes == 0) return 0;
  const auto hole = std::ranges::find_if(
      holes_, [&](const Hole& candidate) { return candidate.end - candidate.begin >= bytes; });
  if (hole == holes_.end()) return std::nullopt;
  const int64_t begin = hole->begin;
  hole->begin += bytes;
  if (hole->begin == hole->end) holes_.erase(hole);
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return begin;
}

void LeaseArena::GiveBack(int64_t begin, int64_t bytes) {
  FOREBAY_CHECK(begin % kAlignBytes == 0 && bytes >= 0 && bytes % kAlignBytes == 0);
  if (bytes == 0) return;
  const int64_t end = begin + bytes;
  FOREBAY_CHECK(begin >= 0 && end <= size_bytes_);
  auto next = std::ranges::find_if(holes_, [&](const Hole& hole) { return hole.begin >= begin; });
  FOREBAY_CHECK(next == holes_.end() || next->begin >= end);
  FOREBAY_CHECK(next == holes_.begin() || std::prev(next)->end <= begin);
  used_bytes_ -= bytes;
  const bool joins_next = next != holes_.end() && next->begin == end;
  const bool joins_previous = next != holes_.begin() && std::prev(next)->end == begin;
  if (joins_previous && joins_next) {
    std::prev(next)->end = next->end;
    holes_.erase(next);
  } else if (joins_previous) {
    std::prev(next)->end = end;
  } else if (joins_next) {
    next->begin = begin;
  } else {
    holes_.insert(next, {begin, end});
  }
}

}  // namespace forebay
