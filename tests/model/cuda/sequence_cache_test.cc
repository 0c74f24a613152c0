// Keys and values that come from RAM to two places on a device, block by block.
#include "forebay/model/cuda_decoder/sequence_cache.h"

#include <vector>

#include "forebay/tests/device/device_fixture.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int kNumBlocks = 6;
constexpr int64_t kRowBytes = 16;
constexpr int64_t kFirstRow = 1;
constexpr int64_t kRowsOfPass = 2;
constexpr int kNumPasses = 4;

class SequenceCacheTest : public DeviceTest {
 protected:
  static std::byte ValueOf(int pass, int block, bool is_key) {
    return static_cast<std::byte>(1 + 2 * (pass * kNumBlocks + block) + (is_key ? 0 : 1));
  }
  static SequenceCache::Rows Added(int pass) {
    return {kFirstRow + pass * kRowsOfPass, kRowsOfPass};
  }
  // A block finds these behind its own rows of the pass.
  static std::vector<std::byte> Expected(int pass, int block, bool is_key) {
    std::vector<std::byte> rows;
    for (int before = 0; before <= pass; ++before) {
      rows.insert(rows.end(), kRowsOfPass * kRowBytes, ValueOf(before, block, is_key));
    }
    return rows;
  }
  // The block adds its rows, and reads all that there are.
  void Compute(SequenceCache& cache, Stream& stream, int pass, int block) {
    const auto place = cache.Use(block);
    ASSERT_TRUE(place.ok()) << place.status();
    for (const bool is_key : {true, false}) {
      std::byte* const rows = is_key ? place->keys : place->values;
      ASSERT_TRUE(stream
                      .Fill(rows + Added(pass).first * kRowBytes, ValueOf(pass, block, is_key),
                            kRowsOfPass * kRowBytes)
                      .ok());
      found_.emplace_back(Expected(pass, block, is_key).size());
      expected_.push_back(Expected(pass, block, is_key));
      ASSERT_TRUE(stream.CopyToHost(found_.back(), rows + kFirstRow * kRowBytes).ok());
    }
    ASSERT_TRUE(cache.End(block).ok());
  }

  std::vector<std::vector<std::byte>> found_, expected_;
};

TEST_P(SequenceCacheTest, GivesEachBlockItsOwnRows) {
  for (int in_ram = 0; in_ram <= kNumBlocks; ++in_ram) {
    MemoryBudget on_device(0), in_host(0);
    const SequenceCacheShape shape = {
        .num_blocks = kNumBlocks, .num_in_ram = in_ram, .row_bytes = kRowBytes, .block_bytes = 256};
    found_.clear();
    expected_.clear();
    found_.reserve(2 * kNumPasses * kNumBlocks);  // addresses stay
    const auto stream = MakeStream();
    const auto cache =
        SequenceCache::Create(shape, device_.get(), stream.get(), &on_device, &in_host);
    ASSERT_TRUE(cache.ok()) << cache.status();
    EXPECT_EQ(on_device.used_bytes(), shape.DeviceBytes());
    for (int pass = 0; pass < kNumPasses; ++pass) {
      ASSERT_TRUE((*cache)->BeginPass({{kFirstRow, pass * kRowsOfPass}}, {Added(pass)}).ok());
      for (int block = 0; block < kNumBlocks; ++block) Compute(**cache, *stream, pass, block);
    }
    ASSERT_TRUE(stream->Await().ok());
    EXPECT_EQ(found_, expected_) << in_ram;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, SequenceCacheTest,
                         testing::Values(DeviceKind::kHost, DeviceKind::kCuda), DeviceTestName);

}  // namespace
}  // namespace forebay
