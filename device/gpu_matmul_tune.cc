// Which algorithm of the library a product is computed by.
#include <algorithm>
#include <array>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/device/gpu_matmul_plan.h"

namespace forebay {
namespace {

constexpr int kMostGuesses = 8;
// Another than the library's first guess has to be faster by as much, which is more than runs of
// one algorithm differ by: so runs of one card seldom choose differently.
constexpr double kWorthIt = 0.95;
constexpr int kNumRuns = 3;

// Of one operand, so that the next begins aligned to all that an algorithm may ask for.
int64_t MatrixBytes(const Rows& matrix, DType dtype) {
  constexpr int64_t kAlignment = 256;
  const int64_t bytes = matrix.rows * matrix.stride * SizeOf(dtype);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

int64_t GpuMatmul::OperandBytes(const MatmulProduct& product) {
  const MatmulShape& shape = product.shape;
  const int64_t bias =
      product.bias_alignment > 0 ? MatrixBytes({1, shape.n, shape.n}, shape.output) : 0;
  return MatrixBytes(RowsOfA(shape), shape.inputs) + MatrixBytes(RowsOfB(shape), shape.inputs) +
         MatrixBytes(RowsOfD(shape), shape.output) + bias;
}

absl::StatusOr<bool> GpuMatmul::Use(const MatmulProduct& product,
                                    const CublasLt::Algorithm& algorithm) {
  const std::lock_guard lock(mutex_);
  FOREBAY_CHECK(!plans_.contains(product));
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, Describe(product));
  CublasLt::Heuristic checked = {};
  const int status = library_->MatmulAlgoCheck(handle_, plan->desc, plan->first, plan->second,
                                               plan->result, plan->result, &algorithm, &checked);
  if (status != CublasLt::kSuccess ||
      checked.workspace_bytes > static_cast<size_t>(workspace_.size_bytes())) {
    return false;
  }
  plan->algorithm = algorithm;
  plans_.emplace(product, std::move(plan));
  return true;
}

absl::StatusOr<double> GpuMatmul::SecondsOf(const MatmulProduct& product, Plan& plan,
                                            const Operands& operands, Stream& stream) const {
  const auto run = [&] {
    return stream.Launch([&](void* native_stream) {
      return Enqueue(product.shape, plan, operands, stream, native_stream);
    });
  };
  std::array<std::unique_ptr<Event>, kNumRuns + 1> between;
  for (std::unique_ptr<Event>& event : between) {
    FOREBAY_ASSIGN_OR_RETURN(event, device_->CreateTimedEvent());
  }
  // All are enqueued before any is waited for: the GPU goes from one to the next without the host,
  // whose own delays would be measured with them.
  for (const std::unique_ptr<Event>& event : between) {
    FOREBAY_RETURN_IF_ERROR(run());
    FOREBAY_RETURN_IF_ERROR(stream.Record(*event));
  }
  std::array<double, kNumRuns> seconds = {};
  for (int i = 0; i < kNumRuns; ++i) {
    FOREBAY_ASSIGN_OR_RETURN(seconds[i], between[i + 1]->SecondsSince(*between[i]));
  }
  std::ranges::sort(seconds);
  return seconds[kNumRuns / 2];
}

absl::StatusOr<CublasLt::Algorithm> GpuMatmul::Tune(const MatmulProduct& product, std::byte* memory,
                                                    Stream& stream) {
  const std::lock_guard lock(mutex_);
  FOREBAY_CHECK(!plans_.contains(product));
  const MatmulShape& shape = product.shape;
  Operands operands = {.a = memory};
  memory += MatrixBytes(RowsOfA(shape), shape.inputs);
  operands.b = memory;
  memory += MatrixBytes(RowsOfB(shape), shape.inputs);
  operands.d = memory;
  memory += MatrixBytes(RowsOfD(shape), shape.output);
  if (product.bias_alignment > 0) operands.bias = memory;

  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, Describe(product));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<CublasLt::Heuristic> guesses,
                           Guess(product, *plan, kMostGuesses));
  CublasLt::Algorithm chosen = guesses.front().algorithm;
  double least_s = 0;  // of the chosen, and less where it is the first
  for (size_t i = 0; i < guesses.size() && guesses.size() > 1; ++i) {
    plan->algorithm = guesses[i].algorithm;
    const absl::StatusOr<double> seconds = SecondsOf(product, *plan, operands, stream);
    // A guess that does not run is none, as long as the GPU is there.
    if (i > 0 && !seconds.ok() && stream.Await().ok()) continue;
    FOREBAY_RETURN_IF_ERROR(seconds.status());
    if (i > 0 && *seconds >= least_s) continue;
    least_s = i == 0 ? kWorthIt * *seconds : *seconds;
    chosen = guesses[i].algorithm;
  }
  plan->algorithm = chosen;
  plans_.emplace(product, std::move(plan));
  return chosen;
}

}  // namespace forebay
