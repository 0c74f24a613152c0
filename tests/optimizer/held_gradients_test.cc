// Where gradients wait, for inventories that nobody would choose: what is announced is what is
// used.
#include "forebay/optimizer/held_gradients.h"

#include <algorithm>
#include <string>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

// Layers and tensors of awkward sizes, tiles that divide nothing, gradients anywhere.
struct RandomCase {
  explicit RandomCase(uint64_t seed) : rng(seed) {
    const int num_layers = 1 + Draw(6);
    for (int layer = 0; layer < num_layers; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      inventory.BeginLayer(name);
      const int num_tensors = 1 + Draw(5);
      for (int tensor = 0; tensor < num_tensors; ++tensor) {
        Shape shape = {1 + Draw(131)};
        if (Draw(2) == 0) shape.push_back(1 + Draw(97));
        inventory.Add(name + "." + std::to_string(tensor), shape, 0, Draw(2) == 0);
      }
      placement.gradients.push_back(Draw(3) == 0 ? Tier::kHost : Tier::kNvme);
    }
    tile_elems = kLayerAlignElems * (1 + Draw(5));
    is_bf16 = Draw(2) == 0;
    for (int stripes = 1 + Draw(3); stripes > 0; --stripes) stripe_weights.push_back(1 + Draw(3));
  }
  int Draw(int bound) { return static_cast<int>(rng.Below(num_drawn++, bound)); }
  int64_t elem_bytes() const { return is_bf16 ? 2 : 4; }

  const CounterRng rng;
  uint64_t num_drawn = 0;
  Inventory inventory;
  Placement placement;
  int64_t tile_elems = 0;
  bool is_bf16 = true;
  StripeWeights stripe_weights;
};

TEST(PlaceGradients, TilesLieInWholeBlocksWithoutOverlapsOrHolesUpToTheEnd) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const RandomCase random(seed);
    const TileMap tiles(random.inventory, Layout::kBf16, random.tile_elems, random.stripe_weights);
    const GradientPlaces places = PlaceGradients(random.placement, tiles, random.elem_bytes());
    StripeBytes area_end(random.stripe_weights.size());
    int64_t host_end = 0;
    for (int i = 0; i < tiles.num_tiles(); ++i) {
      const Tile& tile = tiles.tiles()[i];
      const bool spilled = random.placement.gradients[tile.layer] == Tier::kNvme;
      int64_t& end = spilled ? area_end[tile.stripe] : host_end;
      const int64_t begin = places.offset_bytes[i];
      const int64_t bytes = tile.num_elems * random.elem_bytes();
      ASSERT_EQ(begin, end);
      ASSERT_EQ(begin % kIoAlignBytes, 0);
      ASSERT_EQ(bytes % kIoAlignBytes, 0);
      end += bytes;
    }
    ASSERT_EQ(places.area_bytes, area_end);
    ASSERT_EQ(places.host_bytes, host_end);
  }
}

TEST(HeldGradients, GivesBackEveryGradientFromAnAreaOfExactlyTheAnnouncedSize) {
  const TemporaryFolder folder;
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 2});
  const AdamWArithmetic arithmetic{AdamWConfig()};
  ThreadPool pool(2);
  int num_spilled = 0;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    const RandomCase random(seed);
    const TileMap tiles(random.inventory, Layout::kBf16, random.tile_elems, random.stripe_weights);
    const GradientPlaces places = PlaceGradients(random.placement, tiles, random.elem_bytes());
    std::vector<std::string> directories;
    for (size_t i = 0; i < random.stripe_weights.size(); ++i) {
      directories.push_back(folder.Path(std::to_string(seed) + "-" + std::to_string(i)));
    }
    auto store = TensorStore::Create({.directories = directories,
                                      .stripe_weights = random.stripe_weights,
                                      .tile_elems = random.tile_elems,
                                      .gradient_area_bytes = places.area_bytes},
                                     random.inventory, engine.get());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ((*store)->gradient_area_bytes(), places.area_bytes);

    MemoryBudget budget(0);
    const int64_t tile_bytes = random.tile_elems * random.elem_bytes();
    auto staging = HostBuffer::Create(&budget, "staging", 3 * tile_bytes);
    ASSERT_TRUE(staging.ok());
    const auto held = HeldGradients::Create(
        random.is_bf16, random.placement, &arithmetic, store->get(), &budget,
        {staging->bytes().first(tile_bytes), staging->bytes().subspan(tile_bytes, tile_bytes)});
    ASSERT_TRUE(held.ok()) << held.status();
    EXPECT_EQ(budget.used_bytes(), 3 * tile_bytes + places.host_bytes);

    std::vector<std::vector<float>> gradients;
    for (int layer = 0; layer < random.inventory.num_layers(); ++layer) {
      std::vector<float>& gradient = gradients.emplace_back(tiles.layer_elems(layer));
      const LayerSpec& spec = random.inventory.layers()[layer];
      for (int i = 0; i < spec.num_tensors; ++i) {
        const TensorSpec& tensor = random.inventory.tensors()[spec.first_tensor + i];
        for (int64_t j = 0; j < tensor.num_elems; ++j) {
          const CounterRng values(seed, static_cast<uint64_t>(layer + 1));
          gradient[tensor.offset_elems + j] =
              static_cast<float>(values.Normal(static_cast<uint64_t>(tensor.offset_elems + j)));
        }
      }
      ASSERT_EQ((*held)->Hand(layer, gradient, pool), absl::OkStatus());
    }
    ASSERT_EQ((*held)->Finish(), absl::OkStatus());

    const std::span<std::byte> read = staging->bytes().subspan(2 * tile_bytes);
    for (int number = 0; number < tiles.num_tiles(); ++number) {
      const Tile& tile = tiles.tiles()[number];
      const std::byte* bytes = nullptr;
      if ((*held)->IsSpilled(tile.layer)) {
        IoOp op;
        (*held)->StartReadTile(number, read, op);
        ASSERT_EQ(engine->Wait(op), absl::OkStatus());
        bytes = read.data();
        ++num_spilled;
      } else {
        bytes = (*held)->HostTile(number);
      }
      for (int64_t i = 0; i < tile.num_elems; ++i) {
        const float expected = gradients[tile.layer][tile.first_elem + i];
        if (random.is_bf16) {
          ASSERT_EQ(reinterpret_cast<const Bf16*>(bytes)[i], FloatToBf16(expected)) << i;
        } else {
          ASSERT_EQ(reinterpret_cast<const float*>(bytes)[i], expected) << i;
        }
      }
    }
  }
  EXPECT_GT(num_spilled, 50);
}

}  // namespace
}  // namespace forebay
