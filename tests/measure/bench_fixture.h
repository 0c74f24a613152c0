// Engines for the tests of loads: every kind that the machine has, and a simulated disk that
// misbehaves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "forebay/aio/faults/simulated_disk.h"
#include "forebay/aio/open_engine.h"
#include "forebay/measure/load/bench_file.h"
#include "forebay/measure/load/load_thread.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {

inline std::vector<EngineKind> EngineKinds() {
  return {EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads, EngineKind::kBuffered};
}

// "" when `kind` works in `folder`, else why not.
inline std::string WhyNotHere(EngineKind kind, const std::string& folder) {
  EngineOptions options;
  options.engine = kind;
  options.strict = true;
  const auto opened = OpenEngine(options, {folder});
  return opened.ok() ? "" : std::string(opened.status().message());
}

constexpr int64_t kTestBlockBytes = 64 << 10;

// A small and short job on `folder`.
inline Job SmallJob(const std::string& folder) {
  Job job;
  job.targets = {{folder, 0}};
  job.block_bytes = kTestBlockBytes;
  job.depth = 4;
  job.size_bytes = int64_t{4} << 20;
  job.seconds = 0.1;
  job.warmup_s = 0.02;
  job.repeats = 1;
  return job;
}

}  // namespace forebay
