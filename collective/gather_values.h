// One plain value of each rank.
#pragma once

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
  FOREBAY_ASSIGN_OR_RETURN(
      const std::vector<std::string> records,
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

}  // namespace forebay
