#include "forebay/offload/plan.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file_space.h"
#include "forebay/base/format.h"
#include "forebay/base/round_up.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/offload/check_plan_inputs.h"
#include "forebay/offload/create_store.h"
#include "forebay/offload/disk_room.h"
#include "forebay/offload/largest_term.h"
#include "forebay/offload/parameter_groups_of.h"
#include "forebay/offload/raw_tensors.h"
#include "forebay/offload/speculation.h"
#include "forebay/optimizer/offloaded_optimizer.h"

namespace forebay {
namespace {

// "r16, m, v": the planes of the state.
std::string StateText(const TileMap& tiles) {
  std::vector<std::string_view> names;
  switch (WeightFormatOf(tiles.layout())) {
    case WeightFormat::kSplitBf16:
      names.push_back("r16");
      break;
    case WeightFormat::kFp16:
      names.push_back("master");
      break;
    case WeightFormat::kFp32:
      break;
  }
  if (tiles.moment_set().m) names.push_back("m");
  if (tiles.moment_set().v) names.push_back("v");
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

Chain SpillingChain(const PlanInputs& inputs, const OffloadOptions& options) {
  Chain chain = inputs.chain;
  if (options.activations_tier == ActivationsTier::kNvme && inputs.num_activation_buffers == 0) {
    chain.num_spilled_activations = MostSpilledActivations(inputs.chain);
  }
  return chain;
}

// Their memory, wherever they are.
SpilledActivationsShape ActivationsOf(const PlanInputs& inputs, const Chain& chain) {
  FOREBAY_CHECK(inputs.pass == PassKind::kChain || inputs.activation_bytes == 0);
  if (inputs.activation_bytes == 0) return {};
  const bool any = chain.num_spilled_activations > 0;
  const bool elsewhere = inputs.num_activation_buffers > 0;
  if (elsewhere && !any) return {};
  return {.num_spilled = chain.num_spilled_activations,
          .num_buffers =
              elsewhere ? std::min(inputs.num_activation_buffers, chain.num_spilled_activations)
                        : NumActivationBuffers(chain),
          .activation_bytes =
              any ? RoundUp(inputs.activation_bytes, kIoAlignBytes) : inputs.activation_bytes};
}

StoreFiles FilesOf(const PlanInputs& inputs, const OffloadOptions& options) {
  const bool may_lack = inputs.keeps_nothing && !inputs.store_exists &&
                        options.durability == Durability::kNone &&
                        !inputs.inventory.has_raw_layer();
  if (!may_lack) return {};
  StoreFiles files;
  files.weights = options.weights_tier != TierChoice::kHost;
  files.state =
      options.state_tier != TierChoice::kHost && options.state_tier != TierChoice::kDevice;
  files.records = files.weights && files.state;
  return files;
}

constexpr const char* kStagingTerm = "optimizer staging";

class Planner {
 public:
  Planner(const PlanInputs& inputs, const OffloadOptions& options, const MachineLimits& limits,
          int num_slots)
      : inputs_(inputs),
        options_(options),
        limits_(limits),
        num_slots_(num_slots),
        files_(FilesOf(inputs, options)),
        inventory_(inputs.inventory),
        tiles_(inventory_, options.layout, options.tile_elems, FolderWeights(limits),
               MomentsOf(RuleOf(options))),
        gradient_bytes_per_elem_(SizeOf(options.grad_dtype)),
        update_times_(SpeculativeTimes(options, tiles_.num_streamed_layers())),
        chain_(SpillingChain(inputs, options)),
        activations_(ActivationsOf(inputs, chain_)) {}

  // Without a look at the disks.
  absl::StatusOr<OffloadPlan> Make() const {
    FOREBAY_RETURN_IF_ERROR(CheckSpeculation(options_, num_slots_, tiles_.num_streamed_layers()));
    FOREBAY_RETURN_IF_ERROR(ParameterGroupsOf(options_, inventory_).status());
    FOREBAY_ASSIGN_OR_RETURN(const int64_t budget, RamBudget(options_.ram_bytes, limits_));
    const StepBuffers buffers = ChooseBuffers(budget);
    OffloadPlan plan;
    plan.tiles = tiles_;
    plan.ram_budget_bytes = budget;
    plan.num_staging_tiles = buffers.num_staging_tiles;
    plan.num_gradient_tiles = Optimizer(buffers).num_gradient_tiles;
    plan.window = Window(buffers);
    if (spills_activations()) plan.activations = activations_;
    const int64_t left = budget - HostBytes(FixedTerms(buffers));
    if (left < DemandedBytes()) return DoesNotFit(budget);
    FOREBAY_ASSIGN_OR_RETURN(plan.placement, PlaceAll(left));
    plan.terms = FixedTerms(buffers, &plan.placement);
    plan.schedule = Schedule(plan.placement);
    plan.delay_update_from = options_.delay_update_from;
    plan.gradient_area_bytes =
        OffloadedOptimizer::GradientAreaBytes(Optimizer(buffers), plan.placement, tiles_);
    AddPlacedTerms(plan);
    if (!options_.buffers.has_value()) TakeSpareForStaging(buffers, plan);
    AddTransfers(plan);
    plan.rated_tbw = options_.rated_tbw;
    return plan;
  }

  // Whether files may be as large as this run's are.
  absl::Status CheckFileSizes(const OffloadPlan& plan) const {
    const int64_t largest_bytes =
        std::max({TensorStore::LargestFileBytes(tiles_, num_slots_, plan.ScratchBytes(), files_),
                  inputs_.exports.largest_file_bytes, kMostBytesOfSmallFiles});
    if (largest_bytes <= limits_.most_bytes_of_a_file) return absl::OkStatus();
    return FileTooLargeError("the run", largest_bytes);
  }

  // Whether each disk has room for its share.
  absl::Status CheckDisk(const OffloadPlan& plan) const {
    const int64_t exports = inputs_.exports.bytes;
    if (inputs_.store_exists) return CheckRoomForExports(inputs_.exports.to_come_bytes);
    bool together = false;
    for (const auto& [file_system, folders] : ByFileSystem(limits_.disks)) {
      const bool beside_exports = exports > 0 && file_system == limits_.out_file_system;
      together |= beside_exports;
      const int64_t free_bytes = limits_.disks[folders.front()].free_bytes;
      int64_t needed_bytes = beside_exports ? exports : 0;
      std::string names;
      for (const size_t i : folders) {
        needed_bytes += plan.stripes[i].nvme_bytes;
        names += fmt::format("{}'{}'", names.empty() ? "" : " and ", plan.stripes[i].folder);
      }
      if (free_bytes < 0 || needed_bytes <= free_bytes) continue;
      const bool others_have_room = !SharesWithinRoom(plan, 0).empty();
      return DoesNotFitError(fmt::format(
          "the swap area{} {} on the file system of {}, which has {} free: {} are missing. "
          "Free space there, {}name a folder on another disk with --nvme{}{}",
          beside_exports ? " and the exported model need" : " needs", FormatBytes(needed_bytes),
          names, FormatBytes(free_bytes), FormatBytes(needed_bytes - free_bytes),
          others_have_room ? "" : "or ",
          others_have_room ? ", or give it a smaller share with --set=nvme_weights" : "",
          num_slots_ > 1 ? ", or take --durability=none, which keeps one copy and survives no crash"
                         : ""));
    }
    return together ? absl::OkStatus() : CheckRoomForExports(exports);
  }

  // Other shares, with which each disk has room for its own if folders are off by no more than
  // `slack_tiles`; empty: there are none.
  StripeWeights SharesWithinRoom(const OffloadPlan& plan, int64_t slack_tiles) const {
    SpaceNeeds needs;
    for (const PlanStripe& stripe : plan.stripes) needs.total_bytes += stripe.nvme_bytes;
    needs.beside_exports_bytes = inputs_.exports.bytes;
    const double tile_bytes = static_cast<double>(needs.total_bytes) /
                              static_cast<double>(inventory_.num_padded_elems()) *
                              static_cast<double>(options_.tile_elems);
    needs.slack_bytes = slack_tiles * static_cast<int64_t>(tile_bytes);
    return WithinRoom(limits_, needs);
  }

 private:
  static StripeWeights FolderWeights(const MachineLimits& limits) {
    StripeWeights weights;
    for (const DiskLimits& disk : limits.disks) weights.push_back(disk.weight);
    return weights;
  }

  // Of the disk that has the most to do, as they work side by side. A disk does one at a time:
  // reading and writing take turns. 0: the speed of one is not known.
  double DiskSeconds(const TransferBytes& bytes) const {
    const auto area_bytes = static_cast<double>(tiles_.weight_area_bytes());
    double most = 0;
    for (const auto& [file_system, folders] : ByFileSystem(limits_.disks)) {
      double seconds = 0;
      for (const size_t i : folders) {
        const DiskLimits& disk = limits_.disks[i];
        if (disk.read_bytes_per_s <= 0 || disk.write_bytes_per_s <= 0) return 0;
        const double share =
            static_cast<double>(tiles_.weight_area_bytes(static_cast<int>(i))) / area_bytes;
        seconds += share * (static_cast<double>(bytes.read) / disk.read_bytes_per_s +
                            static_cast<double>(bytes.write) / disk.write_bytes_per_s);
      }
      most = std::max(most, seconds);
    }
    return most;
  }

  void AddTransfers(OffloadPlan& plan) const {
    const StepSchedule read =
        inputs_.reads_layers_once ? ReadingOnce(plan.schedule) : plan.schedule;
    StepTransfers transfers =
        CountTransfers(read, plan.window, plan.placement, tiles_, gradient_bytes_per_elem_,
                       activations_.activation_bytes);
    plan.num_slots = num_slots_;
    plan.store_files = files_;
    plan.commit_bytes = files_.records ? transfers.commit_bytes : 0;
    plan.commit_pace.only_on_demand = num_slots_ == 1;
    plan.may_speculate = MaySpeculate(options_, num_slots_);
    plan.commit_pace.every_steps = options_.commit_every;
    plan.commit_pace.resident_bytes = plan.placement.host_weight_bytes +
                                      plan.placement.host_state_bytes +
                                      plan.placement.device_state_bytes;
    const bool speculates = plan.placement.NumUpdated(UpdateTime::kAfterHand) > 0;
    if (speculates && plan.commit_pace.resident_bytes > 0) plan.commit_pace.every_steps = 1;
    const int64_t steps = StepsPerCommit(plan.commit_pace);
    const int64_t seldom =
        transfers.commit_bytes - (steps > 0 ? transfers.commit_bytes / steps : 0);
    transfers.write_bytes -= seldom;
    transfers.forward.write -= seldom;
    plan.read_bytes_per_step = transfers.read_bytes;
    plan.write_bytes_per_step = transfers.write_bytes;
    plan.io_s_per_step = DiskSeconds({transfers.read_bytes, transfers.write_bytes});
    plan.forward_io_s = DiskSeconds(transfers.forward);
    plan.backward_io_s = DiskSeconds(transfers.backward);
  }

  // Where gradients would be spilled and may be applied at once instead, they are. Weights and
  // state stay on NVMe then: what is left of memory is less than one gradient.
  absl::StatusOr<Placement> PlaceAll(int64_t left) const {
    PlacementOptions wanted = PlacementFor(left);
    FOREBAY_ASSIGN_OR_RETURN(Placement placement, Place(tiles_, wanted));
    if (!update_times_.empty()) return placement;
    if (delays()) std::ranges::fill(placement.update_times, UpdateTime::kAfterNextHand);
    const bool any_spilled = std::ranges::count(placement.gradients, Tier::kNvme) > 0;
    if (!MaySpeculate(options_, num_slots_) || !any_spilled || DemandedBytes() > 0)
      return placement;
    wanted.weights = wanted.state = TierChoice::kNvme;
    FOREBAY_ASSIGN_OR_RETURN(placement, Place(tiles_, wanted));
    for (size_t layer = 0; layer < placement.gradients.size(); ++layer) {
      if (placement.gradients[layer] == Tier::kHost) continue;
      placement.update_times[layer] = UpdateTime::kAfterHand;
    }
    return placement;
  }

  StepSchedule Schedule(const Placement& placement) const {
    const std::vector<UpdateTime>& times = placement.update_times;
    if (inputs_.pass == PassKind::kModule) return ModuleSchedule(times);
    if (inputs_.pass == PassKind::kUpdateOnly) return UpdateOnlySchedule(times);
    Chain chain = chain_;
    chain.update_times = times;
    return ChainSchedule(chain);
  }

  WindowOptions Window(const StepBuffers& buffers) const {
    if (inputs_.pass != PassKind::kChain) return ModuleWindow(tiles_, buffers);
    WindowOptions window = ChainWindow(inventory_.num_streamed_layers(), buffers);
    window.piece_elems = inputs_.piece_elems;
    window.copies_pieces = inputs_.copies_pieces;
    return window;
  }

  bool delays() const { return options_.delay_update_from > 0; }
  int NumGradientSets() const { return delays() ? 2 : 1; }

  std::vector<StepBuffers> BufferChoices() const {
    std::vector<StepBuffers> choices = options_.buffers.has_value()
                                           ? std::vector<StepBuffers>{*options_.buffers}
                                           : StepBufferChoices(tiles_.num_stripes());
    if (MaySpeculate(options_, num_slots_)) {
      // With room for a whole layer's gradients the backward pass waits for no update.
      StepBuffers most = choices.front();
      most.num_gradient_tiles = TilesOfLargestSpeculativeLayer(tiles_, update_times_) + 1;
      choices.insert(choices.begin(), most);
    }
    for (const int num_tiles : StagingTilesWhereDisksAreWaitedFor()) {
      StepBuffers most = choices.front();
      most.num_staging_tiles = std::max(most.num_staging_tiles, num_tiles);
      choices.insert(choices.begin(), most);
    }
    return choices;
  }
  // Where nothing is computed beside an update: of an optimizer alone, and of a module's first
  // layer behind those that are updated in backward. More tiles at a time are read ahead and
  // written behind it, and the disk turns less often from one to the other. Best are all tiles of
  // that first layer and some of those before it: the backward pass hides its reads.
  std::vector<int> StagingTilesWhereDisksAreWaitedFor() const {
    constexpr int kFew = 16, kMost = 64;
    if (inputs_.pass == PassKind::kUpdateOnly) return {kFew};
    if (inputs_.pass != PassKind::kModule || update_times_.empty()) return {};
    const int best = TilesUpdatedOnRead(tiles_, update_times_) + 4;
    return {kFew, std::min(best, kMost)};
  }

  OffloadedOptimizerOptions Optimizer(const StepBuffers& buffers) const {
    OffloadedOptimizerOptions optimizer;
    optimizer.gradient_dtype = options_.grad_dtype;
    optimizer.num_staging_tiles = buffers.num_staging_tiles;
    optimizer.num_gradient_tiles = buffers.num_gradient_tiles;
    optimizer.may_update = delays()                             ? UpdateTime::kAfterNextHand
                           : MaySpeculate(options_, num_slots_) ? UpdateTime::kAfterHand
                                                                : UpdateTime::kOnRead;
    optimizer.may_have_state_on_device = StateMayBeOnDevice();
    return optimizer;
  }
  bool StateMayBeOnDevice() const {
    const bool may =
        options_.state_tier == TierChoice::kAuto || options_.state_tier == TierChoice::kDevice;
    return may && inputs_.device_state_bytes > 0;
  }

  // A trainer's passes leave the disk idle in backward, and wait for it in forward where state is
  // read. More tiles of that state at a time are read before forward begins, and written behind it:
  // as many as fit into memory that nothing else takes, which there is where tiers are given.
  void TakeSpareForStaging(StepBuffers buffers, OffloadPlan& plan) const {
    constexpr int kMost = 64;
    const std::vector<Tier>& state = plan.placement.state;
    const auto num_on_disk = static_cast<int>(std::ranges::count(state, Tier::kNvme));
    if (inputs_.pass != PassKind::kChain || num_on_disk == 0) return;
    const int64_t before = StagingBytes(buffers, plan.placement);
    const int64_t most = before + plan.ram_budget_bytes - plan.host_bytes;
    const int enough = std::min(num_on_disk, kMost);
    int64_t bytes = before;
    while (buffers.num_staging_tiles < enough) {
      ++buffers.num_staging_tiles;
      const int64_t with_one_more = StagingBytes(buffers, plan.placement);
      if (with_one_more > most) break;
      bytes = with_one_more;
      plan.num_staging_tiles = buffers.num_staging_tiles;
    }
    std::ranges::find(plan.terms, kStagingTerm, &PlanTerm::name)->host_bytes = bytes;
    plan.host_bytes += bytes - before;
  }
  int64_t StagingBytes(const StepBuffers& buffers, const Placement& placement) const {
    return OffloadedOptimizer::StagingBytes(Optimizer(buffers), placement, tiles_);
  }

  // All that a run needs whatever is placed where.
  // At most; with a placement exactly what it takes.
  std::vector<PlanTerm> FixedTerms(const StepBuffers& buffers,
                                   const Placement* placement = nullptr) const {
    const int64_t staging_bytes = placement == nullptr
                                      ? OffloadedOptimizer::StagingBytes(Optimizer(buffers), tiles_)
                                      : StagingBytes(buffers, *placement);
    std::vector<PlanTerm> terms = {
        {"program", inputs_.program_bytes, 0, ""},
        {fmt::format("window of {} layers", buffers.num_block_buffers),
         Swapper::WindowBytes(Window(buffers), tiles_), 0, ""},
        {kStagingTerm, staging_bytes, 0, "--set=tile_elems"},
        {"checksums of the store", TensorStore::SealBytes(tiles_, num_slots_), 0,
         "--set=tile_elems"},
    };
    if (!files_.records) {
      terms.push_back({"first values", FirstValuesBytes(tiles_), 0, "--set=tile_elems"});
    }
    terms.insert(terms.end(), inputs_.step_memory.begin(), inputs_.step_memory.end());
    if (activations_.num_buffers > 0) {
      terms.push_back({"activation checkpoints",
                       HostBuffer::ChargedBytes(activations_.MemoryBytes()), ActivationAreaBytes(),
                       inputs_.activations_shrink_with});
    }
    if (inventory_.has_raw_layer()) {
      terms.push_back({"raw tensors", RawTensors::ChargedBytes(tiles_), 0, "--set=tile_elems"});
    }
    return terms;
  }

  bool spills_activations() const { return activations_.num_spilled > 0; }
  int64_t ActivationAreaBytes() const {
    return activations_.num_spilled * activations_.activation_bytes;
  }

  static int64_t HostBytes(const std::vector<PlanTerm>& terms) {
    return std::accumulate(terms.begin(), terms.end(), int64_t{0},
                           [](int64_t sum, const PlanTerm& term) { return sum + term.host_bytes; });
  }

  // The bytes that --weights_tier=host, --state_tier=host and gradients_tier ask for.
  int64_t DemandedBytes() const {
    return (options_.weights_tier == TierChoice::kHost ? tiles_.weight_area_bytes() : 0) +
           (options_.state_tier == TierChoice::kHost ? tiles_.state_area_bytes() : 0) +
           (options_.gradients_tier == TierChoice::kHost ? AllGradientBytes() : 0);
  }

  int64_t AllGradientBytes() const { return GradientBytes(/*held_alone=*/false); }
  // But for those that options have applied at once.
  int64_t HeldGradientBytes() const { return GradientBytes(/*held_alone=*/true); }
  int64_t GradientBytes(bool held_alone) const {
    int64_t elems = 0;
    for (int layer = 0; layer < tiles_.num_streamed_layers(); ++layer) {
      const bool is_held = update_times_.empty() || !MayBeSpeculative(update_times_, layer);
      if (is_held || !held_alone) elems += tiles_.layer_elems(layer);
    }
    return elems * NumGradientSets() * gradient_bytes_per_elem_;
  }

  // The first choice that also keeps all gradients in RAM: a spilled byte costs a write and a read
  // in every step, a buffer less only some overlap. When none does, the largest that fits at all.
  StepBuffers ChooseBuffers(int64_t budget) const {
    const bool may_be_held = options_.gradients_tier == TierChoice::kAuto;
    const int64_t held = may_be_held ? HeldGradientBytes() : 0;
    for (const int64_t wanted : {DemandedBytes() + held, DemandedBytes()}) {
      for (const StepBuffers& buffers : BufferChoices()) {
        if (HostBytes(FixedTerms(buffers)) + wanted <= budget) return buffers;
      }
    }
    return BufferChoices().back();
  }

  PlacementOptions PlacementFor(int64_t left) const {
    PlacementOptions placement;
    placement.weights = options_.weights_tier;
    placement.state = options_.state_tier;
    placement.gradients = options_.gradients_tier;
    placement.gradient_bytes_per_elem = NumGradientSets() * gradient_bytes_per_elem_;
    placement.host_bytes = left;
    placement.device_bytes = StateMayBeOnDevice() ? inputs_.device_state_bytes : 0;
    placement.update_times = update_times_;
    // A module may read a layer again whose gradient it has handed over, and sees what it was.
    if (!update_times_.empty() && inputs_.pass != PassKind::kChain) {
      placement.weights = placement.state = TierChoice::kNvme;
    }
    return placement;
  }

  void AddPlacedTerms(OffloadPlan& plan) const {
    const int64_t weights = files_.weights ? tiles_.weight_area_bytes() : 0;
    const int64_t state = files_.state ? tiles_.state_area_bytes() : 0;
    const StripeBytes store_bytes =
        TensorStore::DiskBytes(tiles_, num_slots_, plan.ScratchBytes(), files_);
    const int64_t gradient_area = Total(plan.gradient_area_bytes);
    const int64_t store = Total(store_bytes);
    for (size_t i = 0; i < limits_.disks.size(); ++i) {
      plan.stripes.push_back({limits_.disks[i].folder, limits_.disks[i].weight, store_bytes[i]});
    }
    const char* const kTiers = "--weights_tier or --state_tier";
    plan.terms.push_back({fmt::format("gradients held ({})", NameOf(options_.grad_dtype)),
                          plan.placement.host_gradient_bytes, gradient_area, ""});
    plan.terms.push_back({fmt::format("weights ({})", NameOf(WeightDType(options_.layout))),
                          plan.placement.host_weight_bytes, weights, kTiers});
    plan.terms.push_back({fmt::format("state ({})", StateText(tiles_)),
                          plan.placement.host_state_bytes, state, kTiers});
    plan.terms.push_back({num_slots_ > 1 ? "second slot and records" : "checksums and records", 0,
                          store - weights - state - gradient_area - ActivationAreaBytes(), ""});
    if (inputs_.exports.bytes > 0) {
      plan.terms.push_back(
          {"exported model", 0, inputs_.exports.bytes, inputs_.exports.shrink_with});
    }
    plan.host_bytes = HostBytes(plan.terms);
    for (const PlanTerm& term : plan.terms) plan.nvme_bytes += term.nvme_bytes;
  }

  absl::Status CheckRoomForExports(int64_t needed_bytes) const {
    if (limits_.out_free_bytes < 0 || needed_bytes <= limits_.out_free_bytes) {
      return absl::OkStatus();
    }
    return DoesNotFitError(fmt::format(
        "the exported model needs {}{} on the file system of '{}', which has {} free. Free space "
        "there, {}or export less ({})",
        FormatBytes(needed_bytes), limits_.exported_bytes > 0 ? " more" : "",
        inputs_.exports.folder, FormatBytes(limits_.out_free_bytes),
        inputs_.store_exists ? "" : "choose another --out, ", inputs_.exports.shrink_with));
  }

  absl::Status DoesNotFit(int64_t budget) const {
    std::vector<PlanTerm> terms = FixedTerms(BufferChoices().back());
    if (options_.weights_tier == TierChoice::kHost) {
      terms.push_back({"weights in RAM", tiles_.weight_area_bytes(), 0, "--weights_tier=auto"});
    }
    if (options_.state_tier == TierChoice::kHost) {
      terms.push_back(
          {"optimizer state in RAM", tiles_.state_area_bytes(), 0, "--state_tier=auto"});
    }
    if (options_.gradients_tier == TierChoice::kHost) {
      terms.push_back({"gradients in RAM", AllGradientBytes(), 0, "gradients_tier=auto"});
    }
    const int64_t least = HostBytes(terms);
    std::ranges::stable_sort(terms, std::ranges::greater{}, &PlanTerm::host_bytes);
    std::string largest;
    for (size_t i = 0; i < std::min<size_t>(4, terms.size()); ++i) {
      largest += fmt::format(
          "\n  {:<34}{:>10}{}", terms[i].name, FormatBinaryBytes(terms[i].host_bytes),
          terms[i].shrink_with.empty() ? "" : "   smaller with " + terms[i].shrink_with);
    }
    const std::string given =
        options_.ram_bytes > 0
            ? fmt::format("--ram={}", FormatBinaryBytesDown(budget))
            : fmt::format("the budget is {} ({:.0f} % of the memory that is available)",
                          FormatBinaryBytesDown(budget), kAutoShare * 100);
    const absl::Status error = DoesNotFitError(fmt::format(
        "this run needs at least {} MiB of memory, and {}. The largest parts:{}\nThe least "
        "that works is --ram={}MiB",
        MebibytesUp(least), given, largest, MebibytesUp(least)));
    return WithLargestTerm(
        error,
        fmt::format("{} {}", terms.front().name, FormatBinaryBytes(terms.front().host_bytes)),
        least);
  }

  const PlanInputs& inputs_;
  const OffloadOptions& options_;
  const MachineLimits& limits_;
  const int num_slots_;
  const StoreFiles files_;
  const Inventory& inventory_;
  const TileMap tiles_;
  const int64_t gradient_bytes_per_elem_;
  const std::vector<UpdateTime> update_times_;  // as far as options say; empty: all kOnRead
  const Chain chain_;                           // but for its update_times
  const SpilledActivationsShape activations_;
};

// `room`: whether the disks have room for what is planned.
absl::StatusOr<OffloadPlan> PlanWithSlots(int num_slots, const PlanInputs& inputs,
                                          const OffloadOptions& options,
                                          const MachineLimits& limits, absl::Status& room) {
  const Planner planner(inputs, options, limits, num_slots);
  FOREBAY_ASSIGN_OR_RETURN(OffloadPlan plan, planner.Make());
  FOREBAY_RETURN_IF_ERROR(planner.CheckFileSizes(plan));
  room = planner.CheckDisk(plan);
  if (room.ok()) return plan;
  // As little slack as works, as what it leaves unused elsewhere may be the faster disk's.
  for (const int64_t slack_tiles : {1, 4, 16}) {
    const StripeWeights weights =
        limits.shares_are_fixed ? StripeWeights() : planner.SharesWithinRoom(plan, slack_tiles);
    if (weights.empty()) break;
    MachineLimits other_limits = limits;
    for (size_t i = 0; i < weights.size(); ++i) other_limits.disks[i].weight = weights[i];
    const Planner other_planner(inputs, options, other_limits, num_slots);
    FOREBAY_ASSIGN_OR_RETURN(OffloadPlan other, other_planner.Make());
    if (!other_planner.CheckDisk(other).ok()) continue;
    room = absl::OkStatus();
    return other;
  }
  return plan;
}

}  // namespace

StripeBytes OffloadPlan::ScratchBytes() const {
  StripeBytes bytes = activations.AreaBytes(tiles.stripe_weights());
  for (size_t i = 0; i < gradient_area_bytes.size(); ++i) bytes[i] += gradient_area_bytes[i];
  return bytes;
}

int64_t OffloadPlan::StoreBytes() const {
  int64_t bytes = 0;
  for (const PlanStripe& stripe : stripes) bytes += stripe.nvme_bytes;
  return bytes;
}

absl::StatusOr<OffloadPlan> MakeOffloadPlan(const PlanInputs& inputs, const OffloadOptions& options,
                                            const MachineLimits& limits) {
  FOREBAY_RETURN_IF_ERROR(CheckPlanInputs(inputs, options, limits));
  const bool one_slot = options.durability == Durability::kNone;
  absl::Status room;
  FOREBAY_ASSIGN_OR_RETURN(OffloadPlan plan,
                           PlanWithSlots(one_slot ? 1 : kMostSlots, inputs, options, limits, room));
  if (room.ok()) return plan;
  // Who says how often to commit wants to have commits.
  if (options.durability != Durability::kAuto || options.commit_every > 0 ||
      options.gradients == GradientChoice::kSpeculate) {
    return room;
  }
  FOREBAY_ASSIGN_OR_RETURN(plan, PlanWithSlots(1, inputs, options, limits, room));
  FOREBAY_RETURN_IF_ERROR(room);
  plan.lacks_room_for_two = true;
  return plan;
}

}  // namespace forebay
