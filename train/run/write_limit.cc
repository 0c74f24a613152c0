#include "forebay/train/run/write_limit.h"

#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/written_record.h"
#include "forebay/train/plan/write_budget.h"

namespace forebay {
namespace {

// Lines of logs, and the small files of a commit.
constexpr int64_t kKernelSlackBytes = int64_t{64} << 20;

}  // namespace

bool KernelCountsMore(int64_t kernel_bytes, int64_t engine_bytes) {
  return kernel_bytes > engine_bytes + engine_bytes / 10 + kKernelSlackBytes;
}

WriteLimit::WriteLimit(const PreparedRun& run)
    : run_(&run),
      limit_bytes_(MostWrittenBytes(run.options)),
      step_bytes_(MostBytesOfAStep(run.plan)) {}

WriteLimit WriteLimit::Create(const PreparedRun& run) {
  WriteLimit limit(run);
  limit.before_bytes_ = run.plan.written_before_bytes.value_or(0);
  return limit;
}

absl::Status WriteLimit::Begin(int64_t committed_step) const {
  return WriteWrittenRecord(run_->paths.written,
                            {.bytes = written_bytes(), .step = committed_step, .ended = false});
}

absl::Status WriteLimit::End(int64_t committed_step) const {
  return WriteWrittenRecord(run_->paths.written,
                            {.bytes = written_bytes(), .step = committed_step, .ended = true});
}

int64_t WriteLimit::written_bytes() const {
  return before_bytes_ + run_->engine->stats().write_bytes;
}

void WriteLimit::AddTo(Json& trainer) const {
  trainer[kWrittenBytesKey] = written_bytes();
}

absl::Status WriteLimit::CheckNextStep() const {
  const int64_t written = written_bytes();
  if (limit_bytes_ == 0 || written + 2 * step_bytes_ <= limit_bytes_) return absl::OkStatus();
  return InterruptedError(fmt::format("stopped, as --max_tbw={} asks,", run_->options.max_tbw));
}

std::string WriteLimit::WhyNoMore() const {
  return fmt::format(
      "The sessions of this run have written {} to the disks of its swap area, and one more step, "
      "with what saves it, may write {}",
      FormatBytes(written_bytes()), FormatBytes(2 * step_bytes_));
}

void WriteLimit::AfterStep(int64_t write_bytes) {
  step_bytes_ = std::max(step_bytes_, write_bytes);
}

std::string WriteLimit::CompareWithKernel() {
  const std::optional<IoAccount> kernel = IoAccountOfProcess();
  if (has_warned_ || !kernel.has_value()) return "";
  const int64_t engine_bytes = run_->engine->stats().write_bytes;
  if (!first_kernel_.has_value()) {
    first_kernel_ = kernel;
    first_engine_bytes_ = engine_bytes;
  }
  const int64_t by_kernel = kernel->write_bytes - first_kernel_->write_bytes;
  const int64_t by_engine = engine_bytes - first_engine_bytes_;
  if (!KernelCountsMore(by_kernel, by_engine)) return "";
  has_warned_ = true;
  return fmt::format(
      "the kernel has counted {} that this process wrote during its steps, and the engine {}: more "
      "goes to the disks than --max_tbw and metrics.jsonl know of",
      FormatBytes(by_kernel), FormatBytes(by_engine));
}

}  // namespace forebay
