// The optimizer step of a model whose state lies on a disk, beside its two limits, in turn:
//   build/bench_bin/out_of_core_bench FOLDER [MB/s of the disk; 0: the real one] [rounds] [threads]
// - the disk alone: the same reads, writes and checksums with nothing computed;
// - the CPU alone: the same update with everything in RAM, which needs no checksums.
// A disk of a set speed is simulated (aio/faults/limited_disk.h) in FOLDER, best on tmpfs. Layers
// come through window and staging as in a run's forward pass. Prints medians; what the step takes
// over the larger limit; what its checksums cost it, as a step that takes each of them once more
// tells, and what they take on the same threads with nothing beside; and what the process held
// beside the buffers that it was given.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "fmt/format.h"
#include "forebay/aio/faults/limited_disk.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/bench/positional_arguments.h"
#include "forebay/memory/process_memory.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/replay/no_arithmetic.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/window/swapper.h"

namespace forebay {
namespace {

struct Settings {
  std::string folder;
  double bytes_per_s = 0;  // 0: the real disk
  int rounds = 0;
  int num_threads = 0;
};

constexpr int kNumLayers = 16;
constexpr int64_t kTilesPerLayer = 6;
constexpr int64_t kStagingTiles = 6;

// 96 M parameters in layers of six tiles.
Inventory ModelInventory() {
  Inventory inventory;
  for (int layer = 0; layer < kNumLayers; ++layer) {
    const std::string name = fmt::format("layers.{}", layer);
    inventory.BeginLayer(name);
    inventory.Add(name + ".w", {kTilesPerLayer, kDefaultTileElems}, 0, true);
  }
  return inventory;
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "out_of_core_bench: %s\n", MessageOf(status).c_str());
  std::exit(static_cast<int>(ExitCodeOf(status)));
}
template <typename T>
T Required(absl::StatusOr<T> value) {
  Require(value.status());
  return *std::move(value);
}

// The update, and once more the checksums of a part: of what was read, and of what is written.
class HashedOnceMore : public TileArithmetic {
 public:
  void Update(const UpdateScalars& scalars, const TileRun& run) const override {
    HashAll(run);
    rule_.Update(scalars, run);
    HashAll(run);
  }

 private:
  static void Hash(const void* plane, int64_t bytes) {
    benchmark::DoNotOptimize(
        Xxh3_64({static_cast<const std::byte*>(plane), static_cast<size_t>(bytes)}));
  }
  static void HashAll(const TileRun& run) {  // of the layout bf16
    Hash(run.weight, run.num_elems * 2);
    Hash(run.remainder, run.num_elems * 2);
    Hash(run.m, run.num_elems * 4);
    Hash(run.v, run.num_elems * 4);
  }

  const RuleArithmetic rule_{OptimizerConfig{}};
};

Placement PlacementIn(Tier tier, const TileMap& tiles) {
  Placement placement;
  placement.weights.assign(kNumLayers, tier);
  placement.state.assign(tiles.num_tiles(), tier);
  placement.gradients.assign(kNumLayers, Tier::kHost);
  return placement;
}

// One store, and steps on it.
class Contender {
 public:
  // `gradient`: of every layer; must outlive it, as `engine` and `arithmetic` must.
  Contender(const Settings& settings, Engine* engine, std::span<const float> gradient,
            const std::string& name, Tier tier, const TileArithmetic* arithmetic)
      : tier_(tier), gradient_(gradient), pool_(settings.num_threads, "bench") {
    StoreOptions options;
    options.directories = {JoinPath(settings.folder, "out_of_core_bench-" + name)};
    options.unfilled = true;
    directories_ = options.directories;
    store_ = Required(TensorStore::Create(options, ModelInventory(), engine));
    placement_ = PlacementIn(tier, store_->tiles());
    OffloadedOptimizerOptions optimizer;
    optimizer.arithmetic = arithmetic;
    optimizer.num_threads = settings.num_threads;
    optimizer.num_staging_tiles = kStagingTiles;
    optimizer_ =
        Required(OffloadedOptimizer::Create(optimizer, placement_, store_.get(), &budget_));
    WindowOptions window;
    window.first_block_layer = 0;
    window.last_block_layer = kNumLayers - 1;
    swapper_ =
        Required(Swapper::Create(window, placement_, store_.get(), optimizer_.get(), &budget_));
    for (int layer = 0; layer < kNumLayers; ++layer) order_.push_back(layer);
  }
  ~Contender() {
    swapper_.reset();
    optimizer_.reset();
    store_.reset();
    TensorStore::Remove(directories_).IgnoreError();
  }

  double SecondsOfStep() {
    ++step_;
    for (int layer = kNumLayers - 1; layer >= 0; --layer) {
      Require(optimizer_->Hand(Fp32Gradient(layer, gradient_), pool_));
    }
    Require(optimizer_->FinishBackward().status());
    const bool on_disk = tier_ == Tier::kNvme;
    if (on_disk) Require(store_->BeginWriting());
    const Stopwatch watch;
    Require(optimizer_->BeginUpdate({.step = step_, .lr = 1e-9},
                                    on_disk ? ResidentWrites::kNow : ResidentWrites::kDeferred));
    swapper_->Expect(order_);
    for (const int layer : order_) {
      Require(swapper_->Acquire(layer).status());
      swapper_->Release(layer);
    }
    Require(optimizer_->AwaitAllWrites());
    const double seconds = watch.Seconds();
    if (on_disk) Require(store_->Commit({.step = step_, .trainer = Json::object()}));
    return seconds;
  }
  const TileMap& tiles() const { return store_->tiles(); }
  int64_t pool_bytes() const { return budget_.peak_bytes(); }

 private:
  const Tier tier_;
  const std::span<const float> gradient_;
  ThreadPool pool_;
  MemoryBudget budget_{0};
  std::vector<std::string> directories_;
  std::unique_ptr<TensorStore> store_;
  Placement placement_;
  std::unique_ptr<OffloadedOptimizer> optimizer_;
  std::unique_ptr<Swapper> swapper_;  // ends before the optimizer that it calls
  std::vector<int> order_;
  int64_t step_ = 0;
};

// Of as many bytes as a step verifies (its state) and takes (state and weights), in the pieces that
// have a checksum each and from the cache, as the update leaves them there.
double SecondsOfChecksums(int64_t bytes, int num_threads) {
  constexpr int64_t kPartBytes = kSealElems * 4;
  ThreadPool pool(num_threads, "bench");
  std::vector<std::vector<std::byte>> parts(static_cast<size_t>(num_threads),
                                            std::vector<std::byte>(kPartBytes));
  const Stopwatch watch;
  pool.ParallelForWithThread(bytes / kPartBytes, [&](int64_t task, int thread) {
    std::vector<std::byte>& part = parts[static_cast<size_t>(thread)];
    part[0] = static_cast<std::byte>(Xxh3_64(part) + static_cast<uint64_t>(task));
  });
  return watch.Seconds();
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}
std::string Text(const std::vector<double>& values, double scale, const char* unit) {
  return fmt::format("{:.3f} {} ({:.3f}..{:.3f})", Median(values) * scale, unit,
                     std::ranges::min(values) * scale, std::ranges::max(values) * scale);
}

std::unique_ptr<Engine> MakeEngine(const Settings& settings) {
  if (settings.bytes_per_s == 0) {
    return Required(OpenEngine({}, {settings.folder})).engine;
  }
  EngineOptions options;
  options.num_threads = 2;
  return CreateThreadsEngine(options, std::make_shared<LimitedDiskCalls>(std::vector<LimitedDisk>{
                                          {settings.folder, settings.bytes_per_s}}));
}

int Run(const Settings& settings) {
  const std::unique_ptr<Engine> engine = MakeEngine(settings);
  const NoArithmetic nothing;
  const std::vector<float> gradient(kTilesPerLayer * kDefaultTileElems, 1e-4f);
  const HashedOnceMore hashed_once_more;
  std::vector<double> step_s, disk_s, cpu_s, more_s, checksum_s, over, cost;
  int64_t beside_bytes = 0;
  int64_t pool_bytes = 0, state_bytes = 0, moved_bytes = 0;
  {
    // First, while the process has held nothing else.
    const int64_t before_bytes = ReadProcessMemory().peak_bytes;
    Contender step(settings, engine.get(), gradient, "step", Tier::kNvme, nullptr);
    step.SecondsOfStep();
    pool_bytes = step.pool_bytes();
    beside_bytes = ReadProcessMemory().peak_bytes - before_bytes - pool_bytes;
    const TileMap& tiles = step.tiles();
    state_bytes = tiles.state_area_bytes() + tiles.weight_area_bytes();
    moved_bytes = 2 * state_bytes;
  }
  Contender step(settings, engine.get(), gradient, "step", Tier::kNvme, nullptr);
  Contender disk(settings, engine.get(), gradient, "disk", Tier::kNvme, &nothing);
  Contender cpu(settings, engine.get(), gradient, "cpu", Tier::kHost, nullptr);
  Contender more(settings, engine.get(), gradient, "more", Tier::kNvme, &hashed_once_more);
  for (Contender* contender : {&step, &disk, &cpu, &more}) contender->SecondsOfStep();
  std::array<int, 3> turns = {0, 1, 2};
  for (int round = 0; round < settings.rounds; ++round) {
    for (const int turn : turns) {
      if (turn == 0) step_s.push_back(step.SecondsOfStep());
      if (turn == 1) disk_s.push_back(disk.SecondsOfStep());
      if (turn == 2) more_s.push_back(more.SecondsOfStep());
    }
    // A disk may be faster after a pause, and each has this one behind it as often as the others.
    std::ranges::next_permutation(turns);
    cpu_s.push_back(cpu.SecondsOfStep());
    checksum_s.push_back(SecondsOfChecksums(moved_bytes, settings.num_threads));
    over.push_back(step_s.back() / std::max(disk_s.back(), cpu_s.back()));
    cost.push_back(more_s.back() / step_s.back() - 1);
  }
  fmt::print("{} parameters, {:.0f} MB of weights and state, {:.0f} MB of buffers\n",
             kNumLayers * kTilesPerLayer * kDefaultTileElems,
             static_cast<double>(state_bytes) * 1e-6, static_cast<double>(pool_bytes) * 1e-6);
  fmt::print("step        {}\n", Text(step_s, 1, "s"));
  fmt::print("disk alone  {}\n", Text(disk_s, 1, "s"));
  fmt::print("CPU alone   {}\n", Text(cpu_s, 1, "s"));
  fmt::print("step over the larger of both   {}\n", Text(over, 1, "x"));
  fmt::print("checksums once more            {}\n", Text(cost, 100, "% of the step"));
  fmt::print("checksums by themselves        {:.1f} % of the step, as work of all threads\n",
             100 * Median(checksum_s) / Median(step_s));
  fmt::print("memory beside the buffers      {:.1f} MiB\n",
             static_cast<double>(beside_bytes) / 1048576.0);
  return 0;
}

}  // namespace
}  // namespace forebay

int main(int argc, char** argv) {
  std::vector<forebay::bench::Number> numbers = {
      {.name = "MB/s of the disk; 0: the real one",
       .value = 0,
       .least = 0,
       .most = 1e6,
       .multiple_of = 0},
      {.name = "rounds", .value = 9, .least = 1, .most = 1000},
      {.name = "threads", .value = 2, .least = 1, .most = 256}};
  forebay::Settings settings;
  settings.folder = forebay::bench::ParseFolderAndNumbers(argc, argv, numbers);
  settings.bytes_per_s = numbers[0].value * 1e6;
  settings.rounds = static_cast<int>(numbers[1].value);
  settings.num_threads = static_cast<int>(numbers[2].value);
  return forebay::Run(settings);
}
