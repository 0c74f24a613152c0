// Every engine under one fixture: a suite written once runs for each of them, with the faults that
// a case asks for between the engine and its disk.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/aio/faults/faulty_port.h"
#include "forebay/aio/faults/simulated_disk.h"
#include "forebay/aio/io_port.h"
#include "forebay/base/counter_rng.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {

enum class Under { kThreads, kIoUring, kLibaio, kSimulatedDisk };

struct EngineCase {
  std::string name;
  Under under = Under::kThreads;
  EngineOptions options;
  FaultPlan faults;
};

// The engine of a case, and the script of its faults.
struct EngineUnderTest {
  std::shared_ptr<FaultyDisk> disk;  // of the threads engine
  std::shared_ptr<FaultScript> script;
  std::unique_ptr<Engine> engine;
};

inline absl::StatusOr<EngineUnderTest> MakeEngine(const EngineCase& c, const FaultPlan& faults) {
  EngineUnderTest made;
  if (c.under == Under::kThreads) {
    made.disk = std::make_shared<FaultyDisk>(faults);
    made.script = std::shared_ptr<FaultScript>(made.disk, &made.disk->script());
    made.engine = CreateThreadsEngine(c.options, made.disk);
    return made;
  }
  made.script = std::make_shared<FaultScript>(faults);
  if (c.under == Under::kSimulatedDisk) {
    made.engine = CreateSimulatedEngine(c.options, {.seed = faults.seed}, made.script);
    return made;
  }
  const auto factory = [&]() -> absl::StatusOr<std::unique_ptr<IoPort>> {
    auto port = c.under == Under::kIoUring ? OpenIoUringPort() : OpenLibaioPort();
    if (!port.ok()) return port.status();
    return MakeFaultyPort(*std::move(port), made.script);
  };
  auto engine = CreateRingEngine(c.options, c.options.drive, factory);
  if (!engine.ok()) return engine.status();
  made.engine = *std::move(engine);
  return made;
}

// Every engine without faults.
inline std::vector<EngineCase> PlainCases() {
  return {{"OneThread", Under::kThreads, {.num_threads = 1}, {}},
          {"FourThreads", Under::kThreads, {.num_threads = 4}, {}},
          {"IoUring", Under::kIoUring, {}, {}},
          {"Libaio", Under::kLibaio, {}, {}},
          {"SimulatedDisk", Under::kSimulatedDisk, {}, {}}};
}

// Every engine on disks that are slow to say yes. What works on a good disk has to work on these.
inline std::vector<EngineCase> AllCases() {
  std::vector<EngineCase> cases = PlainCases();
  for (const EngineCase& plain : PlainCases()) {
    if (plain.name == "OneThread") continue;
    EngineCase c = plain;
    c.name = plain.name + "ShortTransfers";
    c.faults = {.max_transfer_bytes = 10'000};
    cases.push_back(c);
    c.name = plain.name + "BusyDevice";
    c.faults = {.max_transfer_bytes = 40'000, .again_every = 5};
    cases.push_back(c);
    c.name = plain.name + "SmallBlocks";
    c.faults = {};
    c.options.block_bytes = 8192;
    c.options.max_in_flight_bytes = 32768;
    c.options.burst_bytes = 16384;
    cases.push_back(c);
  }
  cases.push_back(
      {"FourThreadsOutOfOrder", Under::kThreads, {.num_threads = 4}, {.max_delay_us = 500}});
  return cases;
}

// Those of `cases` that are not of the engine `under`.
inline std::vector<EngineCase> Without(Under under, std::vector<EngineCase> cases) {
  std::erase_if(cases, [under](const EngineCase& c) { return c.under == under; });
  return cases;
}

inline void FillRandom(std::span<std::byte> bytes, uint64_t seed) {
  CounterRng(seed).Fill(bytes);
}

// By memcmp: a loop over bytes takes minutes where tests are compiled for a sanitizer.
inline bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

class EngineFixture : public testing::TestWithParam<EngineCase> {
 protected:
  static constexpr int64_t kFileBytes = 1 << 20;

  void SetUp() override { Start(GetParam().faults); }

  // Begins anew with other faults, on the same file.
  void Start(const FaultPlan& faults) { Start(GetParam(), faults); }
  void Start(const EngineCase& c, const FaultPlan& faults) {
    under_test_ = {};
    absl::StatusOr<EngineUnderTest> made = MakeEngine(c, faults);
    if (!made.ok()) GTEST_SKIP() << made.status();
    under_test_ = *std::move(made);
    const bool create = !FileExists(path_);
    auto file = OpenDirectFile(path_, {.create = create, .size_bytes = create ? kFileBytes : 0});
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = engine().AddFile(std::move(file->fd), path_);
  }

  Engine& engine() { return *under_test_.engine; }
  FaultScript& script() { return *under_test_.script; }
  std::shared_ptr<FaultScript> script_ptr() { return under_test_.script; }
  void EndEngine() { under_test_.engine.reset(); }

  HostBuffer Buffer(int64_t size_bytes) {
    auto buffer = HostBuffer::Create(&budget_, "test", size_bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }

  void Prepare(IoOp& op, IoKind kind, int64_t offset_bytes, std::span<std::byte> buffer) {
    op.kind = kind;
    op.io_class = kind == IoKind::kRead ? IoClass::kDemand : IoClass::kWriteBack;
    op.file = file_;
    op.offset_bytes = offset_bytes;
    op.buffer = buffer;
  }

  absl::Status Run(IoKind kind, int64_t offset_bytes, std::span<std::byte> buffer) {
    IoOp op;
    Prepare(op, kind, offset_bytes, buffer);
    engine().Submit(op);
    return engine().Wait(op);
  }

  MemoryBudget budget_{0};
  TemporaryFolder folder_;
  std::string path_ = folder_.Path("file");
  int file_ = -1;

 private:
  EngineUnderTest under_test_;
};

}  // namespace forebay
