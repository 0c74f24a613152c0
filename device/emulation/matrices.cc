// Operations of a warp on matrices (ptx.h).
#include <cuda_fp16.h>

#include <bit>
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

template <float (*kElementOf)(uint32_t pair, int half)>
void CompleteMultiply(void* const* of_lanes, uint32_t /*mask*/) {
  float a[16][16];
  float b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto& from = *static_cast<const Fragments*>(of_lanes[lane]);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      for (int q = 0; q < 4; ++q)
        a[g + 8 * (q % 2)][2 * t + 8 * (q / 2) + i] = kElementOf(from.a[q], i);
      for (int q = 0; q < 2; ++q) b[2 * t + 8 * q + i][g] = kElementOf(from.b[q], i);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    auto& to = *static_cast<Fragments*>(of_lanes[lane]);
    for (int q = 0; q < 4; ++q) {
      const int row = lane / 4 + 8 * (q / 2);
      const int column = 2 * (lane % 4) + q % 2;
      double sum = to.d[q];
      for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * b[k][column];
      to.d[q] = static_cast<float>(sum);
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

void LoadMatrices(uint32_t (&to)[4], const void* row, bool transposed) {
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
