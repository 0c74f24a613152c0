// What several folders are worth: training steps without the model (replay/) on one disk of a set
// speed, and on more of them, in turn:
//   build/bench_bin/stripes_bench FOLDER [MB/s of each disk] [rounds] [disks]
// The disks are simulated (aio/faults/limited_disk.h) in folders of FOLDER, best on tmpfs; store,
// queues, window and optimizer pipeline are those of a run. Prints the median seconds of a step for
// one disk and for each larger number, with their ratio; "2:1" are two disks of which one is half
// as fast, against one fast disk, whose best is 1.5.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/faults/limited_disk.h"
#include "forebay/base/errors.h"
#include "forebay/bench/positional_arguments.h"
#include "forebay/offload/create_store.h"
#include "forebay/replay/replay_inputs.h"
#include "forebay/replay/step_replay.h"

namespace forebay {
namespace {

struct Settings {
  std::string folder;
  double bytes_per_s = 0;
  int rounds = 0;
  int most_disks = 0;
};

// About 36 M parameters: blocks of four tiles, an embedding of eight.
Inventory ModelInventory() {
  constexpr int64_t kTile = kDefaultTileElems;
  Inventory inventory;
  inventory.BeginLayer("embed");
  inventory.Add("embed", {8, kTile}, 0, true);
  for (int block = 0; block < 7; ++block) {
    const std::string name = fmt::format("layers.{}", block);
    inventory.BeginLayer(name);
    inventory.Add(name + ".w", {4, kTile}, 0, true);
  }
  inventory.BeginLayer("head");
  inventory.Add("norm", {2048}, 0, false);
  return inventory;
}

void Require(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "stripes_bench: %s\n", MessageOf(status).c_str());
  std::exit(static_cast<int>(ExitCodeOf(status)));
}

// The seconds of one step on disks of these speeds.
double SecondsPerStep(const Settings& settings, const std::vector<double>& bytes_per_s) {
  std::vector<LimitedDisk> disks;
  std::vector<std::string> folders;
  std::vector<double> weights;
  for (size_t i = 0; i < bytes_per_s.size(); ++i) {
    const std::string folder = JoinPath(settings.folder, fmt::format("stripes_bench-{}", i));
    disks.push_back({folder, bytes_per_s[i]});
    folders.push_back(folder);
    weights.push_back(bytes_per_s[i] / settings.bytes_per_s);
  }
  const ReplayInputs inputs = {.inventory = ModelInventory(),
                               .loss_reads_first = true,
                               .stripe_weights = WeightsInProportion(weights)};
  const auto plan = PlanReplay(inputs);
  Require(plan.status());
  StoreOptions store_options = StoreOptionsOf(*plan, folders);
  store_options.unfilled = true;

  EngineOptions engine_options;
  engine_options.num_threads = 2 * static_cast<int>(disks.size());
  const auto engine =
      CreateThreadsEngine(engine_options, std::make_shared<LimitedDiskCalls>(disks));
  MemoryBudget no_limit(0);
  double seconds = 0;
  {
    auto store = TensorStore::Create(store_options, inputs.inventory, engine.get());
    Require(store.status());
    auto replay =
        StepReplay::Create(*plan, {.offload = inputs.offload}, *std::move(store), &no_limit);
    Require(replay.status());
    const auto never = [] { return false; };
    Require((*replay)->Start(never));
    Require((*replay)->RunStep(never).status());  // the window is as between any two steps after it
    const auto step = (*replay)->RunStep(never);
    Require(step.status());
    seconds = step->seconds;
  }
  Require(TensorStore::Remove(folders).status());
  return seconds;
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

int Run(const Settings& settings) {
  struct Setup {
    std::string name;
    std::vector<double> bytes_per_s;
    std::vector<double> seconds;
  };
  std::vector<Setup> setups;
  for (int disks = 1; disks <= settings.most_disks; ++disks) {
    setups.push_back({std::to_string(disks), std::vector(disks, settings.bytes_per_s), {}});
  }
  setups.push_back({"2:1", {settings.bytes_per_s, settings.bytes_per_s / 2}, {}});
  for (int round = 0; round < settings.rounds; ++round) {
    for (Setup& setup : setups) {
      setup.seconds.push_back(SecondsPerStep(settings, setup.bytes_per_s));
    }
  }
  const double one = Median(setups.front().seconds);
  std::printf("disks of %.0f MB/s, %d rounds\n", settings.bytes_per_s / 1e6, settings.rounds);
  for (const Setup& setup : setups) {
    std::printf("%-4s %.3f s (%.3f..%.3f)  %.2fx\n", setup.name.c_str(), Median(setup.seconds),
                std::ranges::min(setup.seconds), std::ranges::max(setup.seconds),
                one / Median(setup.seconds));
  }
  return 0;
}

}  // namespace
}  // namespace forebay

int main(int argc, char** argv) {
  std::vector<forebay::bench::Number> numbers = {
      {.name = "MB/s of each disk", .value = 200, .least = 1, .most = 1e6, .multiple_of = 0},
      {.name = "rounds", .value = 3, .least = 1, .most = 1000},
      {.name = "disks", .value = 3, .least = 1, .most = forebay::kMaxStripes}};
  forebay::Settings settings;
  settings.folder = forebay::bench::ParseFolderAndNumbers(argc, argv, numbers);
  settings.bytes_per_s = numbers[0].value * 1e6;
  settings.rounds = static_cast<int>(numbers[1].value);
  settings.most_disks = static_cast<int>(numbers[2].value);
  return forebay::Run(settings);
}
