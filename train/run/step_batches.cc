#include "forebay/train/run/step_batches.h"

#include <algorithm>
#include <utility>

#include "forebay/base/errors.h"
#include "forebay/base/trace.h"
#include "forebay/collective/communicator.h"

namespace forebay {
namespace {

void LeaveUntrained(MicroBatch& batch) {
  std::ranges::fill(batch.targets, -1);
  batch.num_trained = batch.num_tokens = 0;
}

}  // namespace

StepBatches::StepBatches(const PackedFile* data, const Options& options)
    : data_(data),
      options_(options),
      sampler_(data->info().num_rows, options.seed),
      batches_(static_cast<size_t>(options.accum * options.num_own_parts)) {}

absl::StatusOr<std::span<const MicroBatch>> StepBatches::Read(int64_t step) {
  const TraceScope trace("read tokens");
  const std::vector<int64_t> rows = sampler_.RowsOfStep(step - 1, options_.batch * options_.accum);
  num_batches_ = 0;
  for (int part = 0; part < options_.num_own_parts; ++part) {
    FOREBAY_RETURN_IF_ERROR(ReadPart(rows, part));
  }
  return std::span(std::as_const(batches_)).first(num_batches_);
}

absl::StatusOr<MicroBatch*> StepBatches::ReadBatch(std::span<const int64_t> rows, int own_part) {
  MicroBatch& batch = batches_[num_batches_++];
  batch.part = own_part;
  FOREBAY_RETURN_IF_ERROR(data_->ReadRows(rows, batch));
  return &batch;
}

absl::Status StepBatches::ReadPart(std::span<const int64_t> rows, int own_part) {
  const auto part = static_cast<size_t>(options_.first_part) + static_cast<size_t>(own_part);
  const size_t num_before = num_batches_;
  for (size_t first = 0; first < rows.size(); first += options_.batch) {
    const size_t count = std::min<size_t>(options_.batch, rows.size() - first);
    const std::vector<int64_t> parts = EvenParts(static_cast<int64_t>(count), options_.num_parts);
    const int64_t begin = parts[part], end = parts[part + 1];
    if (begin == end) continue;
    FOREBAY_RETURN_IF_ERROR(ReadBatch(rows.subspan(first + begin, end - begin), own_part).status());
  }
  if (num_batches_ > num_before) return absl::OkStatus();
  // An epoch's last step may have fewer rows than there are parts: one without trains nothing.
  FOREBAY_ASSIGN_OR_RETURN(MicroBatch* const batch, ReadBatch(rows.first(1), own_part));
  LeaveUntrained(*batch);
  return absl::OkStatus();
}

}  // namespace forebay
