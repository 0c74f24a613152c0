// A load allocates nothing for its operations: what it allocates does not grow with their number.
#include "forebay/tests/allocation_counter.h"

#include "forebay/measure/pass.h"
#include "forebay/tests/measure/bench_fixture.h"

namespace forebay {
namespace {

class LoadAllocation : public testing::TestWithParam<EngineKind> {};

TEST_P(LoadAllocation, IsTheSameForManyOperationsAndForFew) {
  const TemporaryFolder folder;
  const std::string why_not = WhyNotHere(GetParam(), folder.path());
  if (!why_not.empty()) GTEST_SKIP() << why_not;
  MemoryBudget budget(0);
  const BlockPattern pattern(1, 0);
  Job job = SmallJob(folder.path());
  job.warmup_s = 0;
  std::vector<HostBuffer> memory;
  memory.push_back(*HostBuffer::Create(&budget, "test", LoadMemoryBytes(job, 0, 1)));
  auto file =
      BenchFile::Create(folder.path(), job.size_bytes, GetParam() != EngineKind::kBuffered, false);
  ASSERT_TRUE(file.ok()) << file.status();
  LoadPlan plan;
  plan.job = &job;
  plan.load = {LoadOp::kMixed, 50};
  plan.engine = GetParam();
  plan.files = {&*file};
  plan.stripe = {0};
  plan.pattern = &pattern;
  int64_t allocations[2] = {};
  int64_t ops[2] = {};
  for (const int pass : {0, 1}) {
    job.seconds = pass == 0 ? 0.05 : 0.4;
    const int64_t before = num_allocations.load();
    const auto result = RunPass(plan, memory, {});
    ASSERT_TRUE(result.ok()) << result.status();
    allocations[pass] = num_allocations.load() - before;
    ops[pass] = result->all_ops;
  }
  // The longer one has a longer series, and the first one makes what is made once.
  EXPECT_LT(allocations[1], allocations[0] + 20);
  EXPECT_GT(ops[1], ops[0] + 40);
}

INSTANTIATE_TEST_SUITE_P(Engines, LoadAllocation, testing::ValuesIn(EngineKinds()),
                         [](const auto& c) { return std::string(NameOf(c.param)); });

}  // namespace
}  // namespace forebay
