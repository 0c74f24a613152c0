#include "forebay/offload/missed_updates.h"

#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
void AddMissedUpdates(std::span<const int64_t> missed, Json& trainer) {
  if (trainer.is_object()) trainer.erase(kMissedUpdatesKey);
  if (std::ranges::all_of(missed, [](int64_t count) { return count == 0; })) return;
  Json runs = Json::array();
  for (size_t first = 0; first < missed.size();) {
    size_t end = first;
    while (end < missed.size() && missed[end] == missed[first]) ++end;
    runs.push_back(static_cast<uint64_t>(missed[first]));  // as a parser reads it again
    runs.push_back(end - first);
    first = end;
  }
  trainer[kMissedUpdatesKey] = std::move(runs);
}

absl::StatusOr<std::vector<int64_t>> MissedUpdatesOf(const CommitInfo& committed,
                                                     size_t num_tensors) {
  std::vector<int64_t> missed;
  if (!committed.trainer.is_object() || !committed.trainer.contains(kMissedUpdatesKey))
    return missed;
  const Json& runs = committed.trainer[kMissedUpdatesKey];
  bool is_whole =
      runs.is_array() && runs.size() % 2 == 0 && std::ranges::all_of(runs, [](const Json& number) {
        return number.is_number_unsigned() &&
               number.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
      });
  for (size_t i = 0; is_whole && i < runs.size(); i += 2) {
    const auto count = runs[i + 1].get<uint64_t>();
    is_whole = count <= num_tensors - missed.size();
    if (is_whole) missed.resize(missed.size() + count, runs[i].get<int64_t>());
  }
  if (is_whole && missed.size() == num_tensors) return missed;
  return CorruptError(
      fmt::format("the commit of step {} says '{}' of updates that tensors have missed; the model "
                  "has {} tensors",
                  committed.step, runs.dump(), num_tensors));
}

}  // namespace forebay
