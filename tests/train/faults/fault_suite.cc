#include "forebay/tests/train/faults/fault_suite.h"

#include <unistd.h>

#include <cstdlib>
#include <iterator>
#include <numeric>
#include <random>
#include <thread>

#include "fmt/format.h"

namespace forebay {
namespace {

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int64_t NumEntries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder),
                       std::filesystem::directory_iterator());
}

}  // namespace

uint64_t FaultSeed() {
  static const uint64_t seed = [] {
    const std::string given = Environment("FOREBAY_FAULT_SEED");
    return given.empty() ? std::random_device()() : std::strtoull(given.c_str(), nullptr, 10);
  }();
  return seed;
}

std::string OnlyCase() {
  return Environment("FOREBAY_FAULT_CASE");
}

bool FullSuite() {
  return Environment("FOREBAY_FULL") == "1";
}

std::string RepeatCommand(const std::string& name) {
  const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("FOREBAY_FAULT_SEED={} FOREBAY_FAULT_CASE='{}' {} --gtest_filter={}.{}",
                     FaultSeed(), name, std::filesystem::read_symlink("/proc/self/exe").string(),
                     test->test_suite_name(), test->name());
}

std::filesystem::path FolderInRam() {
  return ::access("/dev/shm", W_OK) == 0 ? std::filesystem::path("/dev/shm")
                                         : std::filesystem::temp_directory_path();
}

Handles CountHandles() {
  return {NumEntries("/proc/self/fd"), NumEntries("/proc/self/task")};
}

void ExpectNoMoreThan(const Handles& before) {
  Handles now = CountHandles();
  for (int i = 0; i < 100 && now.num_threads > before.num_threads; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    now = CountHandles();
  }
  EXPECT_LE(now.num_files, before.num_files) << "descriptors are left open";
  EXPECT_LE(now.num_threads, before.num_threads) << "threads are left running";
}

void ExpectResumesTo(const ToyResult& expected, const TrainOptions& options,
                     const absl::Status& status) {
  if (!status.ok()) {
    const absl::Status resumed = TrainToyOn(options);
    ASSERT_TRUE(resumed.ok()) << resumed << "\nafter " << status;
  }
  const auto result = ResultOf(options.out);
  ASSERT_TRUE(result.ok()) << result.status() << "\nafter " << status;
  EXPECT_EQ(result->state, expected.state) << "after " << status;
  EXPECT_EQ(result->model, expected.model) << "after " << status;
  std::vector<int64_t> steps(kToySteps);
  std::iota(steps.begin(), steps.end(), 1);
  EXPECT_EQ(StepsInMetrics(options.out), steps) << "after " << status;
}

}  // namespace forebay
