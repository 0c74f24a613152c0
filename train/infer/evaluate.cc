#include "forebay/train/infer/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// The micro-batches that go through the layers together.
class Pass {
 public:
  Pass(Decoder& decoder, ParamSource& source, const EvaluateOptions& options,
       int64_t floats_per_batch)
      : decoder_(decoder),
        source_(source),
        options_(options),
        floats_per_batch_(floats_per_batch) {}

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
    const DecoderConfig& config = decoder_.config();
    source_.Expect(decoder_.ForwardOrder());
    {
      FOREBAY_ASSIGN_OR_RETURN(const WeightsLease embed, source_.Acquire(EmbedLayer()));
      for (size_t b = 0; b < num_batches_; ++b) {
        decoder_.Embed(embed.weights(), batches_[b], Activations(b));
      }
    }
    for (int block = 0; block < config.num_layers; ++block) {
      const double fraction = static_cast<double>(block) / (config.num_layers + 1);
      if (options_.progress) {
        FOREBAY_RETURN_IF_ERROR(options_.progress(begin + (end - begin) * fraction));
      }
      FOREBAY_ASSIGN_OR_RETURN(const WeightsLease lease, source_.Acquire(BlockLayer(block)));
      for (size_t b = 0; b < num_batches_; ++b) {
        decoder_.ForwardBlock(block, lease.weights(), batches_[b], Activations(b));
      }
    }
    FOREBAY_ASSIGN_OR_RETURN(const WeightsLease head, source_.Acquire(HeadLayer(config)));
    WeightsLease embed;
    if (config.tied_embeddings) {
      FOREBAY_ASSIGN_OR_RETURN(embed, source_.Acquire(EmbedLayer()));
    }
    for (size_t b = 0; b < num_batches_; ++b) {
      loss_sum +=
          decoder_.Loss(head.weights(), embed.weights(), batches_[b], Activations(b)).loss_sum;
    }
    return absl::OkStatus();
  }

 private:
  std::span<float> Activations(size_t batch) const {
    return options_.activations.subspan(
        batch * floats_per_batch_, batches_[batch].tokens.size() * decoder_.config().hidden_size);
  }

  Decoder& decoder_;
  ParamSource& source_;
  const EvaluateOptions& options_;
  const int64_t floats_per_batch_;
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

int64_t EvaluationBytes(const DecoderConfig& config, int64_t rows_per_micro_batch, int64_t seq,
                        int64_t num_micro_batches) {
  return num_micro_batches * rows_per_micro_batch * seq * config.hidden_size *
         int64_t{sizeof(float)};
}

absl::StatusOr<EvaluationResult> Evaluate(Decoder& decoder, ParamSource& source,
                                          const PackedFile& data, const EvaluateOptions& options) {
  const PackedFileInfo& info = data.info();
  FOREBAY_RETURN_IF_ERROR(CheckData(decoder.config(), data));
  const int64_t floats_per_batch =
      options.rows_per_micro_batch * info.seq * decoder.config().hidden_size;
  const int64_t batches_per_pass =
      static_cast<int64_t>(options.activations.size()) / floats_per_batch;
  FOREBAY_CHECK(batches_per_pass >= 1);
  const int64_t rows_per_pass = batches_per_pass * options.rows_per_micro_batch;

  Pass pass(decoder, source, options, floats_per_batch);
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
