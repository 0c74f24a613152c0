#include "forebay/aio/folding_engine.h"

#include <fcntl.h>

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "forebay/aio/faults/simulated_disk.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kBlock = kIoAlignBytes;

TEST(FoldedBytes, IsTheFilesShareOfTheCommonFile) {
  const FoldOptions options = {.size_bytes = 100 * kBlock, .together_bytes = 1000 * kBlock};
  EXPECT_EQ(FoldedBytes(options, 500 * kBlock), 50 * kBlock);
  EXPECT_EQ(FoldedBytes(options, 15 * kBlock), kBlock);  // in whole blocks
}

TEST(FoldedBytes, OfACommonFileThatHoldsAllIsTheWholeFile) {
  const FoldOptions options = {.size_bytes = 100 * kBlock, .together_bytes = 10 * kBlock};
  EXPECT_EQ(FoldedBytes(options, 7 * kBlock), 7 * kBlock);
}

TEST(FoldedOffset, WrapsAroundAndNeverReachesOverTheEnd) {
  EXPECT_EQ(FoldedOffset(0, kBlock, 10 * kBlock), 0);
  EXPECT_EQ(FoldedOffset(9 * kBlock, kBlock, 10 * kBlock), 9 * kBlock);
  EXPECT_EQ(FoldedOffset(10 * kBlock, kBlock, 10 * kBlock), 0);
  EXPECT_EQ(FoldedOffset(39 * kBlock, 4 * kBlock, 10 * kBlock), 6 * kBlock);
  EXPECT_EQ(FoldedOffset(12345 * kBlock, 10 * kBlock, 10 * kBlock), 0);
}

struct alignas(kIoAlignBytes) Buffer {
  std::array<std::byte, 2 * kBlock> bytes;
};

// A common file of 8 blocks on a simulated disk, and two files of 60 and 20 blocks folded into it.
class FoldingEngineTest : public testing::Test {
 protected:
  FoldingEngineTest() : inner_(CreateSimulatedEngine({}, {}, nullptr)) {
    common_ = inner_->AddFile(NewFile("common", 8 * kBlock), folder_.Path("common"));
    const FoldOptions fold = {.file = common_,
                              .size_bytes = 8 * kBlock,
                              .least_bytes = 4 * kBlock,
                              .together_bytes = 80 * kBlock};
    engine_ = std::make_unique<FoldingEngine>(inner_.get(), std::vector{fold});
    long_ = engine_->AddFile(NewFile("long", 60 * kBlock), folder_.Path("long"));
    other_ = engine_->AddFile(NewFile("other", 20 * kBlock), folder_.Path("other"));
    short_ = engine_->AddFile(NewFile("short", 2 * kBlock), folder_.Path("short"));
  }

  UniqueFd NewFile(const std::string& name, int64_t size_bytes) {
    UniqueFd fd(::open(folder_.Path(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_EQ(::ftruncate(fd.get(), size_bytes), 0);
    return fd;
  }

  void Write(int file, int64_t offset_bytes, int64_t size_bytes, char value) {
    std::memset(buffer_->bytes.data(), value, buffer_->bytes.size());
    Run(*engine_, IoKind::kWrite, file, offset_bytes, size_bytes);
  }
  // The first byte of each block.
  std::string Read(Engine& engine, int file, int64_t num_blocks) {
    std::string contents;
    for (int64_t block = 0; block < num_blocks; ++block) {
      Run(engine, IoKind::kRead, file, block * kBlock, kBlock);
      const char value = static_cast<char>(buffer_->bytes[0]);
      contents += value == 0 ? '.' : value;
    }
    return contents;
  }
  void Run(Engine& engine, IoKind kind, int file, int64_t offset_bytes, int64_t size_bytes) {
    IoOp op;
    op.kind = kind;
    op.file = file;
    op.offset_bytes = offset_bytes;
    op.buffer = std::span(buffer_->bytes).first(static_cast<size_t>(size_bytes));
    engine.Submit(op);
    EXPECT_EQ(engine.Wait(op), absl::OkStatus());
  }

  const TemporaryFolder folder_;
  const std::unique_ptr<Engine> inner_;
  std::unique_ptr<FoldingEngine> engine_;
  int common_ = -1, long_ = -1, other_ = -1, short_ = -1;
  const std::unique_ptr<Buffer> buffer_ = std::make_unique<Buffer>();
};

TEST_F(FoldingEngineTest, EachFileHasAPartOfTheCommonFile) {
  Write(long_, 0, kBlock, 'a');
  Write(long_, 7 * kBlock, kBlock, 'b');   // 6 blocks are its part
  Write(long_, 59 * kBlock, kBlock, 'c');  // its last one
  Write(other_, 0, kBlock, 'd');           // 2 blocks, behind those
  Write(other_, 19 * kBlock, kBlock, 'e');
  EXPECT_EQ(Read(*inner_, common_, 8), "ab...cde");
  EXPECT_EQ(Read(*engine_, long_, 7), "ab...ca");
}

TEST_F(FoldingEngineTest, ATransferAtTheEndOfAPartStaysWhole) {
  Write(long_, 5 * kBlock, 2 * kBlock, 'x');
  EXPECT_EQ(Read(*inner_, common_, 8), "....xx..");
  EXPECT_EQ(engine_->stats().write_ops, 1);
  EXPECT_EQ(engine_->stats().write_bytes, 2 * kBlock);
}

TEST_F(FoldingEngineTest, TheFilesOfEachFolderHaveACommonFileOfTheirOwn) {
  const int second = inner_->AddFile(NewFile("second", 8 * kBlock), folder_.Path("second"));
  const FoldOptions a = {.folder = folder_.Path("a"),
                         .file = common_,
                         .size_bytes = 8 * kBlock,
                         .together_bytes = 20 * kBlock};
  FoldOptions ab = a;
  ab.folder = folder_.Path("ab");
  ab.file = second;
  FoldingEngine engine(inner_.get(), {a, ab});
  const int in_a = engine.AddFile(NewFile("1", 20 * kBlock), folder_.Path("a/tiles"));
  const int in_ab = engine.AddFile(NewFile("2", 20 * kBlock), folder_.Path("ab/tiles"));
  std::memset(buffer_->bytes.data(), 'a', kBlock);
  Run(engine, IoKind::kWrite, in_a, 9 * kBlock, kBlock);
  std::memset(buffer_->bytes.data(), 'b', kBlock);
  Run(engine, IoKind::kWrite, in_ab, 2 * kBlock, kBlock);
  EXPECT_EQ(Read(*inner_, common_, 8), ".a......");
  EXPECT_EQ(Read(*inner_, second, 8), "..b.....");
}

TEST_F(FoldingEngineTest, AShortFileKeepsItsOwnBytes) {
  Write(short_, kBlock, kBlock, 's');
  Write(long_, kBlock, kBlock, 'x');
  EXPECT_EQ(Read(*engine_, short_, 2), ".s");
  EXPECT_EQ(Read(*inner_, common_, 8), ".x......");
}

TEST_F(FoldingEngineTest, AFileOfTheUnfoldedNameKeepsItsOwnBytes) {
  const FoldOptions fold = {.file = common_,
                            .size_bytes = 8 * kBlock,
                            .unfolded_name = "kept",
                            .together_bytes = 20 * kBlock};
  FoldingEngine engine(inner_.get(), {fold});
  const int kept = engine.AddFile(NewFile("kept", 20 * kBlock), folder_.Path("kept"));
  const int folded = engine.AddFile(NewFile("not_kept", 20 * kBlock), folder_.Path("not_kept"));
  for (const int file : {kept, folded}) {
    std::memset(buffer_->bytes.data(), file == kept ? 'k' : 'f', kBlock);
    Run(engine, IoKind::kWrite, file, 17 * kBlock, kBlock);
  }
  EXPECT_EQ(Read(engine, kept, 20), std::string(17, '.') + "k..");
  EXPECT_EQ(Read(*inner_, common_, 8), ".f......");
}

TEST_F(FoldingEngineTest, FlushGoesToTheFileThatHoldsTheBytes) {
  EXPECT_EQ(engine_->Flush(long_), absl::OkStatus());
  EXPECT_EQ(engine_->Flush(short_), absl::OkStatus());
  EXPECT_EQ(engine_->stats().flushes, 2);
}

TEST_F(FoldingEngineTest, ARemovedFileLeavesTheOthersAlone) {
  Write(other_, 0, kBlock, 'd');
  engine_->RemoveFile(long_);
  engine_->RemoveFile(short_);
  EXPECT_EQ(Read(*engine_, other_, 2), "d.");
  EXPECT_EQ(Read(*inner_, common_, 8), "......d.");
}

}  // namespace
}  // namespace forebay
