// SwiGLU, GELU, RoPE and the embedding on a GPU.
#include "gpu_operands.h"

namespace forebay::cuda {
namespace {

using ElementwiseOnGpu = GpuOps;

// Counts: under one access of 16 bytes, and whole blocks with some elements behind them.
TEST_P(ElementwiseOnGpu, SwiGluIsTheCpus) {
  for (const int64_t count : {int64_t{3}, int64_t{4101}}) {
    const Floats gate = Random(count, 1, 3.0), up = Random(count, 2), dout = Random(count, 3);
    Floats out(gate.size()), dgate(gate.size()), dup(gate.size());
    cpu::SwiGluForward(cpu_, gate.data(), up.data(), count, out.data());
    cpu::SwiGluBackward(cpu_, gate.data(), up.data(), dout.data(), count, dgate.data(), dup.data());
    const DeviceValues on_gate = OnDevice(gate), on_up = OnDevice(up), on_dout = OnDevice(dout);
    const DeviceValues on_out = Unset(count);
    ASSERT_TRUE(
        SwiGluForward(*context_, on_gate.address(), on_up.address(), count, on_out.address()).ok());
    ExpectClose(on_out, out);
    // In place.
    ASSERT_TRUE(SwiGluBackward(*context_, on_gate.address(), on_up.address(), on_dout.address(),
                               count, on_gate.address(), on_up.address())
                    .ok());
    ExpectClose(on_gate, dgate);
    ExpectClose(on_up, dup);
  }
}

TEST_P(ElementwiseOnGpu, GeluIsTheCpus) {
  constexpr int64_t kCount = 2053;
  const Floats x = Random(kCount, 1, 3.0), dout = Random(kCount, 2);
  Floats out(x.size()), dx(x.size());
  cpu::GeluTanhForward(cpu_, x.data(), kCount, out.data());
  cpu::GeluTanhBackward(cpu_, x.data(), dout.data(), kCount, dx.data());
  const DeviceValues on_x = OnDevice(x), on_dout = OnDevice(dout);
  const DeviceValues on_out = Unset(kCount), on_dx = Unset(kCount);
  ASSERT_TRUE(GeluTanhForward(*context_, on_x.address(), kCount, on_out.address()).ok());
  ASSERT_TRUE(
      GeluTanhBackward(*context_, on_x.address(), on_dout.address(), kCount, on_dx.address()).ok());
  ExpectClose(on_out, out);
  ExpectClose(on_dx, dx);
}

TEST_P(ElementwiseOnGpu, AddressesNeedNotBeAligned) {
  const Floats x = Random(100, 1);
  Floats out(x.size());
  cpu::GeluTanhForward(cpu_, x.data(), 100, out.data());
  const DeviceValues on_x = OnDevice(x, GetParam(), 1), on_out = Unset(100);
  ASSERT_TRUE(GeluTanhForward(*context_, on_x.address(), 100, on_out.address()).ok());
  ExpectClose(on_out, out);
}

TEST_P(ElementwiseOnGpu, LargeNumbersSaturateInsteadOfBecomingNaN) {
  const Floats x = {-200.0f, 200.0f, 0.0f}, up(3, 1.0f);
  const DeviceValues on_x = OnDevice(x), on_up = OnDevice(up), out = Unset(3);
  ASSERT_TRUE(SwiGluForward(*context_, on_x.address(), on_up.address(), 3, out.address()).ok());
  EXPECT_EQ(ToHost(out), (Floats{0.0f, 200.0f, 0.0f}));
  ASSERT_TRUE(GeluTanhForward(*context_, on_x.address(), 3, out.address()).ok());
  EXPECT_EQ(ToHost(out), (Floats{0.0f, 200.0f, 0.0f}));
}

// Heads whose halves are whole accesses of 16 bytes, and others.
TEST_P(ElementwiseOnGpu, RopeIsTheCpus) {
  constexpr int64_t kTokens = 5, kHeads = 3, kPositions = 40;
  const std::vector<int32_t> positions = {0, 39, 7, 1, 7};
  for (const int64_t head_dim : {int64_t{64}, int64_t{20}, int64_t{6}}) {
    const Floats cos = cpu::RandomFloats(kPositions * head_dim / 2, 1);
    const Floats sin = cpu::RandomFloats(kPositions * head_dim / 2, 2);
    const Floats x = Random(kTokens * kHeads * head_dim, 3);
    const DeviceValues on_cos = Fp32OnDevice(cos), on_sin = Fp32OnDevice(sin);
    const DeviceBuffer on_positions = ArrayOnDevice(positions);
    for (const bool inverse : {false, true}) {
      Floats expected = x;
      cpu::Rope(cpu_, {.cos = cos, .sin = sin, .head_dim = head_dim}, positions, kHeads,
                expected.data(), inverse);
      const DeviceValues on_x = OnDevice(x);
      ASSERT_TRUE(Rope(*context_,
                       {.cos = on_cos.floats(), .sin = on_sin.floats(), .head_dim = head_dim},
                       on_positions.As<int32_t>(), kTokens, kHeads, on_x.address(), inverse)
                      .ok());
      ExpectClose(on_x, expected);
    }
  }
}

TEST_P(ElementwiseOnGpu, EmbeddingIsTheRowsOfTheTable) {
  constexpr int64_t kVocab = 11;
  const std::vector<int32_t> tokens = {10, 0, 3, 3, 7};
  const int64_t count = static_cast<int64_t>(tokens.size());
  for (const int64_t hidden : {int64_t{40}, int64_t{13}, int64_t{1032}}) {
    const Floats table = Random(kVocab * hidden, 1), before = Random(count * hidden, 2);
    const DeviceValues on_table = OnDevice(table), out = Unset(count * hidden);
    const DeviceBuffer on_tokens = ArrayOnDevice(tokens);
    Floats expected(before.size());
    cpu::EmbeddingForward(cpu_, table.data(), DType::kF32, tokens, hidden, expected.data(), false);
    ASSERT_TRUE(EmbeddingForward(*context_, on_table.address(), on_tokens.As<int32_t>(), count,
                                 hidden, out.address(), false)
                    .ok());
    EXPECT_EQ(ToHost(out), expected);
    const DeviceValues sum = OnDevice(before);
    for (size_t i = 0; i < before.size(); ++i) expected[i] += before[i];
    ASSERT_TRUE(EmbeddingForward(*context_, on_table.address(), on_tokens.As<int32_t>(), count,
                                 hidden, sum.address(), true)
                    .ok());
    ExpectClose(sum, expected);
  }
}

// Exactly the CPU's sums: both add a row's gradients in the order of the tokens.
TEST_P(ElementwiseOnGpu, EmbeddingGradientsAreTheCpusToTheBit) {
  constexpr int64_t kVocab = 9;
  const std::vector<int32_t> tokens = {4, 1, 4, 8, 4, 1, 4, 4, 4, 4, 0};
  const std::vector<int32_t> order = {10, 1, 5, 0, 2, 4, 6, 7, 8, 9, 3};
  const std::vector<int32_t> run_begin = {0, 1, 3, 10, 11};
  const DeviceBuffer on_tokens = ArrayOnDevice(tokens), on_order = ArrayOnDevice(order);
  const DeviceBuffer on_runs = ArrayOnDevice(run_begin);
  for (const int64_t hidden : {int64_t{40}, int64_t{13}}) {
    const Floats dout = Random(static_cast<int64_t>(tokens.size()) * hidden, 1);
    Floats expected = cpu::RandomFloats(kVocab * hidden, 2);
    const DeviceValues dtable = Fp32OnDevice(expected), on_dout = OnDevice(dout);
    const DeviceValues by_rows = Fp32OnDevice(expected);
    cpu::EmbeddingBackward(cpu_, tokens, hidden, dout.data(), expected.data());
    ASSERT_TRUE(
        EmbeddingBackward(
            *context_, on_tokens.As<int32_t>(),
            {.order = on_order.As<int32_t>(), .run_begin = on_runs.As<int32_t>(), .num_runs = 4},
            hidden, on_dout.address(), dtable.floats())
            .ok());
    EXPECT_TRUE(cpu::SameBits(ToHost(dtable), expected));
    for (const auto& [first, count] : {std::pair(0, 4), std::pair(4, 5)}) {
      ASSERT_TRUE(
          EmbeddingBackwardOfRows(
              *context_, on_tokens.As<int32_t>(),
              {.order = on_order.As<int32_t>(), .run_begin = on_runs.As<int32_t>(), .num_runs = 4},
              hidden, on_dout.address(), first, count, by_rows.floats() + first * hidden)
              .ok());
    }
    EXPECT_TRUE(cpu::SameBits(ToHost(by_rows), expected));
  }
}

FOREBAY_TEST_TYPES(ElementwiseOnGpu);

}  // namespace
}  // namespace forebay::cuda
