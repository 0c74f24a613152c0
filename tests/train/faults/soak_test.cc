// A long run holds no more memory and no more descriptors at its end than near its beginning.
#include <cstdio>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/memory/process_memory.h"
#include "forebay/tests/train/faults/fault_suite.h"

namespace forebay {
namespace {

constexpr int64_t kNumSteps = 2000;
constexpr int64_t kWarmUpSteps = 200;
constexpr int64_t kSampleEvery = 50;

struct Sample {
  int64_t resident_bytes = 0;
  Handles handles;
};

// Looks at the process from time to time.
class SamplingObserver : public SilentObserver {
 public:
  void OnStep(const Json& metrics) override {
    const auto step = metrics["step"].get<int64_t>();
    if (step >= kWarmUpSteps && step % kSampleEvery == 0) {
      samples.push_back({ReadProcessMemory().resident_bytes, CountHandles()});
    }
  }

  std::vector<Sample> samples;
};

TEST(Soak, ALongRunHoldsNoMoreAtItsEnd) {
  const TemporaryFolder folder{FolderInRam()};
  const ToyTask task{folder.path()};
  TrainOptions options = task.TightRun(folder.Path("run"));
  options.steps = kNumSteps;
  SamplingObserver observer;
  const absl::Status status = TrainToy(options, {}, observer);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(observer.samples.size(), (kNumSteps - kWarmUpSteps) / kSampleEvery + 1);
  const Sample& first = observer.samples.front();
  const Sample& last = observer.samples.back();
  std::printf("resident after %lld steps %lld KiB, after %lld steps %lld KiB\n",
              static_cast<long long>(kWarmUpSteps),
              static_cast<long long>(first.resident_bytes >> 10), static_cast<long long>(kNumSteps),
              static_cast<long long>(last.resident_bytes >> 10));
  // A leak of 600 bytes in each step would be seen; the allocator's own pages would not.
  EXPECT_LE(last.resident_bytes, first.resident_bytes + (int64_t{1} << 20));
  for (const Sample& sample : observer.samples) {
    EXPECT_EQ(sample.handles.num_files, first.handles.num_files);
    EXPECT_EQ(sample.handles.num_threads, first.handles.num_threads);
  }
  EXPECT_EQ(StepsInMetrics(options.out).size(), static_cast<size_t>(kNumSteps));
}

}  // namespace
}  // namespace forebay
