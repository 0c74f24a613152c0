// Where gradients wait, for inventories that nobody would choose: what is announced is what is
// used.
#include "forebay/optimizer/held_gradients.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Layers and tensors of awkward sizes, tiles that divide nothing, gradients anywhere.
struct RandomCase {
  // `scale`: of tensors; tiles grow with it beyond what has one checksum.
  explicit RandomCase(uint64_t seed, int64_t scale = 1) : rng(seed) {
    const int num_layers = 1 + Draw(6);
    for (int layer = 0; layer < num_layers; ++layer) {
      const std::string name = "layers." + std::to_string(layer);
      inventory.BeginLayer(name);
      const int num_tensors = 1 + Draw(5);
      for (int tensor = 0; tensor < num_tensors; ++tensor) {
        Shape shape = {scale * (1 + Draw(131))};
        if (Draw(2) == 0) shape.push_back(1 + Draw(97));
        inventory.Add(name + "." + std::to_string(tensor), shape, 0, Draw(2) == 0);
      }
      placement.gradients.push_back(Draw(3) == 0 ? Tier::kHost : Tier::kNvme);
    }
    tile_elems = scale * scale * kLayerAlignElems * (1 + Draw(5));
    dtype = std::array{DType::kBF16, DType::kF16, DType::kF32}[Draw(3)];
    for (int stripes = 1 + Draw(3); stripes > 0; --stripes) stripe_weights.push_back(1 + Draw(3));
  }
  int Draw(int bound) { return static_cast<int>(rng.Below(num_drawn++, bound)); }
  int64_t elem_bytes() const { return SizeOf(dtype); }

  const CounterRng rng;
  uint64_t num_drawn = 0;
  Inventory inventory;
  Placement placement;
  int64_t tile_elems = 0;
  DType dtype = DType::kBF16;
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
      const int64_t bytes = tile.num_elems * random.elem_bytes();
      ASSERT_EQ(bytes % kIoAlignBytes, 0);
      const auto expect_next = [&](bool is_there, int64_t begin, int64_t& end) {
        ASSERT_EQ(begin, is_there ? end : -1);
        if (!is_there) return;
        ASSERT_EQ(begin % kIoAlignBytes, 0);
        end += bytes;
      };
      expect_next(!spilled, places.host_offset_bytes[i], host_end);
      expect_next(spilled, places.area_offset_bytes[i], area_end[tile.stripe]);
    }
    ASSERT_EQ(places.area_bytes, area_end);
    ASSERT_EQ(places.host_bytes, host_end);
  }
}

// Gradients of one random case in a store of its own.
struct HeldCase {
  explicit HeldCase(uint64_t case_seed, int64_t scale = 1)
      : seed(case_seed),
        random(case_seed, scale),
        tiles(random.inventory, Layout::kBf16, random.tile_elems, random.stripe_weights),
        places(PlaceGradients(random.placement, tiles, random.elem_bytes())),
        tile_bytes(random.tile_elems * random.elem_bytes()) {
    for (size_t i = 0; i < random.stripe_weights.size(); ++i) {
      directories.push_back(folder.Path(std::to_string(i)));
    }
  }

  void MakeStore() {
    auto made = TensorStore::Create({.directories = directories,
                                     .stripe_weights = random.stripe_weights,
                                     .tile_elems = random.tile_elems,
                                     .scratch_bytes = places.area_bytes},
                                    random.inventory, engine.get());
    ASSERT_TRUE(made.ok()) << made.status();
    store = *std::move(made);
    ASSERT_EQ(store->scratch_bytes(), places.area_bytes);
    auto memory = HostBuffer::Create(&budget, "staging", 3 * tile_bytes);
    ASSERT_TRUE(memory.ok());
    staging = *std::move(memory);
    for (int layer = 0; layer < random.inventory.num_layers(); ++layer) MakeGradient(layer);
  }
  void MakeGradient(int layer) {
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
  }

  std::unique_ptr<HeldGradients> MakeHeld() {
    auto held = HeldGradients::Create(
        random.dtype, random.placement, &arithmetic, store.get(), &budget,
        {staging.bytes().first(tile_bytes), staging.bytes().subspan(tile_bytes, tile_bytes)});
    EXPECT_TRUE(held.ok()) << held.status();
    return *std::move(held);
  }
  void HandAll(HeldGradients& held) {
    for (int layer = 0; layer < random.inventory.num_layers(); ++layer) {
      ASSERT_EQ(held.Hand(Fp32Gradient(layer, gradients[layer]), pool), absl::OkStatus());
    }
    ASSERT_EQ(held.Finish(), absl::OkStatus());
  }

  void HandAllInParts(HeldGradients& held, int64_t part_blocks) {
    for (int layer = 0; layer < random.inventory.num_layers(); ++layer) {
      const std::span<const float> whole = gradients[layer];
      for (size_t first = 0; first < whole.size();) {
        const auto size = static_cast<size_t>(part_blocks++ % 7 * kNormBlockElems);
        const auto part = whole.subspan(first, std::min(whole.size() - first, size));
        ASSERT_EQ(held.Hand(Fp32Gradient(layer, part, static_cast<int64_t>(first)), pool),
                  absl::OkStatus());
        first += part.size();
      }
    }
    ASSERT_EQ(held.Finish(), absl::OkStatus());
  }

  // How many tiles were read from the area.
  void ExpectHolds(const HeldGradients& held, int& num_spilled) {
    const std::span<std::byte> read = staging.bytes().subspan(2 * tile_bytes);
    for (int number = 0; number < tiles.num_tiles(); ++number) {
      const Tile& tile = tiles.tiles()[number];
      const std::byte* bytes = nullptr;
      if (held.IsSpilled(tile.layer)) {
        IoOp op;
        held.StartReadTile(number, read, op);
        ASSERT_EQ(engine->Wait(op), absl::OkStatus());
        bytes = read.data();
        for (int64_t part = 0; part < NumSealParts(tile); ++part) {
          ASSERT_EQ(held.VerifyPart(number, part, read), absl::OkStatus());
        }
        ++num_spilled;
      } else {
        bytes = held.HostTile(number);
      }
      for (int64_t i = 0; i < tile.num_elems; ++i) {
        const float expected = gradients[tile.layer][tile.first_elem + i];
        if (random.dtype == DType::kF32) {
          ASSERT_EQ(reinterpret_cast<const float*>(bytes)[i], expected) << i;
        } else {
          const bool is_fp16 = random.dtype == DType::kF16;
          ASSERT_EQ(reinterpret_cast<const uint16_t*>(bytes)[i],
                    is_fp16 ? FloatToFp16(expected) : FloatToBf16(expected))
              << i;
        }
      }
    }
  }

  const uint64_t seed;
  const RandomCase random;
  const TileMap tiles;
  const GradientPlaces places;
  const int64_t tile_bytes;
  const TemporaryFolder folder;
  std::vector<std::string> directories;
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 2});
  const RuleArithmetic arithmetic{OptimizerConfig()};
  ThreadPool pool{2};
  MemoryBudget budget{0};
  std::unique_ptr<TensorStore> store;
  HostBuffer staging;
  std::vector<std::vector<float>> gradients;
};

TEST(HeldGradients, GivesBackEveryGradientFromAnAreaOfExactlyTheAnnouncedSize) {
  int num_spilled = 0;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    HeldCase c(seed);
    c.MakeStore();
    const auto held = c.MakeHeld();
    EXPECT_EQ(c.budget.used_bytes(),
              3 * c.tile_bytes + c.places.host_bytes + GradientSeals::TableBytes(c.tiles));
    c.HandAll(*held);
    c.ExpectHolds(*held, num_spilled);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(num_spilled, 50);
}

TEST(HeldGradients, AreTheSameWhereTheyComeInParts) {
  int num_spilled = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    HeldCase c(seed, /*scale=*/seed % 2 == 0 ? 1 : 5);
    c.MakeStore();
    const auto whole = c.MakeHeld();
    c.HandAll(*whole);
    const auto held = c.MakeHeld();
    // A pass that ends in the midst of a layer leaves nothing behind.
    const std::span<const float> first = c.gradients[0];
    ASSERT_EQ(held->Hand(Fp32Gradient(0, first.first(kNormBlockElems)), c.pool), absl::OkStatus());
    held->Abandon();
    c.HandAllInParts(*held, static_cast<int64_t>(seed));
    c.ExpectHolds(*held, num_spilled);
    for (int layer = 0; layer < c.random.inventory.num_layers(); ++layer) {
      EXPECT_EQ(held->sum_of_squares(layer), whole->sum_of_squares(layer)) << layer;
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(num_spilled, 20);
}

TEST(HeldGradients, ThatAreNotWhatWasWrittenAreFoundOut) {
  int num_damaged = 0;
  for (uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    HeldCase c(seed);
    c.MakeStore();
    const auto held = c.MakeHeld();
    c.HandAll(*held);
    const int number = static_cast<int>(c.random.rng.Below(7, c.tiles.num_tiles()));
    const Tile& tile = c.tiles.tiles()[number];
    if (!held->IsSpilled(tile.layer)) continue;
    ++num_damaged;
    const auto elem = static_cast<int64_t>(c.random.rng.Below(8, tile.num_elems));
    const std::string path = JoinPath(c.directories[tile.stripe], "gradients.fbs");
    const int64_t offset = c.places.area_offset_bytes[number] + elem * c.random.elem_bytes();
    const auto fd = OpenFile(path, O_RDWR);
    ASSERT_TRUE(fd.ok()) << fd.status();
    std::array<std::byte, 1> byte;
    ASSERT_TRUE(PreadAll(fd->get(), byte, offset, path).ok());
    byte[0] ^= std::byte{4};
    ASSERT_TRUE(PwriteAll(fd->get(), byte, offset, path).ok());
    const std::span<std::byte> read = c.staging.bytes().subspan(2 * c.tile_bytes);
    IoOp op;
    held->StartReadTile(number, read, op);
    ASSERT_EQ(c.engine->Wait(op), absl::OkStatus());
    for (int64_t part = 0; part < NumSealParts(tile); ++part) {
      const absl::Status status = held->VerifyPart(number, part, read);
      if (part != elem / kSealElems) {
        EXPECT_EQ(status, absl::OkStatus()) << part;
        continue;
      }
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
      const std::string& layer = c.random.inventory.layers()[tile.layer].name;
      EXPECT_THAT(MessageOf(status),
                  AllOf(HasSubstr("'" + path + "'"), HasSubstr("layer '" + layer + "'")));
    }
  }
  EXPECT_GT(num_damaged, 5);
}

}  // namespace
}  // namespace forebay
