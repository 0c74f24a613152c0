#include "forebay/train/report/metrics_table.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

// A line of a step has some hundred bytes. Of a longer one no more than this is kept.
constexpr size_t kMostLineBytes = size_t{1} << 20;

// Calls `take` with every line that ends with a newline. Returns what is behind the last newline.
absl::StatusOr<std::string> ForEachLine(const std::string& path,
                                        const std::function<void(std::string_view)>& take) {
  FOREBAY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_RDONLY));
  std::string line;
  std::string piece(size_t{1} << 16, '\0');
  for (;;) {
    const ssize_t count = ::read(fd.get(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return StorageErrorWithAdvice(fmt::format("reading '{}' failed", path), errno);
    if (count == 0) return line;
    std::string_view rest(piece.data(), static_cast<size_t>(count));
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      line += rest.substr(0, end);
      take(line);
      line.clear();
      rest.remove_prefix(end + 1);
    }
    if (line.size() < kMostLineBytes) line += rest;
  }
}

// No run has as many steps.
constexpr int64_t kMostStepsOfTable = int64_t{1} << 40;

// -1: not a line of a step.
int64_t StepInLine(const absl::StatusOr<Json>& line) {
  if (!line.ok() || !line->is_object() || !line->contains("step")) return -1;
  const int64_t step = IntegerOf((*line)["step"]).value_or(-1);
  return step <= kMostStepsOfTable ? step : -1;
}

}  // namespace

bool MetricsTable::Add(int64_t step, const Json& line) {
  const auto found = std::ranges::lower_bound(steps_, step);
  const auto row = found - steps_.begin();
  const bool is_new = found == steps_.end() || *found != step;
  if (is_new) steps_.insert(found, step);
  for (Column& column : columns_) {
    if (is_new) {
      column.values.insert(column.values.begin() + row, kMissing);
    } else {
      column.values[row] = kMissing;
    }
  }
  AddNumbers(static_cast<size_t>(row), "", line);
  return is_new;
}

void MetricsTable::AddNumbers(size_t row, const std::string& prefix, const Json& object) {
  for (const auto& [key, value] : object.items()) {
    const std::string name = prefix + key;
    if (value.is_object()) {
      AddNumbers(row, name + ".", value);
    } else if (value.is_number()) {
      if (name != "step") ColumnOf(name)[row] = value.get<double>();
    } else if (value.is_boolean()) {
      ColumnOf(name)[row] = value.get<bool>() ? 1 : 0;
    }
  }
}

std::vector<double>& MetricsTable::ColumnOf(const std::string& name) {
  const auto found = std::ranges::find(columns_, name, &Column::name);
  if (found != columns_.end()) return found->values;
  columns_.push_back({name, std::vector<double>(steps_.size(), kMissing)});
  return columns_.back().values;
}

std::vector<std::string> MetricsTable::names() const {
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  return names;
}

std::vector<double> MetricsTable::Values(std::string_view name) const {
  const auto found = std::ranges::find(columns_, name, &Column::name);
  if (found != columns_.end()) return found->values;
  return std::vector<double>(steps_.size(), kMissing);
}

absl::StatusOr<ReadMetrics> ReadMetricsFile(const std::string& path) {
  ReadMetrics read;
  FOREBAY_ASSIGN_OR_RETURN(const bool is_there, ProbePath(path));
  if (!is_there) {
    read.notes.push_back(
        fmt::format("there is no '{}': no step has ended yet, or it is lost", path));
    return read;
  }
  int64_t number = 0;
  int64_t num_damaged = 0;
  int64_t first_damaged = 0;
  int64_t num_replaced = 0;
  const auto take = [&](std::string_view line) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    const absl::StatusOr<Json> json = ParseJson(line, path);
    if (const int64_t step = StepInLine(json); step >= 0) {
      num_replaced += read.table.Add(step, *json) ? 0 : 1;
    } else if (num_damaged++ == 0) {
      first_damaged = number;
    }
  };
  FOREBAY_ASSIGN_OR_RETURN(const std::string torn, ForEachLine(path, take));
  // The newline may be what is torn off.
  const bool is_whole = StepInLine(ParseJson(torn, path)) >= 0;
  if (is_whole) take(torn);
  if (num_damaged > 0) {
    read.notes.push_back(
        fmt::format("'{}' has damaged lines, which are left out: {} (the first is line {})", path,
                    num_damaged, first_damaged));
  }
  if (num_replaced > 0) {
    read.notes.push_back(
        fmt::format("'{}' has more than one line for {} of its steps; the last one counts", path,
                    num_replaced));
  }
  if (!torn.empty() && !is_whole) {
    read.notes.push_back(fmt::format(
        "the last line of '{}' is cut off and left out: it is being written, or its process was "
        "killed",
        path));
  }
  if (read.table.steps().empty()) {
    read.notes.push_back(fmt::format("'{}' has no line of a step yet", path));
  }
  return read;
}

}  // namespace forebay
