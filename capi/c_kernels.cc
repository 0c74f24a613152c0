// The update kernels alone, over arrays of the caller's.
#include <algorithm>
#include <limits>
#include <mutex>
#include <span>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/errors.h"
#include "forebay/base/process/cores.h"
#include "forebay/base/process/parallel.h"
#include "forebay/capi/c.h"
#include "forebay/capi/c_optimizer.h"
#include "forebay/capi/c_status.h"
#include "forebay/optimizer/kernels/gradient_norm.h"
#include "forebay/optimizer/kernels/tile_update.h"

struct forebay_kernels : forebay::capi::Handle {
  explicit forebay_kernels(int num_threads) : pool(num_threads, "kernels") {}
  std::mutex mutex;
  forebay::ThreadPool pool;
};

namespace forebay::capi {
namespace {

// A task's share of an array.
constexpr int64_t kTaskElems = int64_t{1} << 16;

struct CheckedRun {
  OptimizerConfig config;
  UpdateScalars scalars;
  TileRun run;
  bool round_weights = false;
  DType moment_dtype = DType::kF32;
};

absl::Status CheckArrays(const OptimizerConfig& config, const TileRun& run, bool round_weights) {
  if (run.num_elems == 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(CheckPointer(run.weight, "weights"));
  FOREBAY_RETURN_IF_ERROR(CheckPointer(run.gradient, "gradient"));
  if (run.weights == WeightFormat::kSplitBf16 && !round_weights) {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(run.remainder, "remainder (of bf16 weights)"));
  }
  if (run.weights == WeightFormat::kFp16 && !round_weights) {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(run.master, "master (of fp16 weights)"));
  }
  if (HasFirstMoment(config)) FOREBAY_RETURN_IF_ERROR(CheckPointer(run.m, "m"));
  if (HasSecondMoment(config)) FOREBAY_RETURN_IF_ERROR(CheckPointer(run.v, "v"));
  return absl::OkStatus();
}

WeightFormat FormatOf(DType dtype) {
  return dtype == DType::kF32    ? WeightFormat::kFp32
         : dtype == DType::kBF16 ? WeightFormat::kSplitBf16
                                 : WeightFormat::kFp16;
}

absl::StatusOr<CheckedRun> Check(const forebay_kernel_run* given) {
  FOREBAY_ASSIGN_OR_RETURN(const forebay_kernel_run run, OptionsOf(given));
  CheckedRun result;
  FOREBAY_ASSIGN_OR_RETURN(result.config.kind, OptimizerOf(run.optimizer));
  result.config.nesterov = run.nesterov != 0;
  result.config.momentum = run.group.beta1;
  FOREBAY_ASSIGN_OR_RETURN(const ParameterGroup group, GroupOf(run.group, result.config.kind));
  FOREBAY_RETURN_IF_ERROR(CheckSettings(result.config, {&group, 1}));
  result.scalars.step = run.step;
  result.scalars.lr = 1;
  result.scalars.gradient_scale = run.gradient_scale == 0 ? 1 : run.gradient_scale;
  result.scalars = ScalarsOf(result.scalars, group);
  if (run.step < 1 || run.num_elems < 0) {
    return UsageError(
        fmt::format("step is {} and num_elems {}: at least 1 and 0", run.step, run.num_elems));
  }
  FOREBAY_ASSIGN_OR_RETURN(const DType weights, DTypeOf(run.weight_dtype, "weight_dtype"));
  result.run.num_elems = run.num_elems;
  result.run.weights = FormatOf(weights);
  result.run.weight = run.weights;
  result.run.remainder = static_cast<int16_t*>(run.remainder);
  result.run.master = run.master;
  result.run.m = HasFirstMoment(result.config) ? run.m : nullptr;
  result.run.v = HasSecondMoment(result.config) ? run.v : nullptr;
  result.run.gradient = run.gradient;
  FOREBAY_ASSIGN_OR_RETURN(result.run.gradient_dtype,
                           DTypeOf(run.gradient_dtype, "gradient_dtype"));
  result.run.lr_scale = group.lr_scale;
  result.run.weight_decay = group.weight_decay;
  result.round_weights = run.round_weights != 0;
  FOREBAY_ASSIGN_OR_RETURN(result.moment_dtype, DTypeOf(run.moment_dtype, "moment_dtype"));
  if (result.moment_dtype != DType::kF32 && weights != DType::kF32 && !result.round_weights) {
    return UsageError("moments of 16 bits go with weights that have no masters: set round_weights");
  }
  FOREBAY_RETURN_IF_ERROR(CheckArrays(result.config, result.run, result.round_weights));
  return result;
}

// Memory that a piece of an array needs beside itself where weights have no masters, or moments are
// of 16 bits. Small enough for a core's nearest cache.
constexpr int64_t kPieceElems = 1024;
struct Scratch {
  float master[kPieceElems];
  int16_t remainder[kPieceElems];
  float m[kPieceElems];
  float v[kPieceElems];
};

void ToFloats(DType dtype, const void* from, int64_t num_elems, float* to) {
  const auto* const elems = static_cast<const uint16_t*>(from);
  if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < num_elems; ++i) to[i] = Bf16ToFloat(elems[i]);
  } else {
    for (int64_t i = 0; i < num_elems; ++i) to[i] = Fp16ToFloat(elems[i]);
  }
}

void RoundFloats(DType dtype, const float* from, int64_t num_elems, void* to) {
  auto* const elems = static_cast<uint16_t*>(to);
  if (dtype == DType::kBF16) {
    for (int64_t i = 0; i < num_elems; ++i) elems[i] = FloatToBf16(from[i]);
  } else {
    for (int64_t i = 0; i < num_elems; ++i) elems[i] = FloatToFp16(from[i]);
  }
}

// Weights that were split round ties away from zero.
void RoundTiesToEven(const int16_t* remainder, int64_t num_elems, Bf16* weights) {
  for (int64_t i = 0; i < num_elems; ++i) {
    const bool was_tie = remainder[i] == std::numeric_limits<int16_t>::min();
    weights[i] = static_cast<Bf16>(weights[i] - (was_tie ? weights[i] & 1 : 0));
  }
}

void* Advance(void* elems, int64_t num_bytes) {
  return elems == nullptr ? nullptr : static_cast<std::byte*>(elems) + num_bytes;
}

void UpdateRounded(const CheckedRun& run, int64_t first, int64_t num_elems, Scratch& scratch) {
  TileRun piece = run.run;
  piece.num_elems = num_elems;
  const bool is_fp32 = run.run.weights == WeightFormat::kFp32;
  piece.weight = Advance(run.run.weight, first * (is_fp32 ? 4 : 2));
  piece.gradient =
      static_cast<const std::byte*>(run.run.gradient) + first * SizeOf(run.run.gradient_dtype);
  if (run.run.weights == WeightFormat::kFp16) {
    ToFloats(DType::kF16, piece.weight, num_elems, scratch.master);
    piece.master = scratch.master;
  } else if (run.run.weights == WeightFormat::kSplitBf16) {
    std::fill_n(scratch.remainder, num_elems, int16_t{0});
    piece.remainder = scratch.remainder;
  }
  const int64_t moment_bytes = SizeOf(run.moment_dtype);
  void* const m = Advance(run.run.m, first * moment_bytes);
  void* const v = Advance(run.run.v, first * moment_bytes);
  const bool are_fp32 = run.moment_dtype == DType::kF32;
  piece.m = are_fp32 || m == nullptr ? m : scratch.m;
  piece.v = are_fp32 || v == nullptr ? v : scratch.v;
  if (piece.m == scratch.m) ToFloats(run.moment_dtype, m, num_elems, scratch.m);
  if (piece.v == scratch.v) ToFloats(run.moment_dtype, v, num_elems, scratch.v);
  UpdateRun(run.config, run.scalars, piece);
  if (piece.m == scratch.m) RoundFloats(run.moment_dtype, scratch.m, num_elems, m);
  if (piece.v == scratch.v) RoundFloats(run.moment_dtype, scratch.v, num_elems, v);
  if (piece.remainder != nullptr) {
    RoundTiesToEven(piece.remainder, num_elems, static_cast<Bf16*>(piece.weight));
  }
}

void UpdatePart(const CheckedRun& run, int64_t first, int64_t num_elems) {
  if (!run.round_weights && run.moment_dtype == DType::kF32) {
    UpdateRun(run.config, run.scalars, PartOf(run.run, first, num_elems));
    return;
  }
  Scratch scratch;
  for (int64_t done = 0; done < num_elems; done += kPieceElems) {
    UpdateRounded(run, first + done, std::min(kPieceElems, num_elems - done), scratch);
  }
}

int64_t NumTasks(int64_t num_elems) {
  return (num_elems + kTaskElems - 1) / kTaskElems;
}

// Calls task(first, end) for all parts of an array.
template <typename Task>
void ForParts(forebay_kernels* kernels, int64_t num_elems, const Task& task) {
  const std::lock_guard lock(kernels->mutex);
  kernels->pool.ParallelFor(NumTasks(num_elems), [&](int64_t i) {
    task(i * kTaskElems, std::min(num_elems, (i + 1) * kTaskElems));
  });
}

absl::Status Update(forebay_kernels* kernels, const forebay_kernel_run* runs, size_t num_runs) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(kernels, "kernels"));
  if (num_runs == 0) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(CheckPointer(runs, "runs"));
  std::vector<CheckedRun> checked;
  std::vector<int64_t> first_task = {0};
  for (size_t i = 0; i < num_runs; ++i) {
    // Their distance is the size that the caller knows.
    const auto* bytes = reinterpret_cast<const std::byte*>(runs) + i * runs->struct_size;
    FOREBAY_ASSIGN_OR_RETURN(checked.emplace_back(),
                             Check(reinterpret_cast<const forebay_kernel_run*>(bytes)));  // NOLINT
    first_task.push_back(first_task.back() + NumTasks(checked.back().run.num_elems));
  }
  const std::lock_guard lock(kernels->mutex);
  kernels->pool.ParallelFor(first_task.back(), [&](int64_t task) {
    const auto after = std::ranges::upper_bound(first_task, task);
    const auto i = static_cast<size_t>(after - first_task.begin()) - 1;
    const CheckedRun& run = checked[i];
    const int64_t first = (task - first_task[i]) * kTaskElems;
    UpdatePart(run, first, std::min(kTaskElems, run.run.num_elems - first));
  });
  return absl::OkStatus();
}

absl::Status CheckCount(int64_t num_elems) {
  if (num_elems >= 0) return absl::OkStatus();
  return UsageError(fmt::format("num_elems is {}, below 0", num_elems));
}

absl::Status Split(forebay_kernels* kernels, const float* master, int64_t num_elems, void* weights,
                   void* remainder) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(kernels, "kernels"));
  for (const void* pointer : {static_cast<const void*>(master), static_cast<const void*>(weights),
                              static_cast<const void*>(remainder)}) {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(pointer, "master, weights or remainder"));
  }
  FOREBAY_RETURN_IF_ERROR(CheckCount(num_elems));
  ForParts(kernels, num_elems, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const SplitMaster split = forebay::Split(master[i]);
      static_cast<Bf16*>(weights)[i] = split.w16;
      static_cast<int16_t*>(remainder)[i] = split.r16;
    }
  });
  return absl::OkStatus();
}

absl::Status JoinAll(forebay_kernels* kernels, const void* weights, const void* remainder,
                     int64_t num_elems, float* master) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(kernels, "kernels"));
  for (const void* pointer : {static_cast<const void*>(master), weights, remainder}) {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(pointer, "master, weights or remainder"));
  }
  FOREBAY_RETURN_IF_ERROR(CheckCount(num_elems));
  ForParts(kernels, num_elems, [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      master[i] =
          Join(static_cast<const Bf16*>(weights)[i], static_cast<const int16_t*>(remainder)[i]);
    }
  });
  return absl::OkStatus();
}

// Sixteen sums side by side, so that the compiler has vectors to work with.
template <typename Elem, typename ToFloat>
double SumOf(const Elem* elems, int64_t num_elems, const ToFloat& to_float) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  for (int64_t i = 0; i < num_elems; i += kLanes) {
    const int64_t num_lanes = std::min(kLanes, num_elems - i);
    for (int64_t lane = 0; lane < num_lanes; ++lane) {
      const double value = to_float(elems[i + lane]);
      lanes[lane] += value * value;
    }
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double SumOf(DType dtype, const void* elems, int64_t first, int64_t num_elems) {
  switch (dtype) {
    case DType::kF32:
      return SumOf(static_cast<const float*>(elems) + first, num_elems,
                   [](float value) { return value; });
    case DType::kBF16:
      return SumOf(static_cast<const Bf16*>(elems) + first, num_elems, Bf16ToFloat);
    case DType::kF16:
      return SumOf(static_cast<const Fp16*>(elems) + first, num_elems, Fp16ToFloat);
  }
  return 0;
}

absl::Status SumOfSquares(forebay_kernels* kernels, int32_t dtype, const void* gradient,
                          int64_t num_elems, double* sum) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(kernels, "kernels"));
  FOREBAY_RETURN_IF_ERROR(CheckPointer(sum, "sum"));
  FOREBAY_RETURN_IF_ERROR(CheckCount(num_elems));
  if (num_elems > 0) FOREBAY_RETURN_IF_ERROR(CheckPointer(gradient, "gradient"));
  FOREBAY_ASSIGN_OR_RETURN(const DType type, DTypeOf(dtype, "dtype"));
  std::vector<double> parts(static_cast<size_t>(NumTasks(num_elems)));
  ForParts(kernels, num_elems, [&](int64_t first, int64_t end) {
    parts[static_cast<size_t>(first / kTaskElems)] = SumOf(type, gradient, first, end - first);
  });
  *sum = 0;
  for (const double part : parts) *sum += part;
  return absl::OkStatus();
}

}  // namespace
}  // namespace forebay::capi

using forebay::capi::Run;

extern "C" {

int32_t forebay_kernels_create(int32_t num_threads, forebay_kernels** kernels, char** message) {
  return Run(message, [&] {
    FOREBAY_RETURN_IF_ERROR(forebay::capi::CheckPointer(kernels, "kernels"));
    if (num_threads < 0 || num_threads > 4096) {
      return forebay::UsageError(
          fmt::format("num_threads is {}, and has to be from 0 to 4096", num_threads));
    }
    *kernels = new forebay_kernels(num_threads == 0 ? forebay::DefaultThreads() : num_threads);
    return absl::OkStatus();
  });
}

void forebay_kernels_destroy(forebay_kernels* kernels) {
  forebay::capi::Destroy(kernels);
}

int32_t forebay_kernels_update(forebay_kernels* kernels, const forebay_kernel_run* runs,
                               size_t num_runs, char** message) {
  return Run(message, [&] { return forebay::capi::Update(kernels, runs, num_runs); });
}

int32_t forebay_kernels_split(forebay_kernels* kernels, const float* master, int64_t num_elems,
                              void* weights, void* remainder, char** message) {
  return Run(message,
             [&] { return forebay::capi::Split(kernels, master, num_elems, weights, remainder); });
}

int32_t forebay_kernels_join(forebay_kernels* kernels, const void* weights, const void* remainder,
                             int64_t num_elems, float* master, char** message) {
  return Run(message, [&] {
    return forebay::capi::JoinAll(kernels, weights, remainder, num_elems, master);
  });
}

int32_t forebay_kernels_sum_of_squares(forebay_kernels* kernels, int32_t dtype,
                                       const void* gradient, int64_t num_elems, double* sum,
                                       char** message) {
  return Run(message,
             [&] { return forebay::capi::SumOfSquares(kernels, dtype, gradient, num_elems, sum); });
}

}  // extern "C"
