// Sums of gradients, in places that are as large as the largest layers are.
#include <map>
#include <vector>

#include "forebay/base/counter_rng.h"
#include "forebay/offload/open_layers.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

// Layers of one tensor each, then a raw one.
Inventory InventoryOf(const std::vector<int64_t>& num_elems) {
  Inventory inventory;
  for (size_t i = 0; i < num_elems.size(); ++i) {
    inventory.BeginLayer("layer" + std::to_string(i));
    inventory.Add("tensor" + std::to_string(i), {num_elems[i]}, 0, true);
  }
  inventory.BeginRawLayer("raw");
  inventory.AddRaw("bytes", 1 << 20);
  return inventory;
}

std::vector<float> Values(int64_t num_elems, float value) {
  return std::vector<float>(static_cast<size_t>(num_elems), value);
}

TEST(OpenLayers, ALargeLayerTakesItsMemoryOnce) {
  const Inventory inventory = InventoryOf({1 << 20, 1000, 1000, 1000});
  const int64_t one = OpenLayers::ChargedBytes(inventory, 1);
  EXPECT_GE(one, int64_t{4} << 20);
  EXPECT_LT(OpenLayers::ChargedBytes(inventory, 3), one + one / 8);
}

// Any layers of any sizes, opened and closed in any order, keep their sums.
TEST(OpenLayers, SumsStayWhatTheyAreWhereverTheyAreMoved) {
  constexpr int kPlaces = 4;
  ThreadPool pool(1, "test");
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const CounterRng rng(seed);
    int64_t draws = 0;
    const auto below = [&](uint32_t bound) { return rng.Words(draws++)[0] % bound; };
    std::vector<int64_t> num_elems;
    for (int layer = 0; layer < 7; ++layer) num_elems.push_back(int64_t{1} << (4 + below(10)));
    const Inventory inventory = InventoryOf(num_elems);
    MemoryBudget budget(OpenLayers::ChargedBytes(inventory, kPlaces));
    const auto open = *OpenLayers::Create(&inventory, kPlaces, &budget);
    std::map<int, float> expected;
    for (int turn = 0; turn < 200; ++turn) {
      const int layer = static_cast<int>(below(7));
      const bool is_open = expected.contains(layer);
      EXPECT_EQ(open->IsOpen(layer), is_open);
      if (is_open && below(2) == 0) {
        open->Close(layer);
        expected.erase(layer);
        continue;
      }
      const auto value = static_cast<float>(1 + below(100));
      const std::vector<float> gradient = Values(num_elems[layer], value);
      const absl::Status status =
          open->Add(layer, DType::kF32, std::as_bytes(std::span(gradient)), pool);
      if (!is_open && expected.size() == kPlaces) {
        EXPECT_FALSE(status.ok());
        continue;
      }
      ASSERT_TRUE(status.ok()) << status;
      expected[layer] += value;
      for (const auto& [other, sum] : expected) {
        const auto found = open->SumOf(other);
        ASSERT_TRUE(found.ok());
        const float* const elems = found->elems.data();
        ASSERT_EQ(std::vector<float>(elems, elems + num_elems[other]),
                  Values(num_elems[other], sum))
            << "seed " << seed << ", turn " << turn << ", layer " << other;
      }
    }
  }
}

}  // namespace
}  // namespace forebay
