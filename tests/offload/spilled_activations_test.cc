// Activations through the scratch area of a store: what is read back is what was written, or an
// error.
#include "forebay/offload/spilled_activations.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "forebay/aio/disk_calls.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Fails the transfers of the scratch area that it is asked to.
class FailingScratch : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (fails && kind == failing && path.ends_with(kScratchName)) return -EIO;
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }
  bool fails = false;
  IoKind failing = IoKind::kRead;
};

class SpilledActivationsTest : public testing::Test {
 protected:
  static constexpr int kBuffers = 3;
  static constexpr int kSpilled = 5;

  // In `weights.size()` folders, behind some gradients.
  void Open(const StripeWeights& weights, int64_t activation_bytes) {
    shape_ = {
        .num_spilled = kSpilled, .num_buffers = kBuffers, .activation_bytes = activation_bytes};
    Inventory inventory;
    for (int layer = 0; layer < 8; ++layer) {
      const std::string name = "layer" + std::to_string(layer);
      inventory.BeginLayer(name);
      inventory.Add(name + ".weight", {64, 64}, 0, true);
    }
    StoreOptions options;
    options.tile_elems = 2048;
    options.stripe_weights = weights;
    options.scratch_bytes = shape_.AreaBytes(weights);
    for (size_t i = 0; i < weights.size(); ++i) {
      options.directories.push_back(folder_.Path("swap" + std::to_string(i)));
      area_begins_.push_back(4096 * static_cast<int64_t>(i + 1));
      options.scratch_bytes[i] += area_begins_[i];
    }
    auto store = TensorStore::Create(options, inventory, engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto activations =
        SpilledActivations::Create(shape_, area_begins_, store_.get(), &budget_, &pool_);
    ASSERT_TRUE(activations.ok()) << activations.status();
    activations_ = *std::move(activations);
  }

  std::span<std::byte> BufferOf(int layer) const {
    return activations_->buffers().subspan(layer % kBuffers * shape_.activation_bytes,
                                           shape_.activation_bytes);
  }
  std::vector<std::byte> Content(int layer, uint64_t pass) const {
    std::vector<std::byte> bytes(static_cast<size_t>(shape_.activation_bytes));
    const CounterRng rng(pass, static_cast<uint64_t>(layer));
    for (size_t i = 0; i < bytes.size(); i += 16) {
      std::memcpy(&bytes[i], rng.Words(i).data(), 16);
    }
    return bytes;
  }

  // As a walk over eight layers does it.
  absl::Status RunForward(uint64_t pass) {
    for (int layer = 0; layer < kSpilled + kBuffers; ++layer) {
      FOREBAY_RETURN_IF_ERROR(activations_->Await(layer - kBuffers));
      std::ranges::copy(Content(layer, pass), BufferOf(layer).begin());
      if (layer < kSpilled) activations_->StartWrite(layer);
    }
    return absl::OkStatus();
  }
  absl::Status RunBackward(uint64_t pass) {
    for (int layer = kSpilled + kBuffers - 1; layer >= 0; --layer) {
      FOREBAY_RETURN_IF_ERROR(activations_->Await(layer));
      if (std::memcmp(BufferOf(layer).data(), Content(layer, pass).data(),
                      BufferOf(layer).size()) != 0) {
        return absl::InternalError("another activation");
      }
      std::ranges::fill(BufferOf(layer), std::byte{0xff});
      if (layer >= kBuffers) activations_->StartRead(layer - kBuffers);
    }
    return absl::OkStatus();
  }

  void FlipByte(const std::string& path, int64_t offset_bytes) {
    const auto fd = OpenFile(path, O_RDWR);
    ASSERT_TRUE(fd.ok()) << fd.status();
    char byte = 0;
    ASSERT_EQ(::pread(fd->get(), &byte, 1, offset_bytes), 1);
    byte = static_cast<char>(byte ^ 4);
    ASSERT_EQ(::pwrite(fd->get(), &byte, 1, offset_bytes), 1);
  }

  const TemporaryFolder folder_;
  FailingScratch disk_;
  MemoryBudget budget_{0};
  ThreadPool pool_{2};
  const std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 2}, &disk_);
  SpilledActivationsShape shape_;
  StripeBytes area_begins_;
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<SpilledActivations> activations_;
};

TEST_F(SpilledActivationsTest, ComeBackAsTheyWerePassAfterPass) {
  Open({1}, 3 * 4096);
  EXPECT_EQ(budget_.used_bytes(), HostBuffer::ChargedBytes(shape_.MemoryBytes()));
  for (uint64_t pass = 0; pass < 3; ++pass) {
    const IoStats before = engine_->stats();
    ASSERT_EQ(RunForward(pass), absl::OkStatus());
    ASSERT_EQ(RunBackward(pass), absl::OkStatus());
    const IoStats after = engine_->stats();
    EXPECT_EQ(after.write_bytes - before.write_bytes, Total(shape_.AreaBytes({1})));
    EXPECT_EQ(after.read_bytes - before.read_bytes, Total(shape_.AreaBytes({1})));
  }
}

TEST_F(SpilledActivationsTest, LieInAllFoldersAndInPieces) {
  Open({3, 1, 2}, SpilledActivations::kMostTransferBytes * 5);
  EXPECT_EQ(Total(shape_.StripeShares({3, 1, 2})), shape_.activation_bytes);
  for (const int64_t share : shape_.StripeShares({3, 1, 2})) EXPECT_GT(share, 0);
  ASSERT_EQ(RunForward(1), absl::OkStatus());
  ASSERT_EQ(RunBackward(1), absl::OkStatus());
}

TEST(SpilledActivationsShape, GivesEachFolderItsShareInWholeBlocks) {
  const SpilledActivationsShape shape = {
      .num_spilled = 4, .num_buffers = 3, .activation_bytes = 6 * 4096};
  EXPECT_THAT(shape.StripeShares({1}), ElementsAre(6 * 4096));
  EXPECT_THAT(shape.StripeShares({2, 1}), ElementsAre(4 * 4096, 2 * 4096));
  EXPECT_THAT(shape.AreaBytes({2, 1}), ElementsAre(16 * 4096, 8 * 4096));
  EXPECT_THAT(SpilledActivationsShape().AreaBytes({2, 1}), ElementsAre(0, 0));
  for (int64_t blocks = 1; blocks < 200; ++blocks) {
    const SpilledActivationsShape any = {.num_spilled = 1, .activation_bytes = blocks * 4096};
    EXPECT_EQ(Total(any.StripeShares({7, 11, 13})), any.activation_bytes);
  }
}

TEST_F(SpilledActivationsTest, ADamagedByteIsNamedAndNotUsed) {
  Open({1, 1}, 4 * 4096);
  ASSERT_EQ(RunForward(1), absl::OkStatus());
  for (int layer = 0; layer < kSpilled; ++layer)
    ASSERT_EQ(activations_->Await(layer), absl::OkStatus());
  // A piece of layer 3, in the second folder.
  const std::string path = JoinPath(store_->directories()[1], kScratchName);
  const int64_t offset_bytes = area_begins_[1] + 3 * 2 * 4096;
  FlipByte(path, offset_bytes + 4100);
  const absl::Status status = RunBackward(1);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr(path), HasSubstr("8192 bytes at " + std::to_string(offset_bytes)),
                    HasSubstr("activation of layer 'layer3'"), HasSubstr("then resume")));
  activations_->Abandon();
  ASSERT_EQ(RunForward(2), absl::OkStatus());
  EXPECT_EQ(RunBackward(2), absl::OkStatus());
}

TEST_F(SpilledActivationsTest, AWriteOrAReadThatFailsIsAnErrorAndTheNextPassIsWhole) {
  Open({1}, 4096);
  for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
    disk_.failing = kind;
    disk_.fails = true;
    absl::Status status = RunForward(1);
    EXPECT_EQ(status.ok(), kind == IoKind::kRead) << status;
    if (status.ok()) status = RunBackward(1);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
    EXPECT_THAT(MessageOf(status), HasSubstr(kind == IoKind::kRead ? "reading the activation of"
                                                                   : "writing the activation of"));
    EXPECT_THAT(MessageOf(status), HasSubstr(kScratchName));
    activations_->Abandon();
    disk_.fails = false;
    ASSERT_EQ(RunForward(2), absl::OkStatus());
    EXPECT_EQ(RunBackward(2), absl::OkStatus());
  }
}

using SpilledActivationsDeathTest = SpilledActivationsTest;

TEST_F(SpilledActivationsDeathTest, ReadingWhatThisPassDidNotWriteIsABug) {
  Open({1}, 4096);
  EXPECT_DEATH(activations_->StartRead(0), "is_written_");
  EXPECT_DEATH(activations_->StartWrite(kSpilled), "num_spilled");
  ASSERT_EQ(RunForward(1), absl::OkStatus());
  activations_->Abandon();
  EXPECT_DEATH(activations_->StartRead(0), "is_written_");
}

}  // namespace
}  // namespace forebay
