// The lines of a metrics.jsonl as columns, one for each number that any of them has.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

// A number that a line does not have.
inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

// Rows are in the order of their steps, each of which is there once.
class MetricsTable {
 public:
  // The numbers of one line, and true and false as 1 and 0. Those inside an object are named
  // "waits.state". Where the step is there already, its line is replaced: returns false.
  bool Add(int64_t step, const Json& line);

  // Row 0 may be step 0: the held-out loss before training.
  const std::vector<int64_t>& steps() const { return steps_; }
  // In the order in which they first came.
  std::vector<std::string> names() const;
  // As long as steps(), kMissing where a line does not have it; where none has, all of it.
  std::vector<double> Values(std::string_view name) const;

 private:
  struct Column {
    std::string name;
    std::vector<double> values;
  };
  void AddNumbers(size_t row, const std::string& prefix, const Json& object);
  std::vector<double>& ColumnOf(const std::string& name);

  std::vector<int64_t> steps_;
  std::vector<Column> columns_;
};

struct ReadMetrics {
  MetricsTable table;
  std::vector<std::string> notes;  // what the file has that is in no row, and why
};
// Reads the file at `path`, which a run may be writing. One that is not there has no lines, and a
// note says so. StorageError.
absl::StatusOr<ReadMetrics> ReadMetricsFile(const std::string& path);

}  // namespace forebay
