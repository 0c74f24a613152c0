// The wrappers of PTX against plain loops: on a GPU that shows whether the layouts of fragments are
// the hardware's.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>
#include <vector>

#include "forebay/tests/device/ptx_kernels.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

class PtxTest : public testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&num_devices);
    if (error != cudaSuccess) GTEST_SKIP() << "there is no GPU: " << cudaGetErrorString(error);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    for (void* const memory : memory_) EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  template <typename T>
  T* ToDevice(const std::vector<T>& values) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, values.size() * sizeof(T)), cudaSuccess);
    memory_.push_back(memory);
    EXPECT_EQ(cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(T),
                              cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return static_cast<T*>(memory);
  }
  template <typename T>
  std::vector<T> FromDevice(const T* memory, size_t num_elems) {
    std::vector<T> values(num_elems);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), memory, num_elems * sizeof(T), cudaMemcpyDeviceToHost,
                              stream_),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return values;
  }
  // Small whole numbers, whose sums are exact in any order.
  template <typename T = __nv_bfloat16>
  static std::vector<T> Numbers(size_t num_elems, int factor) {
    std::vector<T> numbers;
    for (size_t i = 0; i < num_elems; ++i) {
      const auto number = static_cast<float>(static_cast<int>(i) * factor % 13 - 6);
      if constexpr (std::is_same_v<T, __half>) {
        numbers.push_back(__float2half_rn(number));
      } else {
        numbers.push_back(__float2bfloat16_rn(number));
      }
    }
    return numbers;
  }
  static float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
  static float ToFloat(__half value) { return __half2float(value); }
  static unsigned BitsOf(__nv_bfloat16 value) { return static_cast<__nv_bfloat16_raw>(value).x; }
  template <typename T>
  void ExpectProduct() {
    const auto a = Numbers<T>(16 * 16, 5);
    const auto b = Numbers<T>(16 * 8, 7);
    std::vector<float> c(16 * 8);
    for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<float>(i);
    float* const on_device = ToDevice(c);
    ASSERT_EQ(ptx_kernels::Multiply(on_device, ToDevice(a), ToDevice(b), stream_), cudaSuccess);
    const std::vector<float> found = FromDevice(on_device, c.size());
    for (size_t row = 0; row < 16; ++row) {
      for (size_t column = 0; column < 8; ++column) {
        float expected = c[row * 8 + column];
        for (size_t k = 0; k < 16; ++k) {
          expected += ToFloat(a[row * 16 + k]) * ToFloat(b[k * 8 + column]);
        }
        EXPECT_EQ(found[row * 8 + column], expected) << row << ", " << column;
      }
    }
  }

  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
};

TEST_F(PtxTest, MultiplyIsThatOfMatrices) {
  ExpectProduct<__nv_bfloat16>();
  ExpectProduct<__half>();
}

TEST_F(PtxTest, LoadGivesEachLaneItsElements) {
  const auto from = Numbers(32 * 8, 3);
  for (const bool transposed : {false, true}) {
    unsigned* const to = ToDevice(std::vector<unsigned>(32 * 4));
    ASSERT_EQ(ptx_kernels::Load(to, ToDevice(from), transposed, stream_), cudaSuccess);
    const std::vector<unsigned> found = FromDevice(to, 32 * 4);
    for (size_t lane = 0; lane < 32; ++lane) {
      for (size_t matrix = 0; matrix < 4; ++matrix) {
        const auto element = [&](size_t row, size_t column) {
          if (transposed) std::swap(row, column);
          return BitsOf(from[(matrix * 8 + row) * 8 + column]);
        };
        const size_t row = lane / 4;
        const size_t column = 2 * (lane % 4);
        EXPECT_EQ(found[lane * 4 + matrix], element(row, column) | element(row, column + 1) << 16)
            << lane << ", " << matrix;
      }
    }
  }
}

TEST_F(PtxTest, PackRoundsToEven) {
  std::vector<float> values(64, 1.0f);
  values[0] = 1.00390625f;  // half way between 1 and the next: to 1
  values[1] = 1.01171875f;  // half way to the one behind that
  values[3] = -0.0f;
  unsigned* const to = ToDevice(std::vector<unsigned>(32));
  ASSERT_EQ(ptx_kernels::Pack(to, ToDevice(values), /*fp16=*/false, stream_), cudaSuccess);
  const std::vector<unsigned> found = FromDevice(to, 32);
  EXPECT_EQ(found[0], 0x3f823f80u);
  EXPECT_EQ(found[1], 0x80003f80u);
}

TEST_F(PtxTest, PackRoundsFp16ToEven) {
  std::vector<float> values(64, 1.0f);
  values[0] = 1.00048828125f;  // half way between 1 and the next: to 1
  values[1] = 1.00146484375f;  // half way to the one behind that
  values[2] = 65520.0f;        // half way between the largest and what is beyond
  values[3] = -0x1p-24f;       // the least that is not zero
  unsigned* const to = ToDevice(std::vector<unsigned>(32));
  ASSERT_EQ(ptx_kernels::Pack(to, ToDevice(values), /*fp16=*/true, stream_), cudaSuccess);
  const std::vector<unsigned> found = FromDevice(to, 32);
  EXPECT_EQ(found[0], 0x3c023c00u);
  EXPECT_EQ(found[1], 0x80017c00u);
}

}  // namespace
}  // namespace forebay
