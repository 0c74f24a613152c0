// RMSNorm and LayerNorm: the rows' side. With n = (x - mean) * inverse, where RMSNorm has no mean,
//   y = n * weight + bias
//   dx = (g - mean(g) - n * mean(g * n)) * inverse,  g = dy * weight
// and RMSNorm without mean(g). Gradients of the weights: norm_weights.cu.
#include "forebay/base/errors.h"
#include "forebay/model/cuda/launch.h"
#include "forebay/model/cuda/norm.h"
#include "forebay/model/cuda/row_sums.h"

namespace forebay::cuda {
namespace {

template <typename T>
struct Forward {
  const T* x;
  const T* weight;
  const T* bias;
  float eps;
  int64_t rows, width;
  T* y;
  float* mean;
  float* inverse;
};

template <typename T, int kCount, int kRowThreads, bool kCentred>
FOREBAY_DEVICE float SumOfDeviations(const T* x, int64_t width, float mean, int power) {
  float sum = 0;
  for (int64_t i = PlaceInRow<kRowThreads>() * kCount; i < width; i += kRowThreads * kCount) {
    float values[kCount];
    Load(x + i, values);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float deviation = kCentred ? values[j] - mean : values[j];
      sum += power == 1 ? deviation : deviation * deviation;
    }
  }
  return SumOfRow<kRowThreads>(sum);
}

template <typename T, int kCount, int kRowThreads, bool kCentred>
__global__ void NormKernel(Forward<T> p) {
  const int64_t row = RowOfThread<kRowThreads>();
  if (row >= p.rows) return;
  const int place = PlaceInRow<kRowThreads>();
  const T* const x = p.x + row * p.width;
  const float width = static_cast<float>(p.width);
  float mean = 0;
  if constexpr (kCentred) {
    mean = SumOfDeviations<T, kCount, kRowThreads, false>(x, p.width, 0, 1) / width;
  }
  const float squares = SumOfDeviations<T, kCount, kRowThreads, kCentred>(x, p.width, mean, 2);
  const float inverse = 1.0f / sqrtf(squares / width + p.eps);
  if (place == 0) {
    p.inverse[row] = inverse;
    if constexpr (kCentred) p.mean[row] = mean;
  }
  for (int64_t i = place * kCount; i < p.width; i += kRowThreads * kCount) {
    float values[kCount];
    float weight[kCount];
    float bias[kCount] = {};
    Load(x + i, values);
    Load(p.weight + i, weight);
    if constexpr (kCentred) Load(p.bias + i, bias);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      values[j] = (values[j] - mean) * inverse * weight[j] + bias[j];
    }
    Store(values, p.y + row * p.width + i);
  }
}

template <typename T>
struct Backward {
  const T* x;
  const T* weight;
  const float* mean;
  const float* inverse;
  const T* dy;
  int64_t rows, width;
  T* dx;
  bool adds;
};

template <typename T, int kCount, int kRowThreads, bool kCentred>
__global__ void NormGradientKernel(Backward<T> p) {
  const int64_t row = RowOfThread<kRowThreads>();
  if (row >= p.rows) return;
  const int place = PlaceInRow<kRowThreads>();
  const int64_t begin = row * p.width;
  const float mean = kCentred ? p.mean[row] : 0.0f;
  const float inverse = p.inverse[row];
  float sum_g = 0;
  float sum_gn = 0;
  float normal[kCount];
  float g[kCount];
  const auto load = [&](int64_t i) {
    float weight[kCount];
    Load(p.x + begin + i, normal);
    Load(p.dy + begin + i, g);
    Load(p.weight + i, weight);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      normal[j] = (normal[j] - mean) * inverse;
      g[j] *= weight[j];
    }
  };
  for (int64_t i = place * kCount; i < p.width; i += kRowThreads * kCount) {
    load(i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      sum_g += g[j];
      sum_gn += g[j] * normal[j];
    }
  }
  const float width = static_cast<float>(p.width);
  const float mean_g = kCentred ? SumOfRow<kRowThreads>(sum_g) / width : 0.0f;
  const float mean_gn = SumOfRow<kRowThreads>(sum_gn) / width;
  for (int64_t i = place * kCount; i < p.width; i += kRowThreads * kCount) {
    load(i);
#pragma unroll
    for (int j = 0; j < kCount; ++j) g[j] = (g[j] - mean_g - normal[j] * mean_gn) * inverse;
    StoreOrAdd(g, p.adds, p.dx + begin + i);
  }
}

// visit(kCount, kRowThreads) as integral constants.
template <typename T, typename Visit>
absl::Status VisitRows(int64_t width, bool wide, Visit&& visit) {
  return VisitWidth<T>(wide && width % kWide<T> == 0, [&](auto count) {
    return width < kNarrowRow ? visit(count, std::integral_constant<int, kWarpThreads>())
                              : visit(count, std::integral_constant<int, kRowBlockThreads>());
  });
}

template <bool kCentred>
absl::Status NormForward(Context& context, const char* operation, const void* x, const void* weight,
                         const void* bias, double eps, int64_t rows, int64_t width, void* y,
                         float* mean, float* inverse) {
  if (rows == 0) return absl::OkStatus();
  return VisitElement(context.dtype(), [&](auto element) {
    using T = decltype(element);
    const Forward<T> p = {.x = static_cast<const T*>(x),
                          .weight = static_cast<const T*>(weight),
                          .bias = static_cast<const T*>(bias),
                          .eps = static_cast<float>(eps),
                          .rows = rows,
                          .width = width,
                          .y = static_cast<T*>(y),
                          .mean = mean,
                          .inverse = inverse};
    return VisitRows<T>(width, AreAligned({x, weight, bias, y}), [&](auto count, auto threads) {
      constexpr int kCount = decltype(count)::value;
      constexpr int kRowThreads = decltype(threads)::value;
      return Launch(context, operation, &NormKernel<T, kCount, kRowThreads, kCentred>,
                    Grid(CeilDiv(rows, kRowBlockThreads / kRowThreads)), kRowBlockThreads, p);
    });
  });
}

template <bool kCentred>
absl::Status NormBackward(Context& context, const char* operation, const NormGradient& norm,
                          const void* weight, void* dx, bool adds) {
  if (norm.rows == 0) return absl::OkStatus();
  return VisitElement(context.dtype(), [&](auto element) {
    using T = decltype(element);
    const Backward<T> p = {.x = static_cast<const T*>(norm.x),
                           .weight = static_cast<const T*>(weight),
                           .mean = norm.mean,
                           .inverse = norm.inverse,
                           .dy = static_cast<const T*>(norm.dy),
                           .rows = norm.rows,
                           .width = norm.width,
                           .dx = static_cast<T*>(dx),
                           .adds = adds};
    const bool wide = AreAligned({norm.x, weight, norm.dy, dx});
    return VisitRows<T>(norm.width, wide, [&](auto count, auto threads) {
      constexpr int kCount = decltype(count)::value;
      constexpr int kRowThreads = decltype(threads)::value;
      return Launch(context, operation, &NormGradientKernel<T, kCount, kRowThreads, kCentred>,
                    Grid(CeilDiv(norm.rows, kRowBlockThreads / kRowThreads)), kRowBlockThreads, p);
    });
  });
}

}  // namespace

absl::Status RmsNormForward(Context& context, const void* x, const void* weight, double eps,
                            int64_t rows, int64_t width, void* y, float* inverse_rms) {
  return NormForward<false>(context, "RMSNorm", x, weight, nullptr, eps, rows, width, y, nullptr,
                            inverse_rms);
}
absl::Status LayerNormForward(Context& context, const void* x, const void* weight, const void* bias,
                              double eps, int64_t rows, int64_t width, void* y, float* mean,
                              float* inverse_std) {
  return NormForward<true>(context, "LayerNorm", x, weight, bias, eps, rows, width, y, mean,
                           inverse_std);
}

absl::Status RmsNormBackward(Context& context, const void* x, const void* weight,
                             const float* inverse_rms, const void* dy, int64_t rows, int64_t width,
                             void* dx, bool accumulate_dx, float* dweight) {
  const NormGradient norm = {
      .x = x, .mean = nullptr, .inverse = inverse_rms, .dy = dy, .rows = rows, .width = width};
  FOREBAY_RETURN_IF_ERROR(AddNormWeightGradients(context, norm, dweight, nullptr));
  return NormBackward<false>(context, "RMSNorm's gradient", norm, weight, dx, accumulate_dx);
}
absl::Status LayerNormBackward(Context& context, const void* x, const void* weight,
                               const float* mean, const float* inverse_std, const void* dy,
                               int64_t rows, int64_t width, void* dx, bool accumulate_dx,
                               float* dweight, float* dbias) {
  const NormGradient norm = {
      .x = x, .mean = mean, .inverse = inverse_std, .dy = dy, .rows = rows, .width = width};
  FOREBAY_RETURN_IF_ERROR(AddNormWeightGradients(context, norm, dweight, dbias));
  return NormBackward<true>(context, "LayerNorm's gradient", norm, weight, dx, accumulate_dx);
}

}  // namespace forebay::cuda
