// Attention on a GPU against float64 and the CPU's operator, on tensor cores and without them.
#include "forebay/model/cuda/attention.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/cuda/attention_scratch.h"
#include "forebay/tests/model/cpu/reference.h"
#include "gtest/gtest.h"

namespace forebay::cuda {
namespace {

using cpu::Doubles;
using cpu::Floats;
using cpu::RelativeError;
using cpu::ToDouble;

struct Case {
  std::string name;
  int64_t tokens, heads, kv_heads, head_dim, window;
  std::vector<Segment> segments;

  cpu::AttentionShape OnCpu() const {
    return {tokens, heads, kv_heads, head_dim, window, segments};
  }
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

struct Inputs {
  Floats q, k, v, d_o;
};
struct Outputs {
  Floats o, log_sum_exp, dq, dk, dv;
};

// As a GPU has them: rounded to the type, so that only what attention rounds is an error.
Floats Rounded(Floats values, DType dtype) {
  for (float& value : values) {
    if (dtype == DType::kBF16) value = Bf16ToFloat(FloatToBf16(value));
    if (dtype == DType::kF16) value = Fp16ToFloat(FloatToFp16(value));
  }
  return values;
}
Inputs RandomInputs(const Case& c, DType dtype) {
  const int64_t of_queries = c.tokens * c.heads * c.head_dim;
  const int64_t of_keys = c.tokens * c.kv_heads * c.head_dim;
  return {Rounded(cpu::RandomFloats(of_queries, 1), dtype),
          Rounded(cpu::RandomFloats(of_keys, 2), dtype),
          Rounded(cpu::RandomFloats(of_keys, 3), dtype),
          Rounded(cpu::RandomFloats(of_queries, 4), dtype)};
}

// One GPU with the context of one type.
class Gpu {
 public:
  // Matrices begin `first_elem` elements after an address that is aligned to all that is read.
  Gpu(Device* device, DType dtype, int64_t scratch_bytes, int64_t first_elem)
      : device_(device), dtype_(dtype), first_elem_(first_elem) {
    stream_ = *device->CreateStream();
    context_ = *Context::Create(device, stream_.get(), &budget_,
                                {.dtype = dtype, .scratch_bytes = scratch_bytes});
  }
  Context& context() { return *context_; }

  DeviceBuffer Bytes(const std::vector<std::byte>& bytes) {
    DeviceBuffer buffer = *device_->Allocate(static_cast<int64_t>(bytes.size()));
    FOREBAY_CHECK(stream_->CopyToDevice(buffer.address(), bytes).ok());
    FOREBAY_CHECK(stream_->Await().ok());
    return buffer;
  }
  template <typename T>
  DeviceBuffer ToDevice(const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    return Bytes({bytes.begin(), bytes.end()});
  }
  void* At(const DeviceBuffer& matrix) const {
    return matrix.As<std::byte>() + first_elem_ * SizeOf(dtype_);
  }
  DeviceBuffer Elements(Floats values) {
    values.insert(values.begin(), static_cast<size_t>(first_elem_), 0.0f);
    if (dtype_ == DType::kF32) return ToDevice(values);
    std::vector<uint16_t> bits;
    for (const float value : values) {
      bits.push_back(dtype_ == DType::kBF16 ? FloatToBf16(value) : FloatToFp16(value));
    }
    return ToDevice(bits);
  }
  // Memory of so many elements that are NaN: what an operator does not write shows.
  DeviceBuffer Unwritten(size_t num_elems, DType dtype) {
    num_elems += static_cast<size_t>(first_elem_);
    return Bytes(std::vector<std::byte>(num_elems * SizeOf(dtype), std::byte{0xff}));
  }
  Floats Floats32(const void* from, size_t num_elems) {
    Floats values(num_elems);
    FOREBAY_CHECK(stream_->CopyToHost(std::as_writable_bytes(std::span(values)), from).ok());
    FOREBAY_CHECK(stream_->Await().ok());
    return values;
  }
  Floats FromElements(const DeviceBuffer& from, size_t num_elems) {
    if (dtype_ == DType::kF32) return Floats32(At(from), num_elems);
    std::vector<uint16_t> bits(num_elems);
    FOREBAY_CHECK(stream_->CopyToHost(std::as_writable_bytes(std::span(bits)), At(from)).ok());
    FOREBAY_CHECK(stream_->Await().ok());
    Floats values;
    for (const uint16_t value : bits) {
      values.push_back(dtype_ == DType::kBF16 ? Bf16ToFloat(value) : Fp16ToFloat(value));
    }
    return values;
  }

 private:
  Device* const device_;
  const DType dtype_;
  const int64_t first_elem_;
  MemoryBudget budget_{0};
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Context> context_;
};

// segment_begin and segment_end of each token.
struct SegmentOfToken {
  std::vector<int32_t> begin, end;
  explicit SegmentOfToken(const Case& c)
      : begin(static_cast<size_t>(c.tokens)), end(static_cast<size_t>(c.tokens)) {
    for (const Segment& segment : c.segments) {
      for (int64_t i = segment.begin; i < segment.begin + segment.length; ++i) {
        begin[static_cast<size_t>(i)] = static_cast<int32_t>(segment.begin);
        end[static_cast<size_t>(i)] = static_cast<int32_t>(segment.begin + segment.length);
      }
    }
  }
};

// Forward and backward. Without `units`: on those that the operator chooses.
Outputs Attend(Device* device, const Case& c, std::optional<AttentionUnits> units, DType dtype,
               const Inputs& in, int64_t first_elem = 0) {
  Gpu gpu(device, dtype, AttentionScratchBytes(c.tokens, c.heads), first_elem);
  const SegmentOfToken segments(c);
  const DeviceBuffer begin = gpu.ToDevice(segments.begin), end = gpu.ToDevice(segments.end);
  const AttentionShape shape = {.tokens = c.tokens,
                                .heads = c.heads,
                                .kv_heads = c.kv_heads,
                                .head_dim = c.head_dim,
                                .window = c.window,
                                .segment_begin = begin.As<int32_t>(),
                                .segment_end = end.As<int32_t>()};
  const DeviceBuffer q = gpu.Elements(in.q), k = gpu.Elements(in.k), v = gpu.Elements(in.v);
  const DeviceBuffer d_o = gpu.Elements(in.d_o);
  const size_t of_queries = in.q.size(), of_keys = in.k.size();
  const auto num_rows = static_cast<size_t>(c.heads * c.tokens);
  const DeviceBuffer o = gpu.Unwritten(of_queries, dtype), dq = gpu.Unwritten(of_queries, dtype);
  const DeviceBuffer dk = gpu.Unwritten(of_keys, dtype), dv = gpu.Unwritten(of_keys, dtype);
  const DeviceBuffer log_sum_exp = gpu.Unwritten(num_rows, DType::kF32);
  const auto* const qa = gpu.At(q);
  const auto* const ka = gpu.At(k);
  const auto* const va = gpu.At(v);
  auto* const sums = log_sum_exp.As<float>();
  absl::Status status =
      units ? AttentionForwardOn(*units, gpu.context(), shape, qa, ka, va, gpu.At(o), sums)
            : AttentionForward(gpu.context(), shape, qa, ka, va, gpu.At(o), sums);
  EXPECT_TRUE(status.ok()) << status;
  status = units ? AttentionBackwardOn(*units, gpu.context(), shape, qa, ka, va, gpu.At(o), sums,
                                       gpu.At(d_o), gpu.At(dq), gpu.At(dk), gpu.At(dv))
                 : AttentionBackward(gpu.context(), shape, qa, ka, va, gpu.At(o), sums, gpu.At(d_o),
                                     gpu.At(dq), gpu.At(dk), gpu.At(dv));
  EXPECT_TRUE(status.ok()) << status;
  return {gpu.FromElements(o, of_queries), gpu.Floats32(log_sum_exp.address(), num_rows),
          gpu.FromElements(dq, of_queries), gpu.FromElements(dk, of_keys),
          gpu.FromElements(dv, of_keys)};
}

struct Variant {
  std::string name;
  AttentionUnits units;
  DType dtype;
  double o_tolerance, gradient_tolerance;  // against float64
};
const Variant kFp32 = {"Fp32", AttentionUnits::kSimt, DType::kF32, 1e-6, 3e-6};
const Variant kBf16 = {"Bf16", AttentionUnits::kTensorCores, DType::kBF16, 5e-3, 1e-2};
const Variant kFp16 = {"Fp16", AttentionUnits::kTensorCores, DType::kF16, 6e-4, 1.2e-3};
const Variant kBf16Simt = {"Bf16Simt", AttentionUnits::kSimt, DType::kBF16, 4e-3, 1e-2};
const Variant kFp16Simt = {"Fp16Simt", AttentionUnits::kSimt, DType::kF16, 6e-4, 1.2e-3};

class CudaAttention : public testing::TestWithParam<std::tuple<Case, Variant>> {
 protected:
  void SetUp() override {
    auto device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *std::move(device);
  }
  std::unique_ptr<Device> device_;
};

TEST_P(CudaAttention, EqualsFloat64) {
  const auto& [c, variant] = GetParam();
  const Inputs in = RandomInputs(c, variant.dtype);
  const Outputs found = Attend(device_.get(), c, variant.units, variant.dtype, in);
  const cpu::ReferenceAttention expected =
      cpu::AttendInDouble(c.OnCpu(), ToDouble(in.q), ToDouble(in.k), ToDouble(in.v));
  EXPECT_LT(RelativeError(found.o, expected.o, 1.0), variant.o_tolerance);
  EXPECT_LT(RelativeError(found.log_sum_exp, expected.log_sum_exp, 1.0), 1e-6);
  const cpu::ReferenceAttentionGradients gradients = cpu::AttendGradientsInDouble(
      c.OnCpu(), ToDouble(in.q), ToDouble(in.k), ToDouble(in.v), ToDouble(in.d_o));
  EXPECT_LT(RelativeError(found.dq, gradients.dq, 1.0), variant.gradient_tolerance);
  EXPECT_LT(RelativeError(found.dk, gradients.dk, 1.0), variant.gradient_tolerance);
  EXPECT_LT(RelativeError(found.dv, gradients.dv, 1.0), variant.gradient_tolerance);
}

const Case kManySegments = {"GroupedQueriesAndManySegments", 150, 6, 2, 64, 0,
                            {{0, 70}, {70, 9}, {79, 71}}};
const Case kPadding = {"PaddingBetweenAndAfter", 150, 2, 1, 80, 0, {{3, 20}, {30, 41}, {100, 34}}};
const Case kNotAligned = {"PairsThatAreNotAligned", 90, 2, 2, 70, 0, {{0, 33}, {33, 50}}};
const Case kWidest = {"WidestHeads", 70, 2, 1, 256, 0, {{0, 40}, {40, 27}}};

std::string NameOfTest(const testing::TestParamInfo<std::tuple<Case, Variant>>& test) {
  return std::get<0>(test.param).name + std::get<1>(test.param).name;
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaAttention,
    testing::Combine(
        testing::Values(Case{"OneToken", 1, 2, 1, 8, 0, {{0, 1}}},
                        Case{"NoSegment", 5, 2, 1, 8, 0, {}},
                        Case{"NarrowHeads", 70, 3, 1, 4, 0, {{0, 70}}}, kManySegments, kPadding,
                        kNotAligned, kWidest,
                        Case{"WindowWithinATile", 140, 2, 2, 16, 17, {{0, 90}, {90, 50}}},
                        Case{"WindowAcrossTiles", 200, 1, 1, 96, 100, {{0, 199}}},
                        Case{"WindowOfOneToken", 66, 2, 1, 8, 1, {{0, 66}}},
                        Case{"WideHeads", 130, 1, 1, 128, 0, {{0, 130}}}),
        testing::Values(kFp32, kBf16)),
    NameOfTest);
INSTANTIATE_TEST_SUITE_P(OtherTypes, CudaAttention,
                         testing::Combine(testing::Values(kPadding, kNotAligned, kWidest),
                                          testing::Values(kFp16, kBf16Simt, kFp16Simt)),
                         NameOfTest);

class CudaAttentionOperator : public CudaAttention {};

// Through the interface that a decoder calls, on the units that it chooses.
TEST_P(CudaAttentionOperator, IsThatOfTheCpu) {
  const auto& [c, variant] = GetParam();
  const Inputs in = RandomInputs(c, variant.dtype);
  const Outputs found = Attend(device_.get(), c, std::nullopt, variant.dtype, in);
  cpu::Context context(1, cpu::Precision::kFp32);
  const size_t num_rows = found.log_sum_exp.size();
  Outputs expected = {Floats(in.q.size()), Floats(num_rows), Floats(in.q.size()),
                      Floats(in.k.size()), Floats(in.k.size())};
  cpu::AttentionForward(context, c.OnCpu(), in.q.data(), in.k.data(), in.v.data(),
                        expected.o.data(), expected.log_sum_exp.data());
  cpu::AttentionBackward(context, c.OnCpu(), in.q.data(), in.k.data(), in.v.data(),
                         expected.o.data(), expected.log_sum_exp.data(), in.d_o.data(),
                         expected.dq.data(), expected.dk.data(), expected.dv.data());
  EXPECT_LT(RelativeError(found.o, ToDouble(expected.o), 1.0), variant.o_tolerance);
  EXPECT_LT(RelativeError(found.dq, ToDouble(expected.dq), 1.0), variant.gradient_tolerance);
  EXPECT_LT(RelativeError(found.dk, ToDouble(expected.dk), 1.0), variant.gradient_tolerance);
  EXPECT_LT(RelativeError(found.dv, ToDouble(expected.dv), 1.0), variant.gradient_tolerance);
  const auto width = static_cast<size_t>(c.heads * c.head_dim);
  for (const Floats* const rows : {&found.o, &found.dq}) {  // token 7 is padding
    for (size_t i = 7 * width; i < 8 * width; ++i) EXPECT_EQ((*rows)[i], 0.0f);
  }
  for (const Floats* const rows : {&found.dk, &found.dv}) {
    for (int64_t i = 0; i < c.head_dim; ++i) {
      EXPECT_EQ((*rows)[static_cast<size_t>(7 * c.head_dim + i)], 0.0f);
    }
  }
  EXPECT_EQ(found.log_sum_exp[7], 0.0f);
}

// Without atomics, and with tiles that the shape decides, one card gives one result.
TEST_P(CudaAttentionOperator, GivesTheSameBitsTwice) {
  const auto& [c, variant] = GetParam();
  const Inputs in = RandomInputs(c, variant.dtype);
  const Outputs a = Attend(device_.get(), c, std::nullopt, variant.dtype, in);
  const Outputs b = Attend(device_.get(), c, std::nullopt, variant.dtype, in);
  for (const auto part :
       {&Outputs::o, &Outputs::log_sum_exp, &Outputs::dq, &Outputs::dk, &Outputs::dv}) {
    EXPECT_TRUE(cpu::SameBits(a.*part, b.*part));
  }
}

// By their head_dim they could be read 16 bytes at a time.
TEST_P(CudaAttentionOperator, MatricesMayBeAlignedToOneElementAlone) {
  const auto& [c, variant] = GetParam();
  const Inputs in = RandomInputs(c, variant.dtype);
  const Outputs aligned = Attend(device_.get(), c, std::nullopt, variant.dtype, in);
  const Outputs found = Attend(device_.get(), c, std::nullopt, variant.dtype, in, 1);
  EXPECT_LT(RelativeError(found.o, ToDouble(aligned.o), 1.0), variant.o_tolerance);
  for (const auto part : {&Outputs::dq, &Outputs::dk, &Outputs::dv}) {
    EXPECT_LT(RelativeError(found.*part, ToDouble(aligned.*part), 1.0), variant.gradient_tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaAttentionOperator,
                         testing::Combine(testing::Values(Case{
                                              "PaddedRows", 83, 3, 1, 16, 40, {{0, 7}, {8, 70}}}),
                                          testing::Values(kFp32, kBf16, kFp16)),
                         [](const auto& test) { return std::get<1>(test.param).name; });

}  // namespace
}  // namespace forebay::cuda
