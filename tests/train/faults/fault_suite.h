// What the suites of this folder share: the seed, the one case to repeat, the limit on time, and
// the look at what a case leaves behind.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "forebay/tests/sample.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/faults/case_limit.h"
#include "forebay/tests/train/faults/toy_run.h"
#include "gtest/gtest.h"

namespace forebay {

inline constexpr bool kUnderSanitizer = kIsSanitized;

// Of everything that is drawn: FOREBAY_FAULT_SEED, or another one in every process.
uint64_t FaultSeed();
// The name of the one case that is to run (FOREBAY_FAULT_CASE); empty: all.
std::string OnlyCase();
// Whether scripts/test runs its long versions (FOREBAY_FULL=1).
bool FullSuite();
// The command that repeats a case.
std::string RepeatCommand(const std::string& name);

// The toy is small: on a file system in RAM, its flushes cost nothing.
std::filesystem::path FolderInRam();

// Descriptors and threads of this process.
struct Handles {
  int64_t num_files = 0;
  int64_t num_threads = 0;
  bool operator==(const Handles&) const = default;
};
Handles CountHandles();
// Fails the test when more is open than `before`. A thread may be listed a little longer than it
// lives.
void ExpectNoMoreThan(const Handles& before);

// Goes on with the run in `options.out` on a disk that works, and expects what an undisturbed run
// gives. `status`: what the disturbed run ended with; after OK nothing may be left to do.
void ExpectResumesTo(const ToyResult& expected, const TrainOptions& options,
                     const absl::Status& status);

}  // namespace forebay
