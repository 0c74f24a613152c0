#include "forebay/train/plan/forecast.h"

#include <algorithm>
#include <array>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "forebay/train/plan/updates_behind.h"

namespace forebay {
namespace {

// As measured (docs/performance.md, "Plans beside steps"): of the shorter of computation and disk,
// what the longer does not hide on a CPU; of that what it hides after all where nobody waits for
// the state, as all of it has room in staging or is updated beside the backward pass; and how often
// the bytes of transfers go through memory for their checksums and in the kernel.
constexpr double kNotHiddenOnCpu = 0.45;
constexpr double kHiddenAhead = 0.5;
constexpr double kPassesOverTransfers = 3;
// A layer that comes from the disk takes so long on a CPU beside its bytes: threads wait for each
// other. It shows in steps of a tenth of a second.
constexpr double kSecondsOfARead = 0.5e-3;
constexpr int kLeastStagingTiles = StepBuffers().num_staging_tiles;

using Part = std::pair<Bound, double>;

std::array<Part, 4> PartsOf(const PassForecast& pass) {
  return {Part{Bound::kCompute, pass.compute_s}, Part{Bound::kDisk, pass.disk_s},
          Part{Bound::kMemory, pass.memory_s}, Part{Bound::kBus, pass.bus_s}};
}

Part LongestOf(const PassForecast& pass) {
  return std::ranges::max(PartsOf(pass), {}, &Part::second);
}

// Bytes of RAM that updates read and write: weights and state both ways, gradients once. Disks and
// devices copy to and from RAM besides. An update on a GPU has weights cross the bus both ways, and
// gradients once.
struct UpdateBytes {
  double on_cpu = 0;
  double on_gpu = 0;
  double to_gpu = 0;  // of the bus, in the direction that has more
};
UpdateBytes UpdateBytesOf(const OffloadPlan& plan, const TrainOptions& options) {
  UpdateBytes bytes;
  const std::vector<Tier>& tiers = plan.placement.state;
  size_t i = 0;
  for (const Tile& tile : plan.tiles.streamed_tiles()) {
    const auto weights = static_cast<double>(plan.tiles.WeightBytes(tile));
    const auto gradient = static_cast<double>(tile.num_elems * SizeOf(options.grad_dtype));
    if (tiers[i++] == Tier::kDevice) {
      bytes.on_gpu += 2 * weights + gradient;
      bytes.to_gpu += weights + gradient;
    } else {
      bytes.on_cpu += 2 * (weights + static_cast<double>(plan.tiles.StateBytes(tile))) + gradient;
    }
  }
  return bytes;
}

double ShareUpdatedInBackward(const OffloadPlan& plan) {
  int64_t all = 0, in_backward = 0;
  for (const Tile& tile : plan.tiles.streamed_tiles()) {
    all += tile.num_elems;
    if (plan.placement.UpdateTimeOf(tile.layer) != UpdateTime::kOnRead) {
      in_backward += tile.num_elems;
    }
  }
  return all == 0 ? 0 : static_cast<double>(in_backward) / static_cast<double>(all);
}

class Forecaster {
 public:
  Forecaster(const OffloadPlan& plan, const GpuUse& gpu, const DecoderFlops& flops,
             const DecoderConfig& model, const TrainOptions& options, const MachineSpeeds& speeds)
      : plan_(plan),
        gpu_(gpu),
        options_(options),
        speeds_(speeds),
        tokens_(options.data_parallel * options.batch * options.accum * options.seq),
        flops_(flops),
        hidden_size_(model.hidden_size),
        inventory_(gpu.computes ? BuildInventory(model) : Inventory()) {}

  StepForecast Make() const {
    StepForecast forecast;
    const double in_backward = ShareUpdatedInBackward(plan_);
    forecast.forward = Pass(flops_.forward, plan_.forward_io_s);
    forecast.backward = Pass(flops_.backward, plan_.backward_io_s);
    AddBus(forecast);
    AddUpdates(1 - in_backward, forecast.forward);
    AddUpdates(in_backward, forecast.backward);
    const std::array<PassForecast*, 2> passes = {&forecast.forward, &forecast.backward};
    if (!gpu_.computes) {
      for (PassForecast* pass : passes) AddWorkBesideOnCpu(*pass);
    }
    if (in_backward == 0) MoveStagedTransfers(forecast);
    const double early_s = in_backward == 1 ? MoveEarlyReads(forecast) : 0;
    const double not_hidden =
        kNotHiddenOnCpu * (1 - kHiddenAhead * std::max(StagedShare(), in_backward));
    for (PassForecast* pass : passes) {
      if (gpu_.computes) continue;
      pass->not_hidden_s = not_hidden * std::min(pass->compute_s, pass->disk_s);
    }
    if (!gpu_.computes) AddWaits(forecast);
    const double behind_s = gpu_.computes ? 0 : UpdatesBehind(forecast.backward, early_s);
    if (behind_s > 0) {
      PassForecast& pass = forecast.backward;
      const double with_them_s = pass.compute_s + behind_s - LongestOf(pass).second;
      pass.not_hidden_s = std::max(pass.not_hidden_s, with_them_s);
    }
    PassForecast all = forecast.forward;
    all += forecast.backward;
    std::tie(forecast.bound, forecast.bound_s) = LongestOf(all);
    forecast.step_s = forecast.forward.Seconds() + forecast.backward.Seconds();
    forecast.tokens_per_s = static_cast<double>(tokens_) / forecast.step_s;
    return forecast;
  }

 private:
  PassForecast Pass(double flops, double disk_s) const {
    return {.compute_s = flops / speeds_.matmul_flops_per_s, .disk_s = disk_s};
  }

  // Of a share of the parameters. A CPU that updates does not compute.
  void AddUpdates(double share, PassForecast& pass) const {
    const UpdateBytes bytes = UpdateBytesOf(plan_, options_);
    const double seconds = share * bytes.on_cpu / speeds_.memory_bytes_per_s;
    pass.memory_s += seconds + share * bytes.on_gpu / speeds_.memory_bytes_per_s;
    if (!gpu_.computes) pass.compute_s += seconds;
    if (bytes.to_gpu > 0) pass.bus_s += share * bytes.to_gpu / speeds_.bus_bytes_per_s;
  }

  void AddWorkBesideOnCpu(PassForecast& pass) const {
    if (plan_.io_s_per_step > 0) {
      const auto moved_bytes =
          static_cast<double>(plan_.read_bytes_per_step + plan_.write_bytes_per_step);
      pass.compute_s += pass.disk_s / plan_.io_s_per_step * kPassesOverTransfers * moved_bytes /
                        speeds_.memory_bytes_per_s;
    }
  }

  // The part of the state on NVMe that staging has room for, beyond the least, which only keeps the
  // disk busy.
  double StagedShare() const {
    const auto on_disk = std::ranges::count(plan_.placement.state, Tier::kNvme);
    if (on_disk <= kLeastStagingTiles) return 0;
    const double share = static_cast<double>(plan_.num_staging_tiles - kLeastStagingTiles) /
                         static_cast<double>(on_disk - kLeastStagingTiles);
    return std::clamp(share, 0.0, 1.0);
  }

  // That is read before the forward pass begins, and written behind it, while the backward pass
  // leaves the disk idle.
  void MoveStagedTransfers(StepForecast& forecast) const {
    int64_t state_bytes = 0;
    for (const Tile& tile : plan_.tiles.streamed_tiles()) {
      const auto i = static_cast<size_t>(&tile - plan_.tiles.streamed_tiles().data());
      if (plan_.placement.state[i] == Tier::kNvme) state_bytes += plan_.tiles.StateBytes(tile);
    }
    const int64_t moved_bytes = plan_.read_bytes_per_step + plan_.write_bytes_per_step;
    if (moved_bytes == 0) return;
    const double both_ways_s = 2 * StagedShare() * static_cast<double>(state_bytes) *
                               plan_.io_s_per_step / static_cast<double>(moved_bytes);
    const double idle_s = forecast.backward.compute_s - forecast.backward.disk_s;
    const double moved_s = std::clamp(both_ways_s, 0.0, std::max(0.0, idle_s));
    forecast.forward.disk_s -= moved_s;
    forecast.backward.disk_s += moved_s;
  }

  // Adds those of layers that are read from the disk.
  void AddWaits(StepForecast& forecast) const {
    bool is_forward = true;
    for (const auto& [kind, layer] : plan_.schedule.operations) {
      is_forward &= kind != OperationKind::kLossAndGradient;
      const bool waits = kind == OperationKind::kRead &&
                         plan_.placement.weights[static_cast<size_t>(layer)] == Tier::kNvme;
      if (waits)
        (is_forward ? forecast.forward : forecast.backward).not_hidden_s += kSecondsOfARead;
    }
  }

  // If all updates are applied in the backward pass, the first tiles are read as far as staging has
  // room while the forward pass leaves the disk idle. Returns how long that takes.
  double MoveEarlyReads(StepForecast& forecast) const {
    const std::vector<TileUpdate> tiles = UpdatesInBackward(/*compute_s=*/0);
    double read_s = 0;
    for (const TileUpdate& tile : std::span(tiles).first(
             std::min(tiles.size(), static_cast<size_t>(plan_.num_staging_tiles)))) {
      read_s += tile.read_s;
    }
    const double idle_s = forecast.forward.compute_s - forecast.forward.disk_s;
    const double moved_s = std::min(read_s, std::max(0.0, idle_s));
    forecast.forward.disk_s += moved_s;
    forecast.backward.disk_s -= moved_s;
    return moved_s;
  }

  // How much longer than its computation the backward pass is with updates that are applied as
  // gradients come: that of the last layer ends when nothing is left to compute. `early_s`: of
  // reads for them before the pass begins.
  double UpdatesBehind(const PassForecast& backward, double early_s) const {
    std::vector<TileUpdate> tiles = UpdatesInBackward(backward.compute_s);
    double all_s = 0;
    for (const TileUpdate& tile : tiles) all_s += tile.read_s + tile.write_s;
    if (all_s <= 0) return 0;
    // The pass reads other things too, in between.
    const double slower = std::max(1.0, (backward.disk_s + early_s) / all_s);
    for (TileUpdate& tile : tiles) {
      tile.read_s *= slower;
      tile.write_s *= slower;
    }
    const double end_s = EndOfUpdates(tiles, -early_s, plan_.num_staging_tiles,
                                      std::max(1, plan_.num_gradient_tiles));
    return end_s - backward.compute_s;
  }

  // In the order in which they are handed over, where computation goes on for `compute_s` in all.
  std::vector<TileUpdate> UpdatesInBackward(double compute_s) const {
    const int64_t moved_bytes = plan_.read_bytes_per_step + plan_.write_bytes_per_step;
    if (moved_bytes == 0) return {};
    const double s_per_byte = plan_.io_s_per_step / static_cast<double>(moved_bytes);
    const auto elems_of = [&](int layer) {
      return static_cast<double>(plan_.tiles.layer_elems(layer));
    };
    const std::span<const Operation> operations = plan_.schedule.FromLossOn();
    double all_elems = 0;
    for (const auto& [kind, layer] : operations) {
      if (Differentiates(kind, layer)) all_elems += elems_of(layer);
    }
    std::vector<TileUpdate> tiles;
    double now_s = 0;
    for (const auto& [kind, layer] : operations) {
      if (Differentiates(kind, layer)) now_s += compute_s * elems_of(layer) / all_elems;
      const bool is_applied = kind == OperationKind::kHand &&
                              plan_.placement.UpdateTimeOf(layer) != UpdateTime::kOnRead;
      if (!is_applied) continue;
      for (int i = plan_.tiles.first_tile(layer); i < plan_.tiles.first_tile(layer + 1); ++i) {
        TileUpdate tile = UpdateOf(i, s_per_byte);
        tile.gradient_s = now_s;
        tiles.push_back(tile);
      }
    }
    return tiles;
  }
  // With products of matrices: the first layer's gradients have none.
  static bool Differentiates(OperationKind kind, int layer) {
    return kind == OperationKind::kLossAndGradient ||
           (kind == OperationKind::kBackward && layer > 0);
  }
  TileUpdate UpdateOf(int i, double s_per_byte) const {
    const Placement& placement = plan_.placement;
    const Tile& tile = plan_.tiles.tiles()[static_cast<size_t>(i)];
    const auto weights = static_cast<double>(plan_.tiles.WeightBytes(tile));
    const auto state = static_cast<double>(plan_.tiles.StateBytes(tile));
    // A speculative one is of a step that will be committed.
    const bool writes_all = !placement.WaitsForNorm(tile.layer);
    TileUpdate update;
    const auto add = [&](double bytes, bool is_read) {
      if (is_read) update.read_s += bytes * s_per_byte;
      if (is_read || writes_all) update.write_s += bytes * s_per_byte;
    };
    add(weights, placement.weights[static_cast<size_t>(tile.layer)] == Tier::kNvme);
    add(state, placement.state[static_cast<size_t>(i)] == Tier::kNvme);
    if (placement.IsSpilled(tile.layer)) {
      update.read_s +=
          static_cast<double>(tile.num_elems * SizeOf(options_.grad_dtype)) * s_per_byte;
    }
    return update;
  }

  // Weights go to the GPU as the schedule reads them; gradients come back, and activations that
  // are spilled go and come. A rank has those of whole layers, whatever its store has.
  void AddBus(StepForecast& forecast) const {
    if (!gpu_.computes) return;
    double to_loss = 0, from_loss_on = 0;
    bool is_forward = true;
    for (const auto& [kind, layer] : plan_.schedule.operations) {
      is_forward &= kind != OperationKind::kLossAndGradient;
      if (kind != OperationKind::kRead) continue;
      const int64_t elems = inventory_.layers()[static_cast<size_t>(layer)].num_elems;
      (is_forward ? to_loss : from_loss_on) +=
          static_cast<double>(elems * WeightBytesPerElem(plan_.tiles.layout()));
    }
    // Ranks sum them in fp32.
    const DType type = options_.num_ranks > 1 ? DType::kF32 : options_.grad_dtype;
    const auto gradients = static_cast<double>(inventory_.num_padded_elems() * SizeOf(type));
    const double activations =
        static_cast<double>(gpu_.num_spilled_activations) * static_cast<double>(tokens_) *
        static_cast<double>(hidden_size_ * WeightBytesPerElem(plan_.tiles.layout()));
    const auto add = [&](double to_gpu, double from_gpu, PassForecast& pass) {
      pass.bus_s = std::max(to_gpu, from_gpu) / speeds_.bus_bytes_per_s;
      pass.memory_s += (to_gpu + from_gpu) / speeds_.memory_bytes_per_s;
    };
    add(to_loss, activations, forecast.forward);
    add(from_loss_on + activations, gradients, forecast.backward);
  }

  const OffloadPlan& plan_;
  const GpuUse& gpu_;
  const TrainOptions& options_;
  const MachineSpeeds& speeds_;
  const int64_t tokens_;
  const DecoderFlops flops_;
  const int64_t hidden_size_;
  const Inventory inventory_;  // where a GPU computes
};

}  // namespace

std::string_view NameOf(Bound bound) {
  switch (bound) {
    case Bound::kCompute:
      return "compute";
    case Bound::kDisk:
      return "disk";
    case Bound::kMemory:
      return "memory";
    case Bound::kBus:
      return "bus";
  }
  return "";
}

double PassForecast::Seconds() const {
  return LongestOf(*this).second + not_hidden_s;
}

Bound PassForecast::bound() const {
  return LongestOf(*this).first;
}

PassForecast& PassForecast::operator+=(const PassForecast& other) {
  compute_s += other.compute_s;
  disk_s += other.disk_s;
  memory_s += other.memory_s;
  bus_s += other.bus_s;
  return *this;
}

std::optional<StepForecast> ForecastStep(const OffloadPlan& plan, const GpuUse& gpu,
                                         const DecoderFlops& flops, const DecoderConfig& model,
                                         const TrainOptions& options, const MachineSpeeds& speeds) {
  const bool moves = plan.read_bytes_per_step + plan.write_bytes_per_step > 0;
  if (moves && plan.io_s_per_step <= 0) return std::nullopt;
  if (speeds.matmul_flops_per_s <= 0 || speeds.memory_bytes_per_s <= 0) return std::nullopt;
  if (gpu.computes && speeds.bus_bytes_per_s <= 0) return std::nullopt;
  return Forecaster(plan, gpu, flops, model, options, speeds).Make();
}

}  // namespace forebay
