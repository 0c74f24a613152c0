// A load allocates nothing for its operations: what it allocates does not grow with their number.
#include "forebay/tests/allocation_counter.h"

#include "forebay/measure/load/pass.h"
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
  struct Counts {
    int64_t allocations = 0;
    int64_t ops = 0;
  };
  const auto run_for = [&](double seconds) {
    job.seconds = seconds;
    const int64_t before = num_allocations.load();
    const auto result = RunPass(plan, memory, {});
    EXPECT_TRUE(result.ok()) << result.status();
    return Counts{num_allocations.load() - before, result.ok() ? result->all_ops : 0};
  };
  const Counts few = run_for(0.05);
  // How long it takes to do many is the machine's affair.
  Counts many;
  for (double seconds = 0.4; many.ops <= few.ops + 40 && seconds < 30; seconds *= 2) {
    many = run_for(seconds);
  }
  EXPECT_GT(many.ops, few.ops + 40);
  // The longer one has a longer series, and the first one makes what is made once.
  EXPECT_LT(many.allocations, few.allocations + 20);
}

INSTANTIATE_TEST_SUITE_P(Engines, LoadAllocation, testing::ValuesIn(EngineKinds()),
                         [](const auto& c) { return std::string(NameOf(c.param)); });

}  // namespace
}  // namespace forebay
