// Cross-entropy through the output projection. Trained rows are gathered first, so that the others
// cost nothing; logits exist for one chunk of rows (and of the vocabulary, where that is large) at
// a time.
#include "forebay/model/cpu/loss.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "forebay/base/check.h"
#include "forebay/model/cpu/gemm.h"
#include "forebay/model/cpu/kernels.h"

namespace forebay::cpu {
namespace {

float LogSumExp(const LogitSums& sums) {
  return sums.max + std::log(sums.sum);
}
void Absorb(float chunk_max, float chunk_sum, LogitSums& sums) {
  const float new_max = std::max(sums.max, chunk_max);
  const float old = sums.sum == 0 ? 0.0f : sums.sum * std::exp(sums.max - new_max);
  sums.sum = old + chunk_sum * std::exp(chunk_max - new_max);
  sums.max = new_max;
}

struct RowState {
  int64_t token = 0;  // its row in x
  int32_t target = 0;
  LogitSums sums;
};

static_assert(sizeof(RowState) <= kLossRowBytes);

class ChunkedLoss {
 public:
  // `part`: the weights are there from its first row on.
  ChunkedLoss(Context& context, const ProjectionPart& part, const float* x,
              const LossChunks& chunks, const LossGradients& gradients)
      : impl_(context.impl()),
        head_(part.head),
        part_(part),
        x_(x),
        gradients_(gradients),
        vocab_chunk_(chunks.cut.PartRows(part.head.out)) {
    const Linear& head = part.head;
    FOREBAY_CHECK(!head.in_out && head.bias == nullptr);
    rows_ = impl_.shared.Get<RowState>(Slot::kLossRows, chunks.max_tokens);
    input_ = impl_.shared.Get<float>(Slot::kLossInput, chunks.max_tokens * head.in);
    logits_ = impl_.shared.Get<float>(Slot::kLogits, chunks.max_tokens * vocab_chunk_);
    const bool has_gradients = gradients.dx != nullptr || gradients.dweight != nullptr;
    if (has_gradients && impl_.native_bf16 && head.dtype == DType::kBF16) {
      narrow_ = impl_.shared.Get<Bf16>(Slot::kOperand, chunks.max_tokens * vocab_chunk_);
    }
    if (gradients.dx != nullptr) {
      dinput_ = impl_.shared.Get<float>(Slot::kLossGradient, chunks.max_tokens * head.in);
    }
  }

  void Append(int64_t token, int32_t target) {
    FOREBAY_CHECK(target < head_.out);
    rows_[num_rows_] = RowState{.token = token, .target = target};
    ++num_rows_;
  }
  int64_t num_rows() const { return num_rows_; }

  // Adds the loss of the appended rows to `sum`, makes their gradients, and forgets them.
  void Finish(double& sum) {
    Gather();
    // A vocabulary in one piece: rows become gradients while they are in the cache.
    const bool at_once = gradients_.dx != nullptr && vocab_chunk_ == head_.out;
    for (int64_t first = 0; first < head_.out; first += vocab_chunk_) {
      MakeLogits(first);
      impl_.pool.ParallelFor(num_rows_, [&](int64_t row) {
        Measure(row, first, /*keep_exp=*/at_once);
        if (at_once) MakeGradient(row, first, /*is_exp=*/true);
      });
    }
    for (int64_t row = 0; row < num_rows_; ++row) {
      const float log_sum_exp = LogSumExp(rows_[row].sums);
      sum += static_cast<double>(log_sum_exp - rows_[row].sums.target_logit);
      if (gradients_.log_sum_exp != nullptr) gradients_.log_sum_exp[rows_[row].token] = log_sum_exp;
    }
    if (gradients_.dx != nullptr) {
      for (int64_t first = 0; first < head_.out; first += vocab_chunk_) {
        if (!at_once) MakeGradientsAgain(first);
        const Operand dlogits = GradientOperand(first);
        AddToInput(first, dlogits);
        if (gradients_.dweight != nullptr) AddToWeight(first, dlogits, first);
      }
      Scatter();
    }
    num_rows_ = 0;
  }

  // The next two are for the part alone, and forget the appended rows. This one goes on with what
  // is known of their logits.
  void AddToSums(LogitSums* sums) {
    for (int64_t row = 0; row < num_rows_; ++row) rows_[row].sums = sums[rows_[row].token];
    Gather();
    MakeLogits(part_.first_row);
    impl_.pool.ParallelFor(num_rows_,
                           [&](int64_t row) { Measure(row, part_.first_row, /*keep_exp=*/false); });
    for (int64_t row = 0; row < num_rows_; ++row) sums[rows_[row].token] = rows_[row].sums;
    num_rows_ = 0;
  }
  // Adds what they give the weights to dweight, which begins with the part, or to dx.
  void AddGradients(const float* log_sum_exp) {
    for (int64_t row = 0; row < num_rows_; ++row) {
      rows_[row].sums = {.max = log_sum_exp[rows_[row].token], .sum = 1};
    }
    Gather();
    MakeGradientsAgain(part_.first_row);
    const Operand dlogits = GradientOperand(part_.first_row);
    if (gradients_.dx != nullptr) {
      GatherGradients();
      AddToInput(part_.first_row, dlogits);
      Scatter();
    } else {
      AddToWeight(part_.first_row, dlogits, /*first_of_dweight=*/0);
    }
    num_rows_ = 0;
  }

 private:
  void Gather() {
    impl_.ParallelBlocks(num_rows_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::memcpy(input_ + row * head_.in, x_ + rows_[row].token * head_.in,
                    static_cast<size_t>(head_.in) * sizeof(float));
      }
    });
    operand_ = MakeOperand(impl_, Slot::kOtherOperand, input_, num_rows_, head_.in, head_.in);
  }
  int64_t Width(int64_t first) const { return std::min(vocab_chunk_, head_.out - first); }
  int64_t RowStride() const { return head_.row_stride == 0 ? head_.in : head_.row_stride; }
  WeightOperand Weights(int64_t first, bool transposed) const {
    return {.dtype = head_.dtype,
            .data = ElementAt(part_.rows, head_.dtype, (first - part_.first_row) * RowStride()),
            .row_stride = RowStride(),
            .transposed = transposed};
  }

  void MakeLogits(int64_t first) {
    const int64_t width = Width(first);
    WeightGemm(impl_, num_rows_, width, head_.in, operand_, Weights(first, true), nullptr, logits_,
               width, false);
  }
  // `keep_exp`: logits become exp(logit - max), for a gradient that follows at once.
  void Measure(int64_t index, int64_t first, bool keep_exp) {
    const int64_t width = Width(first);
    RowState& row = rows_[index];
    float* const logits = logits_ + index * width;
    if (row.target >= first && row.target < first + width) {
      row.sums.target_logit = logits[row.target - first];
    }
    const float max = kernels::Max(logits, width);
    Absorb(max,
           keep_exp ? kernels::ExpInPlace(max, width, logits) : kernels::SumExp(logits, max, width),
           row.sums);
  }
  // (softmax - onehot) * scale: in bf16 in narrow_, where products are; else logits become it.
  void MakeGradient(int64_t index, int64_t first, bool is_exp) {
    const int64_t width = Width(first);
    const RowState& row = rows_[index];
    const float scale = static_cast<float>(gradients_.scale);
    float* const logits = logits_ + index * width;
    if (!is_exp) kernels::ScaledExpInPlace(LogSumExp(row.sums), scale, width, logits);
    const float factor = is_exp ? scale / row.sums.sum : 1;
    const int64_t target = row.target - first;
    const bool has_target = target >= 0 && target < width;
    if (narrow_ != nullptr) {
      Bf16* const out = narrow_ + index * width;
      kernels::NarrowScaledToBf16(logits, factor, width, out);
      if (has_target) out[target] = FloatToBf16(logits[target] * factor - scale);
      return;
    }
    if (is_exp) kernels::Scale(factor, width, logits);
    if (has_target) logits[target] -= scale;
  }
  // From logits that are computed once more.
  void MakeGradientsAgain(int64_t first) {
    MakeLogits(first);
    impl_.pool.ParallelFor(num_rows_,
                           [&](int64_t row) { MakeGradient(row, first, /*is_exp=*/false); });
  }
  Operand GradientOperand(int64_t first) {
    if (narrow_ != nullptr) return {.narrow = narrow_};
    return MakeOperand(impl_, Slot::kOperand, logits_, num_rows_, Width(first), Width(first));
  }
  void AddToInput(int64_t first, const Operand& dlogits) {
    WeightGemm(impl_, num_rows_, head_.in, Width(first), dlogits, Weights(first, false), nullptr,
               dinput_, head_.in, first > 0);
  }
  // `first_of_dweight`: the row of dweight where the chunk begins.
  void AddToWeight(int64_t first, const Operand& dlogits, int64_t first_of_dweight) {
    OuterGemm(impl_, Width(first), head_.in, num_rows_, dlogits, operand_,
              gradients_.dweight + first_of_dweight * RowStride(), RowStride());
  }
  // Parts before have added to these.
  void GatherGradients() {
    if (part_.first_row == 0) return;
    impl_.ParallelBlocks(num_rows_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::memcpy(dinput_ + row * head_.in, gradients_.dx + rows_[row].token * head_.in,
                    static_cast<size_t>(head_.in) * sizeof(float));
      }
    });
  }
  void Scatter() {
    impl_.ParallelBlocks(num_rows_, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        std::memcpy(gradients_.dx + rows_[row].token * head_.in, dinput_ + row * head_.in,
                    static_cast<size_t>(head_.in) * sizeof(float));
      }
    });
  }

  Context::Impl& impl_;
  const Linear& head_;
  const ProjectionPart& part_;
  const float* x_;
  const LossGradients& gradients_;
  const int64_t vocab_chunk_;
  int64_t num_rows_ = 0;
  RowState* rows_ = nullptr;
  float* input_ = nullptr;
  Operand operand_;  // of it
  float* dinput_ = nullptr;
  float* logits_ = nullptr;
  Bf16* narrow_ = nullptr;  // their gradients; nullptr: logits_ takes them
};

}  // namespace

LossResult CrossEntropy(Context& context, const Linear& head, const float* x,
                        std::span<const int32_t> targets, const LossChunks& chunks,
                        const LossGradients& gradients) {
  LossResult result;
  const ProjectionPart all = {.head = head, .rows = head.weight};
  ChunkedLoss loss(context, all, x, chunks, gradients);
  for (size_t i = 0; i < targets.size(); ++i) {
    const int64_t token = static_cast<int64_t>(i);
    if (targets[i] < 0) {
      if (gradients.dx != nullptr) std::fill_n(gradients.dx + token * head.in, head.in, 0.0f);
      continue;
    }
    loss.Append(token, targets[i]);
    ++result.num_trained;
    if (loss.num_rows() == chunks.max_tokens) loss.Finish(result.loss_sum);
  }
  if (loss.num_rows() > 0) loss.Finish(result.loss_sum);
  return result;
}

namespace {

// Calls `finish` for some trained rows at a time.
template <typename Finish>
void ForTrainedRows(ChunkedLoss& loss, std::span<const int32_t> targets, const LossChunks& chunks,
                    const Finish& finish) {
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0) continue;
    loss.Append(static_cast<int64_t>(i), targets[i]);
    if (loss.num_rows() == chunks.max_tokens) finish();
  }
  if (loss.num_rows() > 0) finish();
}

void CheckPart(const ProjectionPart& part, const LossChunks& chunks) {
  FOREBAY_CHECK(chunks.cut.Cuts(part.head.out) && part.first_row % chunks.cut.part_rows == 0);
  FOREBAY_CHECK(part.first_row >= 0 && part.first_row < part.head.out);
}

}  // namespace

void ProjectionGradient(Context& context, const ProjectionPart& part, const float* x,
                        std::span<const int32_t> targets, const LossChunks& chunks, double scale,
                        const float* log_sum_exp, float* dweight) {
  CheckPart(part, chunks);
  const LossGradients gradients = {.scale = scale, .dweight = dweight};
  ChunkedLoss loss(context, part, x, chunks, gradients);
  ForTrainedRows(loss, targets, chunks, [&] { loss.AddGradients(log_sum_exp); });
}

void LogitSumsOfPart(Context& context, const ProjectionPart& part, const float* x,
                     std::span<const int32_t> targets, const LossChunks& chunks, LogitSums* sums) {
  CheckPart(part, chunks);
  const LossGradients none;
  ChunkedLoss loss(context, part, x, chunks, none);
  ForTrainedRows(loss, targets, chunks, [&] { loss.AddToSums(sums); });
}

void InputGradientOfPart(Context& context, const ProjectionPart& part, const float* x,
                         std::span<const int32_t> targets, const LossChunks& chunks, double scale,
                         const float* log_sum_exp, float* dx) {
  CheckPart(part, chunks);
  const int64_t hidden = part.head.in;
  for (size_t i = 0; part.first_row == 0 && i < targets.size(); ++i) {
    if (targets[i] < 0) std::fill_n(dx + static_cast<int64_t>(i) * hidden, hidden, 0.0f);
  }
  const LossGradients gradients = {.scale = scale, .dx = dx};
  ChunkedLoss loss(context, part, x, chunks, gradients);
  ForTrainedRows(loss, targets, chunks, [&] { loss.AddGradients(log_sum_exp); });
}

void ProjectionGradient(Context& context, const ProjectionPart& part, const float* x,
                        std::span<const int32_t> targets, double scale, const float* log_sum_exp,
                        float* dweight) {
  ProjectionGradient(context, part, x, targets, LossChunks(), scale, log_sum_exp, dweight);
}

void LogitSumsOfPart(Context& context, const ProjectionPart& part, const float* x,
                     std::span<const int32_t> targets, LogitSums* sums) {
  LogitSumsOfPart(context, part, x, targets, LossChunks(), sums);
}

LossResult CrossEntropyOfSums(const LogitSums* sums, std::span<const int32_t> targets,
                              float* log_sum_exp) {
  LossResult result;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] < 0) continue;
    const float log_of_sum = LogSumExp(sums[i]);
    result.loss_sum += static_cast<double>(log_of_sum - sums[i].target_logit);
    ++result.num_trained;
    if (log_sum_exp != nullptr) log_sum_exp[i] = log_of_sum;
  }
  return result;
}

void InputGradientOfPart(Context& context, const ProjectionPart& part, const float* x,
                         std::span<const int32_t> targets, double scale, const float* log_sum_exp,
                         float* dx) {
  InputGradientOfPart(context, part, x, targets, LossChunks(), scale, log_sum_exp, dx);
}

LossResult CrossEntropyForward(Context& context, const Linear& head, const float* x,
                               std::span<const int32_t> targets) {
  return CrossEntropy(context, head, x, targets, LossChunks(), LossGradients());
}

LossResult CrossEntropyForwardBackward(Context& context, const Linear& head, const float* x,
                                       std::span<const int32_t> targets, double scale, float* dx,
                                       float* dweight) {
  FOREBAY_CHECK(dx != nullptr && dweight != nullptr);
  return CrossEntropy(context, head, x, targets, LossChunks(),
                      {.scale = scale, .dx = dx, .dweight = dweight});
}

LossResult CrossEntropyForwardBackwardInput(Context& context, const Linear& head, const float* x,
                                            std::span<const int32_t> targets, double scale,
                                            float* dx, float* log_sum_exp) {
  FOREBAY_CHECK(dx != nullptr && log_sum_exp != nullptr);
  return CrossEntropy(context, head, x, targets, LossChunks(),
                      {.scale = scale, .dx = dx, .log_sum_exp = log_sum_exp});
}

}  // namespace forebay::cpu
