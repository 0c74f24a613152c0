// Submitting, moving and waiting allocate nothing once an engine runs: counted by replacing the
// global operator new of this program.
#include <memory>
#include <string>

#include "forebay/aio/engine.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/tests/allocation_counter.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

// Writes, flushes and reads a file several times; the allocations that took, after a first time.
void ExpectNoAllocations(Engine& engine) {
  const TemporaryFolder folder;
  MemoryBudget budget(0);
  const auto buffer = HostBuffer::Create(&budget, "test", int64_t{8} << 20);
  ASSERT_TRUE(buffer.ok()) << buffer.status();
  auto opened = OpenDirectFile(folder.Path("file"), {.create = true, .size_bytes = 8 << 20});
  ASSERT_TRUE(opened.ok()) << opened.status();
  const int file = engine.AddFile(std::move(opened->fd), folder.Path("file"));
  constexpr size_t kNumOps = 8;
  const auto ops = std::make_unique<IoOp[]>(kNumOps);
  int64_t before = 0;
  bool ok = true;
  for (int round = 0; round < 5; ++round) {
    if (round == 1) before = num_allocations.load();
    for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
      for (size_t i = 0; i < kNumOps; ++i) {
        ops[i].kind = kind;
        ops[i].io_class = kind == IoKind::kRead ? IoClass::kPrefetch : IoClass::kWriteBack;
        ops[i].file = file;
        ops[i].offset_bytes = static_cast<int64_t>(i) << 20;
        ops[i].buffer = buffer->bytes().subspan(i << 20, size_t{1} << 20);
        engine.Submit(ops[i]);
      }
      for (size_t i = 0; i < kNumOps; ++i) ok = engine.Wait(ops[i]).ok() && ok;
    }
    ok = engine.Flush(file).ok() && ok;
  }
  EXPECT_EQ(num_allocations.load(), before);
  EXPECT_TRUE(ok);
}

TEST(EngineAllocation, IoUringAllocatesNothing) {
  const auto engine = CreateIoUringEngine({.block_bytes = 65536});
  if (!engine.ok()) GTEST_SKIP() << engine.status();
  ExpectNoAllocations(**engine);
}

TEST(EngineAllocation, LibaioAllocatesNothing) {
  const auto engine = CreateLibaioEngine({.block_bytes = 65536});
  if (!engine.ok()) GTEST_SKIP() << engine.status();
  ExpectNoAllocations(**engine);
}

TEST(EngineAllocation, ThreadsAllocateNothing) {
  ExpectNoAllocations(*CreateThreadsEngine({.block_bytes = 65536}));
}

TEST(EngineAllocation, TheCounterCounts) {
  const int64_t before = num_allocations.load();
  delete new int(1);
  // Nothing else may have been optimised away either.
  const auto kept = std::make_unique<std::string>(100, 'x');
  EXPECT_GT(num_allocations.load(), before);
  EXPECT_EQ(kept->size(), 100u);
}

}  // namespace
}  // namespace forebay
