#include "forebay/train/infer/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/step/layer_walk.h"
#include "forebay/step/step_schedule.h"

namespace forebay {
namespace {

// The micro-batches that go through the layers together.
class Pass {
 public:
  Pass(const EvaluatedModel& model, const EvaluateOptions& options)
      : compute_(model.compute),
        source_(model.source),
        options_(options),
        walk_(ForwardOperations(ChainOf(model.config))) {}

  // Reads the rows [first_row, end_row); the memory of the batches of the pass before is reused.
  absl::Status Load(const PackedFile& data, int64_t first_row, int64_t end_row) {
    num_batches_ = 0;
    for (int64_t row = first_row; row < end_row; row += options_.rows_per_micro_batch) {
      rows_.resize(std::min(options_.rows_per_micro_batch, end_row - row));
      std::iota(rows_.begin(), rows_.end(), row);
      if (num_batches_ == batches_.size()) batches_.emplace_back();
      FOREBAY_RETURN_IF_ERROR(data.ReadRows(rows_, batches_[num_batches_]));
      ++num_batches_;
    }
    return absl::OkStatus();
  }

  // Adds to `loss_sum`, micro-batch by micro-batch in the order of rows, so that the number of
  // micro-batches in a pass cannot change the sum. `begin`, `end`: the pass's share of the whole
  // evaluation.
  absl::Status Run(double begin, double end, double& loss_sum) {
    FOREBAY_RETURN_IF_ERROR(
        compute_.BeginPass(std::span(batches_).first(num_batches_), /*gradient_scale=*/1));
    WalkHooks hooks;
    if (options_.progress) {
      hooks.progress = [&](double fraction) {
        return options_.progress(begin + (end - begin) * fraction);
      };
    }
    walk_.Announce(source_);
    FOREBAY_RETURN_IF_ERROR(walk_.Run(source_, compute_, hooks));
    for (size_t batch = 0; batch < num_batches_; ++batch) {
      FOREBAY_ASSIGN_OR_RETURN(const double loss, compute_.LossSumOf(batch));
      loss_sum += loss;
    }
    return absl::OkStatus();
  }

 private:
  LayerCompute& compute_;
  ParamSource& source_;
  const EvaluateOptions& options_;
  LayerWalk walk_;
  std::vector<int64_t> rows_;
  std::vector<MicroBatch> batches_;
  size_t num_batches_ = 0;
};

absl::Status CheckData(const DecoderConfig& config, const PackedFile& data) {
  const PackedFileInfo& info = data.info();
  if (info.num_trained == 0) {
    return BadInputError(
        fmt::format("'{}' has no trained token, so there is no loss to compute. Look at it with "
                    "'forebay data show'",
                    data.path()));
  }
  if (info.vocab_size > config.vocab_size) {
    return BadInputError(
        fmt::format("'{}' was packed with a vocabulary of {} tokens, but the model has {}. Pack it "
                    "with the model's own tokenizer",
                    data.path(), info.vocab_size, config.vocab_size));
  }
  if (info.seq > config.max_positions) {
    return BadInputError(fmt::format(
        "'{}' has rows of {} tokens, but the model has {} positions. Pack it with --seq={} or less",
        data.path(), info.seq, config.max_positions, config.max_positions));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EvaluationResult> Evaluate(const EvaluatedModel& model, const PackedFile& data,
                                          const EvaluateOptions& options) {
  const PackedFileInfo& info = data.info();
  FOREBAY_RETURN_IF_ERROR(CheckData(model.config, data));
  const int64_t batches_per_pass =
      model.most_forward_tokens / (options.rows_per_micro_batch * info.seq);
  FOREBAY_CHECK(batches_per_pass >= 1);
  const int64_t rows_per_pass = batches_per_pass * options.rows_per_micro_batch;

  Pass pass(model, options);
  double loss_sum = 0;
  for (int64_t row = 0; row < info.num_rows; row += rows_per_pass) {
    const int64_t end = std::min(info.num_rows, row + rows_per_pass);
    FOREBAY_RETURN_IF_ERROR(pass.Load(data, row, end));
    const double num_rows = static_cast<double>(info.num_rows);
    FOREBAY_RETURN_IF_ERROR(pass.Run(static_cast<double>(row) / num_rows,
                                     static_cast<double>(end) / num_rows, loss_sum));
  }
  EvaluationResult result;
  result.loss = loss_sum / static_cast<double>(info.num_trained);
  result.perplexity = std::exp(result.loss);
  result.num_trained = info.num_trained;
  result.num_tokens = info.num_tokens;
  return result;
}

Json ToJson(const EvaluationResult& result) {
  Json json;
  json["loss"] = result.loss;
  json["perplexity"] = result.perplexity;
  json["trained_tokens"] = result.num_trained;
  json["tokens"] = result.num_tokens;
  return json;
}

}  // namespace forebay
