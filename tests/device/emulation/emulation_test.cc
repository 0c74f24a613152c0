// The emulated GPU notices mistakes: each program that is wrong on purpose ends with an error, in
// CI, where there is no GPU; and the right ones do not, in any order.
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "fmt/format.h"
#include "forebay/device/emulation/counters.h"
#include "forebay/device/emulation/sanitizers.h"
#include "forebay/tests/device/emulation/wrong_programs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

struct Ended {
  int code = 0;  // 128 and more: of a signal
  std::string output;
};

Ended EndOf(Wrong wrong, const std::string& settings) {
  // A leak is not what is to be noticed.
  const std::string command = fmt::format(
      "ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS='halt_on_error=1 history_size=0' {} '{}' '{}' 2>&1",
      settings, WRONG_PROGRAMS, NameOf(wrong));
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  Ended ended;
  std::array<char, 4096> part;
  for (size_t got; (got = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    ended.output.append(part.data(), got);
  }
  const int status = ::pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

std::string Seed(int seed) {
  return fmt::format("FOREBAY_EMULATION_SEED={}", seed);
}

// An order of accesses that no order of threads makes wrong: TSan alone sees that nothing orders
// them.
bool IsSeenByTsanAlone(Wrong wrong) {
  return wrong == Wrong::kNoSyncWarp || wrong == Wrong::kNoAtomic;
}

TEST(Emulation, WhatIsRightIsRightInEveryOrder) {
  std::vector<std::string> settings = {
      "FOREBAY_EMULATION_ORDER=ascending FOREBAY_EMULATION_STREAMS=eager",
      "FOREBAY_EMULATION_ORDER=descending FOREBAY_EMULATION_STREAMS=lazy"};
  // Where TSan watches, one order is as good as another, and takes seconds.
  const int num_seeds = emulation::HasTsan() ? 1 : 5;
  for (int seed = 1; seed <= num_seeds; ++seed) settings.push_back(Seed(seed));
  for (const std::string& setting : settings) {
    const Ended ended = EndOf(Wrong::kNothing, setting);
    EXPECT_EQ(ended.code, 0) << setting << "\n" << ended.output;
  }
}

class WrongProgramTest : public testing::TestWithParam<int> {};

TEST_P(WrongProgramTest, IsNoticed) {
  const auto wrong = static_cast<Wrong>(GetParam());
  if (IsSeenByTsanAlone(wrong) && !emulation::HasTsan()) {
    GTEST_SKIP() << "no order of threads shows it: the build under TSan does";
  }
  // Each of these draws another order: TSan and the checks need one, results that are wrong some.
  constexpr int kMostSeeds = 20;
  for (int seed = 1; seed <= kMostSeeds; ++seed) {
    const Ended ended = EndOf(wrong, Seed(seed));
    ASSERT_NE(ended.code, 2) << ended.output;
    ASSERT_NE(ended.code, 77) << ended.output;
    if (ended.code != 0) return;
  }
  ADD_FAILURE() << kMostSeeds << " orders, and nothing noticed '" << NameOf(wrong) << "'";
}

INSTANTIATE_TEST_SUITE_P(Programs, WrongProgramTest,
                         testing::Range(1, static_cast<int>(Wrong::kNumWrong)),
                         [](const testing::TestParamInfo<int>& program) {
                           std::string name(NameOf(static_cast<Wrong>(program.param)));
                           for (char& c : name) c = c == ' ' ? '_' : c;
                           return name;
                         });

TEST(Emulation, SaysWhatIsWrong) {
  if (emulation::HasTsan()) GTEST_SKIP() << "other builds show it, in less time";
  EXPECT_THAT(EndOf(Wrong::kBarrierInABranch, Seed(1)).output,
              HasSubstr("threads of a block wait at different barriers"));
  EXPECT_THAT(EndOf(Wrong::kShuffleOfHalfAWarp, Seed(1)).output, HasSubstr("no thread can go on"));
  EXPECT_THAT(EndOf(Wrong::kLaneOutsideItsMask, Seed(1)).output,
              HasSubstr("is not in its own mask"));
  EXPECT_THAT(EndOf(Wrong::kShuffleFromAnAbsentLane, Seed(1)).output,
              HasSubstr("which is not in the mask"));
  EXPECT_THAT(EndOf(Wrong::kNoDynamicShared, Seed(1)).output, HasSubstr("its launch gave none"));
  EXPECT_THAT(EndOf(Wrong::kFreedTwice, Seed(1)).output, HasSubstr("it is not allocated"));
  EXPECT_THAT(EndOf(Wrong::kCopyFromTheWrongSide, Seed(1)).output,
              HasSubstr("is no device memory"));
  EXPECT_THAT(EndOf(Wrong::kCopyPastTheAllocation, Seed(1)).output,
              HasSubstr("804 bytes at offset 0 of an allocation of 800"));
}

TEST(Emulation, RefusesLaunchesThatNoGpuTakes) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(wrong_kernels::AddScaled(nullptr, nullptr, 0, 1, stream),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(Emulation, CopiesOfPinnedMemoryAreNotCountedAsOthers) {
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  std::array<char, 4096> host = {};
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&memory, sizeof(host)), cudaSuccess);
  ASSERT_EQ(cudaHostRegister(host.data(), sizeof(host), cudaHostRegisterPortable), cudaSuccess);
  const emulation::Counters before = emulation::CountersNow();
  ASSERT_EQ(cudaMemcpyAsync(memory, &host[64], 100, cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(host.data(), memory, 100, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(emulation::CountersNow().unpinned_copy_bytes, before.unpinned_copy_bytes);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(emulation::CountersNow().num_device_waits - before.num_device_waits, 1);
  ASSERT_EQ(cudaHostUnregister(host.data()), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(Emulation, CountsWhatAProgramDoes) {
  const emulation::Counters before = emulation::CountersNow();
  cudaStream_t stream = nullptr;
  void* memory = nullptr;
  std::array<float, 100> host = {};
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&memory, sizeof(host)), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(memory, host.data(), sizeof(host), cudaMemcpyHostToDevice, stream),
            cudaSuccess);
  auto* const values = static_cast<float*>(memory);
  ASSERT_EQ(wrong_kernels::AddScaled(values, values, 100, 1, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(host.data(), memory, 40, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const emulation::Counters after = emulation::CountersNow();
  EXPECT_EQ(after.num_launches - before.num_launches, 1);
  EXPECT_EQ(after.to_device_bytes - before.to_device_bytes, 400);
  EXPECT_EQ(after.to_host_bytes - before.to_host_bytes, 40);
  EXPECT_EQ(after.allocated_bytes - before.allocated_bytes, 400);
  EXPECT_GE(after.peak_allocated_bytes, 400);
  EXPECT_EQ(after.unpinned_copy_bytes - before.unpinned_copy_bytes, 440);
  EXPECT_EQ(after.num_device_waits, before.num_device_waits);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(emulation::CountersNow().allocated_bytes, before.allocated_bytes);
  EXPECT_EQ(emulation::CountersNow().num_device_waits - before.num_device_waits, 1);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace forebay
