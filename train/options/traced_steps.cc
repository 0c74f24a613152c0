#include "forebay/train/options/traced_steps.h"

#include <algorithm>
#include <filesystem>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/output_folder.h"

namespace forebay {
namespace {

constexpr int64_t kStepsUnlessSaid = 3;

}  // namespace

absl::Status CheckTraceFile(const TrainOptions& options) {
  const std::string& path = options.trace;
  if (IsDirectory(path)) {
    return UsageError(fmt::format("--trace: '{}' is a folder; name a file in it", path));
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !IsDirectory(folder.string())) {
    return UsageError(fmt::format("--trace={}: there is no folder '{}'. Make it, or name another",
                                  path, folder.string()));
  }
  return Annotate(CheckWritable(folder.empty() ? "." : folder.string()), "--trace");
}

absl::StatusOr<StepRange> TracedSteps(const TrainOptions& options, int64_t first_step,
                                      int64_t num_steps) {
  const int64_t last_step =
      options.stop_after > 0 ? std::min(num_steps, first_step + options.stop_after - 1) : num_steps;
  const StepRange& said = options.trace_steps;
  if (said.first == 0) {
    const int64_t first = std::min(first_step + 1, last_step);
    return StepRange{first, std::min(first + kStepsUnlessSaid - 1, last_step)};
  }
  if (said.first >= first_step && said.last <= last_step) return said;
  return UsageError(
      fmt::format("--set=trace_steps={}-{}: this process trains the steps {} to {}. Name some of "
                  "those, or leave "
                  "it out",
                  said.first, said.last, first_step, last_step));
}

}  // namespace forebay
