// A run computes its matrix products by the algorithms that it began with, whatever would be chosen
// by now: on the emulated GPU, where each algorithm has bits of its own.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/device/emulation/options.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/faults/toy_run.h"
#include "forebay/train/files/run_algorithms.h"
#include "forebay/train/files/run_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using emulation::TheOptions;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class NotesObserver : public SilentObserver {
 public:
  void OnNote(const std::string& note) override { notes.push_back(note); }
  std::vector<std::string> notes;
};

class GpuAlgorithms : public testing::Test {
 protected:
  GpuAlgorithms() { ForgetMachine(); }
  ~GpuAlgorithms() override { TheOptions() = before_; }

  // What other runs have measured here.
  void ForgetMachine() {
    ::setenv("XDG_CACHE_HOME", folder_.Path(fmt::format("cache{}", num_caches_++)).c_str(), 1);
  }

  TrainOptions OnGpu(const std::string& name) const {
    // In fp32, as bf16 rounds most differences of order away.
    TrainOptions options = task_.RoomyRun(folder_.Path(name));
    options.ram_bytes = int64_t{256} << 20;
    options.device = ComputeDevice::kCuda;
    options.commit_every = 1;
    return options;
  }
  // Of a whole run, at one fastest algorithm.
  ToyResult Whole(const std::string& name, int fastest) const {
    TheOptions().fastest_product = fastest;
    EXPECT_TRUE(TrainToy(OnGpu(name)).ok());
    return *ResultOf(folder_.Path(name));
  }
  // The first step, at the second algorithm; the machine forgets what was measured.
  TrainOptions Begun(const std::string& name) {
    ForgetMachine();
    TheOptions().fastest_product = 1;
    TrainOptions options = OnGpu(name);
    options.stop_after = 1;
    EXPECT_FALSE(TrainToy(options).ok());
    options.stop_after = 0;
    options.resume = true;
    ForgetMachine();
    return options;
  }
  // The other steps, at the first one.
  std::vector<std::string> NotesOfRest(const TrainOptions& options) const {
    TheOptions().fastest_product = 0;
    NotesObserver observer;
    const absl::Status status = TrainToy(options, {}, observer);
    EXPECT_TRUE(status.ok()) << status;
    return observer.notes;
  }

  const emulation::Options before_ = TheOptions();
  int num_caches_ = 0;
  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path()};
};

const auto kMayDiffer = HasSubstr("differ in the last bits from an uninterrupted run");

TEST_F(GpuAlgorithms, AResumedRunHasTheBitsOfOneThatWasNotStopped) {
  const ToyResult expected = Whole("whole", 1);
  ForgetMachine();
  EXPECT_NE(Whole("other", 0), expected);
  const TrainOptions options = Begun("run");
  EXPECT_THAT(NotesOfRest(options), Not(Contains(kMayDiffer)));
  EXPECT_EQ(*ResultOf(options.out), expected);
}

TEST_F(GpuAlgorithms, ANewRunHasTheBitsOfTheOneBeforeIt) {
  const ToyResult expected = Whole("first", 1);
  EXPECT_EQ(Whole("second", 0), expected);  // another would be measured
  TrainOptions other = OnGpu("other batch");
  other.batch = 1;
  ASSERT_TRUE(TrainToy(other).ok());
  EXPECT_EQ(Whole("third", 0), expected);
  std::string note;
  const MatmulAlgorithms of_first =
      ReadAlgorithms(RunPaths(folder_.Path("first")).algorithms, note);
  EXPECT_EQ(ReadAlgorithms(RunPaths(folder_.Path("third")).algorithms, note), of_first);
  // Another library's are not taken.
  TheOptions().cublaslt_version = 130100;
  EXPECT_NE(Whole("newer", 0), expected);
}

TEST_F(GpuAlgorithms, ARunHasTheBitsOfTheOneBeforeItWhereNothingCanBeKept) {
  ::setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
  const ToyResult expected = Whole("first", 1);
  EXPECT_EQ(Whole("second", 0), expected);
  TrainOptions options = OnGpu("resumed");
  options.stop_after = 1;
  EXPECT_FALSE(TrainToy(options).ok());
  options.stop_after = 0;
  options.resume = true;
  EXPECT_THAT(NotesOfRest(options), Not(Contains(kMayDiffer)));
  EXPECT_EQ(*ResultOf(options.out), expected);
}

TEST_F(GpuAlgorithms, AResumeOfAnotherRunDoesNotChangeThoseOfNewOnes) {
  const TrainOptions older = Begun("older");
  const ToyResult expected = Whole("first", 0);
  NotesOfRest(older);
  EXPECT_NE(*ResultOf(older.out), expected);
  EXPECT_EQ(Whole("second", 1), expected);
}

TEST_F(GpuAlgorithms, WithoutItsRecordARunSaysThatBitsMayDiffer) {
  const ToyResult expected = Whole("whole", 1);
  TrainOptions options = Begun("lost");
  ASSERT_EQ(std::remove(RunPaths(options.out).algorithms.c_str()), 0);
  EXPECT_THAT(NotesOfRest(options), Contains(kMayDiffer));
  EXPECT_NE(*ResultOf(options.out), expected);

  options = Begun("damaged");
  ASSERT_TRUE(WriteFileAtomically(RunPaths(options.out).algorithms, "{\"format\": 1}").ok());
  const std::vector<std::string> notes = NotesOfRest(options);
  EXPECT_THAT(notes, Contains(HasSubstr("chosen anew")));
  EXPECT_THAT(notes, Contains(kMayDiffer));
}

TEST_F(GpuAlgorithms, AreThoseOfProductsInTf32WhereTheRunIs) {
  TrainOptions options = OnGpu("tf32");
  options.tf32 = true;
  ASSERT_TRUE(TrainToy(options).ok());
  std::string note;
  const MatmulAlgorithms algorithms = ReadAlgorithms(RunPaths(options.out).algorithms, note);
  EXPECT_EQ(note, "");
  EXPECT_GT(algorithms.chosen.size(), 10u);
  for (const auto& [product, algorithm] : algorithms.chosen) EXPECT_TRUE(product.shape.tf32);
  options.tf32 = false;
  options.resume = true;
  EXPECT_EQ(ExitCodeOf(TrainToy(options)), ExitCode::kUsage);
}

TEST_F(GpuAlgorithms, AnotherLibraryChoosesItsOwn) {
  const TrainOptions options = Begun("run");
  TheOptions().cublaslt_version = 130100;
  const std::vector<std::string> notes = NotesOfRest(options);
  EXPECT_THAT(notes, Contains(kMayDiffer));
  EXPECT_THAT(notes, Contains(HasSubstr("cuBLASLt 13.1.0 with algorithms")));
}

}  // namespace
}  // namespace forebay
