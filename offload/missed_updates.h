// How many updates each tensor has missed, as a commit carries it (docs/formats.md). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

inline constexpr std::string_view kMissedUpdatesKey = "missed_updates";

// Into what a commit carries, as [count, tensors, count, tensors, ...]: runs of tensors, in the
// order of the inventory, that missed the same number. Nothing where no tensor missed any.
// `trainer`: an object or null.
void AddMissedUpdates(std::span<const int64_t> missed, Json& trainer);

// By tensor; empty: none missed any. CorruptError where the commit says what this model cannot
// have.
absl::StatusOr<std::vector<int64_t>> MissedUpdatesOf(const CommitInfo& committed,
                                                     size_t num_tensors);

}  // namespace forebay
