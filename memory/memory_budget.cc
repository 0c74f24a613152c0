#include "forebay/memory/memory_budget.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

using Purposes = std::map<std::string, int64_t, std::less<>>;

// "'window' 512 MiB, 'gradients' 256 MiB": the purposes worth looking at when memory is short.
std::string LargestPurposes(const Purposes& by_purpose) {
  constexpr size_t kMaxNamed = 4;
  std::vector<std::pair<int64_t, std::string_view>> sorted;
  for (const auto& [purpose, bytes] : by_purpose) sorted.emplace_back(bytes, purpose);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (sorted.size() > kMaxNamed) sorted.resize(kMaxNamed);
  std::string text;
  for (const auto& [bytes, purpose] : sorted) {
    text += fmt::format("{}'{}' {}", text.empty() ? "" : ", ", purpose, FormatBinaryBytes(bytes));
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace

absl::Status MemoryBudget::Charge(std::string_view purpose, int64_t bytes) {
  FOREBAY_CHECK(bytes >= 0);
  const std::lock_guard lock(mutex_);
  if (limit_bytes_ > 0 && bytes > limit_bytes_ - used_bytes_) {
    return OutOfMemoryError(fmt::format(
        "memory: '{}' asks for {} ({} bytes), but {} of the budget of {} ({} bytes) are in use "
        "(largest: {}). Raise the budget ({}) or make the largest of these smaller",
        purpose, FormatBinaryBytes(bytes), bytes, FormatBinaryBytes(used_bytes_),
        FormatBinaryBytes(limit_bytes_), limit_bytes_, LargestPurposes(by_purpose_), option_));
  }
  used_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  const auto found = by_purpose_.find(purpose);
  if (found != by_purpose_.end()) {
    found->second += bytes;
  } else {
    by_purpose_.emplace(std::string(purpose), bytes);
  }
  return absl::OkStatus();
}

void MemoryBudget::Release(std::string_view purpose, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = by_purpose_.find(purpose);
  FOREBAY_CHECK(found != by_purpose_.end() && found->second >= bytes);
  found->second -= bytes;
  used_bytes_ -= bytes;
  if (found->second == 0) by_purpose_.erase(found);
}

void MemoryBudget::AddPages(const PageTally& pages) {
  const std::lock_guard lock(mutex_);
  pages_.Add(pages);
}

void MemoryBudget::SubtractPages(const PageTally& pages) {
  const std::lock_guard lock(mutex_);
  pages_.Subtract(pages);
}

PageTally MemoryBudget::pages() const {
  const std::lock_guard lock(mutex_);
  return pages_;
}

int64_t MemoryBudget::used_bytes() const {
  const std::lock_guard lock(mutex_);
  return used_bytes_;
}

int64_t MemoryBudget::peak_bytes() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

std::map<std::string, int64_t> MemoryBudget::by_purpose() const {
  const std::lock_guard lock(mutex_);
  return {by_purpose_.begin(), by_purpose_.end()};
}

}  // namespace forebay
