// One plain value of each rank, and votes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/collective/communicator.h"

namespace forebay {

// In the order of the ranks. The errors of GatherRecords; UsageError where another rank sends
// something else, as another build of the program may.
template <typename T>
absl::StatusOr<std::vector<T>> GatherValues(Communicator& ranks, const T& own) {
  static_assert(std::is_trivially_copyable_v<T>);
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> records,
                           ranks.GatherRecords({reinterpret_cast<const char*>(&own), sizeof(T)}));
  std::vector<T> values(records.size());
  for (size_t rank = 0; rank < records.size(); ++rank) {
    if (records[rank].size() != sizeof(T)) {
      return UsageError(fmt::format(
          "rank {} ({}) sent {} bytes where {} were due: it runs another version of this program",
          rank, ranks.host(static_cast<int>(rank)), records[rank].size(), sizeof(T)));
    }
    std::memcpy(&values[rank], records[rank].data(), sizeof(T));
  }
  return values;
}

// Whether `own` is true on any rank, and on all. `ranks`: nullptr for one process. The errors of
// GatherValues.
inline absl::StatusOr<bool> AnyRank(Communicator* ranks, bool own) {
  if (ranks == nullptr) return own;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<uint8_t> all,
                           GatherValues(*ranks, static_cast<uint8_t>(own)));
  return std::ranges::count(all, 1) > 0;
}

}  // namespace forebay
