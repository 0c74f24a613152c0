// Sums of gradients, in places that are as large as the largest layers are.
#include <cstring>
#include <map>
#include <vector>

#include "forebay/base/bfloat16.h"
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

// So many elements of one value, which has few bits.
std::vector<std::byte> Values(int64_t num_elems, float value, DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(num_elems * SizeOf(dtype)));
  for (int64_t i = 0; i < num_elems; ++i) {
    const Bf16 half = FloatToBf16(value);
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + i * 4, &value, 4);
    } else {
      std::memcpy(bytes.data() + i * 2, &half, 2);
    }
  }
  return bytes;
}

std::vector<std::byte> BytesOf(const LayerGradient& sum, int64_t num_elems) {
  const auto end = static_cast<ptrdiff_t>(num_elems * SizeOf(sum.dtype));
  return {sum.bytes.begin(), sum.bytes.begin() + end};
}

TEST(OpenLayers, ALargeLayerTakesItsMemoryOnce) {
  const Inventory inventory = InventoryOf({1 << 20, 1000, 1000, 1000});
  const int64_t one = OpenLayers::ChargedBytes(inventory, 1);
  EXPECT_GE(one, int64_t{4} << 20);
  EXPECT_LT(OpenLayers::ChargedBytes(inventory, 3), one + one / 8);
}

// Any layers of any sizes, opened and closed in any order, keep their sums. What came once, in the
// type that it is handed over in, has that type.
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
    const auto open = *OpenLayers::Create(&inventory, kPlaces, DType::kBF16, &budget);
    struct Expected {
      float sum = 0;
      DType dtype = DType::kBF16;
    };
    std::map<int, Expected> expected;
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
      const DType dtype = below(3) == 0 ? DType::kF32 : DType::kBF16;
      const absl::Status status =
          open->Add(layer, dtype, Values(num_elems[layer], value, dtype), pool);
      if (!is_open && expected.size() == kPlaces) {
        EXPECT_FALSE(status.ok());
        continue;
      }
      ASSERT_TRUE(status.ok()) << status;
      expected[layer].sum += value;
      expected[layer].dtype = is_open ? DType::kF32 : dtype;
      for (const auto& [other, of] : expected) {
        const auto found = open->SumOf(other);
        ASSERT_TRUE(found.ok());
        ASSERT_EQ(found->dtype, of.dtype);
        ASSERT_EQ(BytesOf(*found, num_elems[other]), Values(num_elems[other], of.sum, of.dtype))
            << "seed " << seed << ", turn " << turn << ", layer " << other;
      }
    }
  }
}

// Behind the first of another type, all of the layer has fp32 sums; what got none is zero.
TEST(OpenLayers, TypesOfOneLayerMayDiffer) {
  for (const DType handed : {DType::kBF16, DType::kF16}) {
    for (const DType first : {handed, DType::kF32}) {
      Inventory inventory;
      inventory.BeginLayer("layer");
      for (const char* const name : {"a", "b", "missing"}) inventory.Add(name, {1000}, 0, true);
      ThreadPool pool(1, "test");
      MemoryBudget budget(OpenLayers::ChargedBytes(inventory, 1));
      const auto open = *OpenLayers::Create(&inventory, 1, handed, &budget);
      const DType second = first == handed ? DType::kF32 : handed;
      // 2 of bfloat16 and of fp16 is one pattern of bits.
      const auto values = [](DType dtype) {
        return Values(1000, dtype == DType::kF32 ? 3 : 2, dtype);
      };
      for (int round = 0; round < 2; ++round) {
        ASSERT_TRUE(open->Add(0, first, values(first), pool).ok());
        ASSERT_TRUE(open->Add(1, second, values(second), pool).ok());
        const auto sum = open->SumOf(0);
        ASSERT_TRUE(sum.ok());
        ASSERT_EQ(sum->dtype, DType::kF32);
        const float expected[] = {first == DType::kF32 ? 3.0f : 2.0f,
                                  second == DType::kF32 ? 3.0f : 2.0f, 0.0f};
        for (size_t tensor = 0; tensor < 3; ++tensor) {
          const TensorSpec& spec = inventory.tensors()[tensor];
          for (int64_t i = 0; i < spec.num_elems; ++i) {
            ASSERT_EQ(sum->floats()[static_cast<size_t>(spec.offset_elems + i)], expected[tensor]);
          }
        }
        open->Close(0);
      }
    }
  }
}

}  // namespace
}  // namespace forebay
