// Operations of a warp on matrices (ptx.h).
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "forebay/device/emulation/block.h"
#include "forebay/device/emulation/hardware_accesses.h"

namespace forebay::emulation {
namespace {

constexpr uint32_t kWholeWarp = 0xffffffffu;

struct MatrixRow {
  uint16_t row[8];
  uint32_t received[4];
};

template <bool kTransposed>
void CompleteLoad(void* const* of_lanes, uint32_t /*mask*/) {
  const auto of = [&](int lane) { return static_cast<MatrixRow*>(of_lanes[lane]); };
  for (int lane = 0; lane < kLanes; ++lane) {
    const int row = lane / 4;
    const int column = lane % 4 * 2;
    for (int matrix = 0; matrix < 4; ++matrix) {
      const int first = matrix * 8;
      const uint16_t low =
          kTransposed ? of(first + column)->row[row] : of(first + row)->row[column];
      const uint16_t high =
          kTransposed ? of(first + column + 1)->row[row] : of(first + row)->row[column + 1];
      of(lane)->received[matrix] = low | static_cast<uint32_t>(high) << 16;
    }
  }
}

struct Fragments {
  uint32_t a[4];
  uint32_t b[2];
  float d[4];
};

float Bf16Of(uint32_t pair, int half) {
  return std::bit_cast<float>((pair >> (16 * half) & 0xffffu) << 16);
}
float Fp16Of(uint32_t pair, int half) {
  return __half2float(__half_raw{static_cast<uint16_t>(pair >> (16 * half))});
}

// An exact sum, rounded once to the nearest float.
float AddExactly(float to, const float (&a)[16], const float (&b)[16]) {
  double sum = to;
  for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[k]) * b[k];
  return static_cast<float>(sum);
}
// As tensor cores add: `at_once` products and what there is already are cut towards zero to the 24
// bits below the largest one's exponent, and so is their sum. No card cuts off more (Fasi et al.,
// "Numerical behavior of NVIDIA tensor cores", 2021, of V100 and A100, which keep up to 2 bits
// more).
float AddTruncating(float to, const float (&a)[16], const float (&b)[16], int at_once) {
  for (int first = 0; first < 16; first += at_once) {
    double terms[17] = {to};
    double largest = std::abs(to);
    for (int i = 0; i < at_once; ++i) {
      terms[i + 1] = static_cast<double>(a[first + i]) * b[first + i];
      largest = std::max(largest, std::abs(terms[i + 1]));
    }
    const int lowest_bit = largest == 0 ? 0 : std::ilogb(largest) - 23;
    double sum = 0;
    for (const double term : terms) sum += std::trunc(std::ldexp(term, -lowest_bit));
    const int cut = sum == 0 ? 0 : std::max(0, std::ilogb(sum) - 23);
    to = static_cast<float>(std::ldexp(std::trunc(std::ldexp(sum, -cut)), cut + lowest_bit));
  }
  return to;
}
bool AreFinite(float to, const float (&a)[16], const float (&b)[16]) {
  double all = to;
  for (int k = 0; k < 16; ++k) all += std::abs(a[k]) + std::abs(b[k]);
  return std::isfinite(all);
}
float AddProducts(float to, const float (&a)[16], const float (&b)[16]) {
  const int at_once = TheOptions().truncated_products;
  const bool truncates = at_once > 0 && AreFinite(to, a, b);
  const float sum = truncates ? AddTruncating(to, a, b, at_once) : AddExactly(to, a, b);
  return sum == sum ? sum : NanOf(sum);
}

template <float (*kElementOf)(uint32_t pair, int half)>
void CompleteMultiply(void* const* of_lanes, uint32_t /*mask*/) {
  float a[16][16];
  float b[8][16];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& from = *static_cast<const Fragments*>(of_lanes[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      for (int q = 0; q < 4; ++q)
        a[g + 8 * (q % 2)][2 * t + 8 * (q / 2) + i] = kElementOf(from.a[q], i);
      for (int q = 0; q < 2; ++q) b[g][2 * t + 8 * q + i] = kElementOf(from.b[q], i);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    auto& to = *static_cast<Fragments*>(of_lanes[lane]);
    for (int q = 0; q < 4; ++q) {
      const int row = lane / 4 + 8 * (q / 2);
      const int column = 2 * (lane % 4) + q % 2;
      to.d[q] = AddProducts(to.d[q], a[row], b[column]);
    }
  }
}

void Multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Complete complete) {
  Fragments fragments = {};
  std::memcpy(fragments.a, a, sizeof(a));
  std::memcpy(fragments.b, b, sizeof(b));
  std::memcpy(fragments.d, d, sizeof(d));
  Meet(kWholeWarp, "mma.m16n8k16", &fragments, complete, /*orders_memory=*/false,
       {__FILE__, __LINE__});
  std::memcpy(d, fragments.d, sizeof(d));
}

}  // namespace

float NanOf(float of_host) {
  return TheOptions().has_gpu_nans ? std::bit_cast<float>(0x7fffffffu) : of_host;
}

void LoadMatrices(uint32_t (&to)[4], const void* row, bool transposed) {
  DieUnlessAligned(transposed ? "ldmatrix.trans" : "ldmatrix", row, sizeof(MatrixRow::row));
  MatrixRow matrix_row = {};
  CopyBytes(matrix_row.row, row, sizeof(matrix_row.row));
  Meet(kWholeWarp, transposed ? "ldmatrix.trans" : "ldmatrix", &matrix_row,
       transposed ? &CompleteLoad<true> : &CompleteLoad<false>, /*orders_memory=*/false,
       {__FILE__, __LINE__});
  std::memcpy(to, matrix_row.received, sizeof(to));
}

void MultiplyBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Multiply(d, a, b, &CompleteMultiply<&Bf16Of>);
}

void MultiplyFp16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Multiply(d, a, b, &CompleteMultiply<&Fp16Of>);
}

}  // namespace forebay::emulation
