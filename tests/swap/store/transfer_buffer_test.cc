#include "forebay/swap/store/transfer_buffer.h"

#include <cerrno>
#include <memory>
#include <utility>
#include <vector>

#include "forebay/aio/faults/simulated_disk.h"
#include "forebay/base/errors.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/tests/aio/registering_port.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class TransferBufferTest : public testing::Test {
 protected:
  void SetUp() override {
    engine_ = CreateRegisteringEngine(
        {}, log_, [] { return absl::StatusOr<std::unique_ptr<IoPort>>(MakeSimulatedDisk({})); });
    StoreOptions options;
    options.directories = {folder_.Path("store")};
    options.tile_elems = kSmallTileElems;
    auto store = TensorStore::Create(options, SmallInventory(), engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    ASSERT_TRUE(WriteStep(*store_, 0).ok());
  }

  TransferBuffer Make(int64_t size_bytes, int64_t unit_bytes = 4096) {
    auto buffer = TransferBuffer::Create(store_.get(), &budget_, "test", size_bytes, unit_bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }

  const TemporaryFolder folder_;
  MemoryBudget budget_{0};
  const std::shared_ptr<RegistrationLog> log_ = std::make_shared<RegistrationLog>();
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<TensorStore> store_;
};

TEST_F(TransferBufferTest, IsRegisteredAsLongAsItIsMapped) {
  {
    const TransferBuffer buffer = Make(65536);
    EXPECT_EQ(buffer.bytes().size(), 65536u);
    EXPECT_EQ(log_->registered_bytes(), 65536);
    EXPECT_EQ(budget_.used_bytes(), 65536);
  }
  EXPECT_EQ(log_->registered_bytes(), 0);
  EXPECT_EQ(budget_.used_bytes(), 0);
  EXPECT_EQ(log_->problem(), "");
}

TEST_F(TransferBufferTest, ThatIsReplacedEndsItsRegistrationBeforeItsMemoryGoes) {
  TransferBuffer buffer = Make(65536);
  TransferBuffer other = Make(4096);
  buffer = std::move(other);
  EXPECT_EQ(log_->registered_bytes(), 4096);
  EXPECT_EQ(buffer.bytes().size(), 4096u);
  buffer = TransferBuffer();
  EXPECT_EQ(log_->registered_bytes(), 0);
  EXPECT_EQ(log_->problem(), "");
}

TEST_F(TransferBufferTest, OfNoBytesIsEmpty) {
  EXPECT_TRUE(Make(0).bytes().empty());
}

TEST_F(TransferBufferTest, ThatIsNotRegisteredWorksAndTheEngineTells) {
  log_->refuse = [](std::span<std::byte>) { return ENOMEM; };
  const TransferBuffer buffer = Make(65536);
  EXPECT_THAT(engine_->RegistrationNote(), HasSubstr("1 MiB of buffers were not registered"));
  IoOp op;
  const auto weights =
      buffer.bytes().first(store_->tiles().WeightBytes(store_->tiles().tiles()[0]));
  store_->StartReadWeights(0, weights, IoClass::kDemand, op);
  EXPECT_TRUE(engine_->Wait(op).ok());
}

TEST_F(TransferBufferTest, BeyondTheBudgetIsAnErrorAndNothingIsRegistered) {
  MemoryBudget small(4096);
  const auto buffer = TransferBuffer::Create(store_.get(), &small, "test", 8192, 4096);
  EXPECT_EQ(ExitCodeOf(buffer.status()), ExitCode::kOutOfMemory);
  EXPECT_EQ(log_->most_registered_bytes(), 0);
}

TEST_F(TransferBufferTest, TheWindowReadsIntoRegisteredMemoryAlone) {
  Placement placement;
  const TileMap& tiles = store_->tiles();
  placement.weights = {Tier::kNvme, Tier::kNvme, Tier::kNvme, Tier::kHost};
  placement.state.assign(tiles.num_tiles(), Tier::kNvme);
  placement.gradients.assign(tiles.num_layers(), Tier::kHost);
  WindowOptions window;
  window.num_block_buffers = 2;
  window.first_block_layer = 1;
  window.last_block_layer = 2;
  const int64_t before = log_->num_outside();
  {
    auto swapper = Swapper::Create(window, placement, store_.get(), nullptr, &budget_);
    ASSERT_TRUE(swapper.ok()) << swapper.status();
    EXPECT_EQ(log_->registered_bytes(), budget_.used_bytes()) << "the window and what is resident";
    (*swapper)->Expect(std::vector<int>{0, 1, 2, 3, 2, 1, 0, 1, 2});
    for (const int layer : {0, 1, 2, 3}) {
      ASSERT_TRUE((*swapper)->Acquire(layer).ok());
      (*swapper)->Release(layer);
    }
    // The rest is read ahead when the swapper ends, or when it forgets them.
    (*swapper)->CancelExpected();
    (*swapper)->Expect(std::vector<int>{2, 1, 0});
  }
  EXPECT_GT(log_->num_inside(), 0);
  EXPECT_EQ(log_->num_outside(), before);
  EXPECT_EQ(log_->registered_bytes(), 0);
  EXPECT_EQ(log_->problem(), "");
}

}  // namespace
}  // namespace forebay
