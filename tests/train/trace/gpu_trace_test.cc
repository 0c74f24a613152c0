// The rows of a GPU's streams in the trace of a run.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "forebay/device/device.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_config.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/faults/toy_run.h"
#include "forebay/tests/train/trace/trace_rows.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::SizeIs;

// To which a GPU knows the time.
constexpr int64_t kClockNs = 2000;

class PlanOfRun : public SilentObserver {
 public:
  void OnPlan(const std::string&, const Json& json) override { plan = json; }
  Json plan;
};

std::string LayerOf(const Span& span) {
  return span.args.value("layer", "");
}

// "forward", where the name is "forward layers.0".
std::string WorkOf(const Span& span) {
  const std::string layer = LayerOf(span);
  return layer.empty() ? span.name : span.name.substr(0, span.name.size() - layer.size() - 1);
}

std::vector<Span> Those(std::vector<Span> spans, const std::function<bool(const Span&)>& wanted) {
  std::erase_if(spans, [&](const Span& span) { return !wanted(span); });
  std::ranges::sort(spans, {}, &Span::begin_ns);
  return spans;
}

std::vector<Span> Those(std::vector<Span> spans, const std::string& work,
                        const std::string& layer) {
  return Those(std::move(spans),
               [&](const Span& span) { return WorkOf(span) == work && LayerOf(span) == layer; });
}

// How many slices there are of each work, layer and micro-batch.
std::map<std::tuple<std::string, std::string, int>, int> CountsOf(const std::vector<Span>& spans) {
  std::map<std::tuple<std::string, std::string, int>, int> counts;
  for (const Span& span : spans) {
    ++counts[{WorkOf(span), LayerOf(span), span.args.value("micro_batch", -1)}];
  }
  return counts;
}

// Each of `before` ends before the one of `after` at its place begins.
void ExpectInPairs(const std::vector<Span>& before, const std::vector<Span>& after) {
  ASSERT_EQ(before.size(), after.size());
  EXPECT_FALSE(before.empty());
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_LE(before[i].end_ns, after[i].begin_ns + kClockNs)
        << before[i].name << " and " << after[i].name;
  }
}

// The last of `before` that began before one of `after` has ended when that begins.
void ExpectBehindTheLast(const std::vector<Span>& before, const std::vector<Span>& after) {
  EXPECT_FALSE(after.empty());
  for (const Span& span : after) {
    const auto begun = [&](const Span& other) { return other.begin_ns < span.begin_ns; };
    const std::vector<Span> last = Those(before, begun);
    ASSERT_FALSE(last.empty()) << span.name;
    EXPECT_LE(last.back().end_ns, span.begin_ns + kClockNs) << span.name;
  }
}

class GpuTrace : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = CreateCudaDevice(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
  }

  TrainOptions OnGpu(const std::string& name) const { return OnGpu(task_, folder_.Path(name)); }
  static TrainOptions OnGpu(const ToyTask& task, const std::string& out) {
    TrainOptions options = task.TightRun(out);
    options.ram_bytes = int64_t{256} << 20;
    options.device = ComputeDevice::kCuda;
    return options;
  }
  // The rows of the run, whose result is that of one without a trace.
  TraceRows Traced(TrainOptions options) const {
    EXPECT_EQ(TrainToy(options), absl::OkStatus());
    const std::string untraced = options.out;
    options.out += "_traced";
    options.trace = options.out + ".json";
    EXPECT_EQ(TrainToy(options), absl::OkStatus());
    EXPECT_EQ(*ResultOf(options.out), *ResultOf(untraced));
    TraceRows rows = ReadTrace(options.trace);
    EXPECT_EQ(rows.num_dropped, 0);
    EXPECT_THAT(rows.Named("steps"), SizeIs(kToySteps - 1));
    ExpectGpuRowsAreStreams(rows);
    return rows;
  }
  // A row for each, whose slices follow one another.
  static void ExpectGpuRowsAreStreams(const TraceRows& rows) {
    std::set<std::string> names;
    for (auto [row, spans] : rows.spans) {
      const std::string& name = rows.names.at(row);
      if (!name.starts_with("GPU")) continue;
      EXPECT_TRUE(names.insert(name).second) << name;
      std::ranges::sort(spans, {}, &Span::begin_ns);
      for (size_t i = 1; i < spans.size(); ++i) {
        EXPECT_LE(spans[i - 1].end_ns, spans[i].begin_ns) << name;
      }
    }
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path()};
  Inventory inventory_ = BuildInventory(*ReadDecoderConfig(task_.TightRun("").model));
  std::string LayerName(int layer) const {
    return inventory_.layers()[static_cast<size_t>(layer)].name;
  }
  int num_layers() const { return inventory_.num_layers(); }
  std::vector<Span> Computed(const TraceRows& rows, const std::string& work, int layer,
                             int batch) const {
    return Those(rows.Named("GPU: compute"), [&](const Span& span) {
      return WorkOf(span) == work && LayerOf(span) == LayerName(layer) &&
             span.args["micro_batch"] == batch;
    });
  }
};

TEST_F(GpuTrace, HasASliceOfEachLayerAndMicroBatchInBothPasses) {
  const TraceRows rows = Traced(OnGpu("run"));
  std::map<std::tuple<std::string, std::string, int>, int> expected;
  constexpr int kNumSteps = kToySteps - 1;
  for (int batch = 0; batch < 2; ++batch) {
    expected[{"loss", LayerName(num_layers() - 1), batch}] = kNumSteps;
    for (int layer = 0; layer < num_layers() - 1; ++layer) {
      expected[{"forward", LayerName(layer), batch}] = kNumSteps;
      if (layer > 0) expected[{"recompute", LayerName(layer), batch}] = kNumSteps;
      expected[{"backward", LayerName(layer), batch}] = kNumSteps;
    }
  }
  const auto of_batches = [](const Span& span) { return span.args.contains("micro_batch"); };
  EXPECT_EQ(CountsOf(Those(rows.Named("GPU: compute"), of_batches)), expected);
}

TEST_F(GpuTrace, AGradientLeavesBehindItsLayersBackwardPass) {
  const TraceRows rows = Traced(OnGpu("run"));
  int64_t bytes = 0;
  for (const Span& span : rows.Named("GPU: gradients to RAM")) {
    bytes += span.args["bytes"].get<int64_t>();
  }
  // 2 B for each element.
  EXPECT_EQ(bytes, (kToySteps - 1) * 2 * inventory_.num_padded_elems());
  for (int layer = 0; layer < num_layers() - 1; ++layer) {
    ExpectInPairs(Computed(rows, "backward", layer, /*batch=*/1),
                  Those(rows.Named("GPU: gradients to RAM"), "gradient", LayerName(layer)));
  }
}

TEST_F(GpuTrace, WeightsAreThereBeforeALayerComputesWithThem) {
  const TraceRows rows = Traced(OnGpu("run"));
  const std::vector<Span> copies = rows.Named("GPU: weights to the GPU");
  for (int layer = 1; layer < num_layers() - 1; ++layer) {
    const std::vector<Span> there = Those(copies, "weights", LayerName(layer));
    // They come for each pass; both may use the same ones at the turn.
    EXPECT_GE(there.size(), static_cast<size_t>(kToySteps - 1)) << LayerName(layer);
    for (const char* const work : {"forward", "recompute", "backward"}) {
      ExpectBehindTheLast(there, Those(rows.Named("GPU: compute"), work, LayerName(layer)));
    }
  }
}

// With memory on the GPU for so few activations that two have to leave it.
void SpillTwo(TrainOptions& options) {
  PlanOfRun observer;
  options.dry_run = true;
  ASSERT_EQ(TrainToy(options, {}, observer), absl::OkStatus());
  const auto num_spilled = [&] {
    const Json& gpu = observer.plan["gpu"];
    return gpu["activations_in_ram"].get<int>() + gpu["activations_on_nvme"].get<int>();
  };
  while (num_spilled() < 2) {
    options.gpu_mem_bytes = observer.plan["gpu"]["bytes"].get<int64_t>() - 1;
    ASSERT_EQ(TrainToy(options, {}, observer), absl::OkStatus());
  }
  options.dry_run = false;
}

TEST_F(GpuTrace, ActivationsLeaveBehindTheirLayerAndComeBackBeforeTheNextOnes) {
  constexpr int kNumBlocks = 6, kSegment = 2;
  const TemporaryFolder folder;
  const ToyTask task(folder.path(), kNumBlocks);
  struct Way {
    ActivationsTier tier;
    int segment_layers;
  };
  inventory_ = BuildInventory(*ReadDecoderConfig(task.TightRun("").model));
  for (const auto& [tier, segment] : {Way{ActivationsTier::kRam, 1}, Way{ActivationsTier::kNvme, 1},
                                      Way{ActivationsTier::kRam, kSegment}}) {
    SCOPED_TRACE(testing::Message() << NameOf(tier) << segment);
    TrainOptions options =
        OnGpu(task, folder.Path(std::string(NameOf(tier)) + std::to_string(segment)));
    options.activations_tier = tier;
    if (segment > 1) options.number_checkpoints = kNumBlocks / segment;
    SpillTwo(options);
    const TraceRows rows = Traced(options);
    const std::vector<Span> copies = rows.Named("GPU: activations");
    for (const int layer : {0, segment}) {
      const std::vector<Span> left = Those(copies, "activation to RAM", LayerName(layer));
      const std::vector<Span> back = Those(copies, "activation to the GPU", LayerName(layer));
      ExpectInPairs(left, back);
      ExpectInPairs(back, Computed(rows, "recompute", layer + 1, /*batch=*/0));
      ExpectBehindTheLast(Computed(rows, "forward", layer, /*batch=*/1), left);
    }
    EXPECT_EQ(copies.size(), 2 * 2 * (kToySteps - 1));
  }
}

TEST_F(GpuTrace, UpdatesThereHaveRowsOfTheirCopies) {
  TrainOptions options = OnGpu("state");
  options.state_tier = TierChoice::kDevice;
  options.durability = Durability::kNone;
  const TraceRows rows = Traced(options);
  const auto of_tile = [&](const char* row, const char* work, int tile) {
    return Those(rows.Named(row), [=](const Span& span) {
      return WorkOf(span) == work && span.args.value("tile", -1) == tile;
    });
  };
  std::set<int> tiles;
  std::set<std::string> layers;
  for (const Span& span : rows.Named("GPU: updates")) {
    tiles.insert(span.args["tile"].get<int>());
    layers.insert(LayerOf(span));
  }
  EXPECT_THAT(layers, SizeIs(num_layers()));
  EXPECT_GT(tiles.size(), layers.size());
  for (const int tile : tiles) {
    const std::vector<Span> updates = of_tile("GPU: updates", "update", tile);
    ExpectInPairs(of_tile("GPU: to the updates", "weights and gradient", tile), updates);
    ExpectInPairs(updates, of_tile("GPU: from the updates", "weights", tile));
  }
}

TEST_F(GpuTrace, HoldsWhereUpdatesAreSpeculative) {
  TrainOptions options = OnGpu("speculative");
  options.gradients = GradientChoice::kSpeculate;
  options.state_tier = TierChoice::kDevice;
  options.clip = 1e-3;  // every step is computed twice
  const TraceRows rows = Traced(options);
  EXPECT_THAT(Those(rows.Named("GPU: compute"), "forward", LayerName(1)),
              SizeIs(2 * 2 * (kToySteps - 1)));
}

}  // namespace
}  // namespace forebay
