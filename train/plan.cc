#include "forebay/train/plan.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/data/packed_file.h"
#include "forebay/model/decoder.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/swap/tensor_store.h"
#include "forebay/train/export_weights.h"
#include "forebay/train/parameter_groups_of.h"
#include "forebay/train/step.h"
#include "forebay/train/stripe_weights.h"

namespace forebay {
namespace {

// Tokens, targets, positions and flags of a packed row while it is a MicroBatch; segments are few.
constexpr int64_t kBatchBytesPerToken = 16;

// How many steps share a commit; 0: none has one that is planned, or it goes by time.
int64_t StepsPerCommit(const CommitPace& pace) {
  if (pace.only_on_demand) return 0;
  return pace.every_steps > 0 ? pace.every_steps : pace.resident_bytes == 0 ? 1 : 0;
}

// Of the files of one folder: weights, state and checksums, then each copy of the record.
constexpr int kFlushesPerCommit = 5;

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

class Planner {
 public:
  Planner(const DecoderConfig& model, const TrainOptions& options, const MachineLimits& limits,
          int num_slots)
      : model_(model),
        options_(options),
        limits_(limits),
        num_slots_(num_slots),
        inventory_(BuildInventory(model)),
        tiles_(inventory_, options.layout, options.tile_elems, FolderWeights(limits),
               MomentsOf(RuleOf(options))),
        gradient_bytes_per_elem_(SizeOf(options.grad_dtype)) {}

  // Without a look at the disks.
  absl::StatusOr<Plan> Make() const {
    FOREBAY_RETURN_IF_ERROR(CheckPositions());
    FOREBAY_RETURN_IF_ERROR(ParameterGroupsOf(options_, inventory_).status());
    FOREBAY_ASSIGN_OR_RETURN(const int64_t budget, Budget());
    const StepBuffers buffers = ChooseBuffers(budget);
    Plan plan;
    plan.tiles = tiles_;
    plan.tokens_per_step = options_.batch * options_.accum * options_.seq;
    plan.ram_budget_bytes = budget;
    plan.num_staging_tiles = buffers.num_staging_tiles;
    plan.schedule = ChainSchedule(inventory_.num_layers(), model_.tied_embeddings);
    plan.window = Window(buffers);
    plan.terms = FixedTerms(buffers);
    const int64_t left = budget - HostBytes(plan.terms);
    if (left < DemandedBytes()) return DoesNotFit(budget);
    FOREBAY_ASSIGN_OR_RETURN(plan.placement, Place(tiles_, PlacementFor(left)));
    plan.gradient_area = Area();
    plan.gradient_area_bytes =
        OffloadedOptimizer::GradientAreaBytes(Optimizer(buffers), plan.placement, tiles_);
    AddPlacedTerms(plan);
    AddTransfers(plan);
    plan.rated_tbw = options_.rated_tbw;
    plan.num_steps = options_.steps;
    plan.exports_to_come = ExportsToCome();
    return plan;
  }

  // Whether each disk has room for its share.
  absl::Status CheckDisk(const Plan& plan) const {
    const int64_t exports = ExportBytesOnDisk();
    // A run that continues has its swap area already.
    if (options_.resume) return CheckRoomForExports(ExportsToCome() * OneExportBytes());
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
          others_have_room ? ", or give it a smaller share with --nvme_weights" : "",
          num_slots_ > 1 ? ", or take --durability=none, which keeps one copy and survives no crash"
                         : ""));
    }
    return together ? absl::OkStatus() : CheckRoomForExports(exports);
  }

  // Other shares, with which each disk has room for its own if folders are off by no more than
  // `slack_tiles`; empty: there are none.
  StripeWeights SharesWithinRoom(const Plan& plan, int64_t slack_tiles) const {
    SpaceNeeds needs;
    for (const PlanStripe& stripe : plan.stripes) needs.total_bytes += stripe.nvme_bytes;
    needs.beside_exports_bytes = ExportBytesOnDisk();
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
  double DiskSeconds(const StepTransfers& transfers) const {
    const auto area_bytes = static_cast<double>(tiles_.weight_area_bytes());
    double most = 0;
    for (const auto& [file_system, folders] : ByFileSystem(limits_.disks)) {
      double seconds = 0;
      for (const size_t i : folders) {
        const DiskLimits& disk = limits_.disks[i];
        if (disk.read_bytes_per_s <= 0 || disk.write_bytes_per_s <= 0) return 0;
        const double share =
            static_cast<double>(tiles_.weight_area_bytes(static_cast<int>(i))) / area_bytes;
        seconds += share * (static_cast<double>(transfers.read_bytes) / disk.read_bytes_per_s +
                            static_cast<double>(transfers.write_bytes) / disk.write_bytes_per_s);
      }
      most = std::max(most, seconds);
    }
    return most;
  }

  void AddTransfers(Plan& plan) const {
    StepTransfers transfers = CountTransfers(plan.schedule, plan.window, plan.placement, tiles_,
                                             gradient_bytes_per_elem_);
    plan.num_slots = num_slots_;
    plan.commit_bytes = transfers.commit_bytes;
    plan.commit_pace.only_on_demand = num_slots_ == 1;
    plan.commit_pace.every_steps = options_.commit_every;
    plan.commit_pace.resident_bytes =
        plan.placement.host_weight_bytes + plan.placement.host_state_bytes;
    if (replays()) {
      // A step's gradients are kept until it is committed.
      plan.commit_pace.every_steps = 1;
      transfers.write_bytes +=
          plan.placement.host_gradient_bytes + TensorStore::IntentBytes(tiles_);
    }
    const int64_t steps = StepsPerCommit(plan.commit_pace);
    transfers.write_bytes -=
        transfers.commit_bytes - (steps > 0 ? transfers.commit_bytes / steps : 0);
    plan.read_bytes_per_step = transfers.read_bytes;
    plan.write_bytes_per_step = transfers.write_bytes;
    plan.io_s_per_step = DiskSeconds(transfers);
  }

  absl::Status CheckPositions() const {
    if (options_.seq <= model_.max_positions) return absl::OkStatus();
    if (PackedRowTokens(options_.data) == options_.seq) {
      return UsageError(fmt::format(
          "'{}' is packed in rows of {} tokens, more than the {} positions of the model. "
          "Pack the text again with --seq={} or less",
          options_.data, options_.seq, model_.max_positions, model_.max_positions));
    }
    return UsageError(
        fmt::format("--seq={} is more than the {} positions of the model; use --seq={} or less",
                    options_.seq, model_.max_positions, model_.max_positions));
  }

  absl::StatusOr<int64_t> Budget() const {
    const int64_t available = limits_.available_memory_bytes;
    if (options_.ram_bytes == 0)
      return static_cast<int64_t>(static_cast<double>(available) * kAutoShare);
    if (available > 0 && options_.ram_bytes > available) {
      return DoesNotFitError(fmt::format(
          "--ram={} is more than this process can have: {} is available now "
          "(/proc/meminfo and cgroup limits). Use --ram={}MiB or less, or free memory",
          FormatBinaryBytes(options_.ram_bytes), FormatBinaryBytes(available), available >> 20));
    }
    return options_.ram_bytes;
  }

  SwapperOptions Window(const StepBuffers& buffers) const {
    return ChainWindow(inventory_.num_layers(), buffers);
  }

  bool replays() const { return options_.durability == Durability::kReplay; }
  GradientArea Area() const { return replays() ? GradientArea::kAll : GradientArea::kSpilled; }

  StepBuffers LeastBuffers() const { return StepBufferChoices(tiles_.num_stripes()).back(); }

  OffloadedOptimizerOptions Optimizer(const StepBuffers& buffers) const {
    OffloadedOptimizerOptions optimizer;
    optimizer.gradient_dtype = options_.grad_dtype;
    optimizer.gradient_area = Area();
    optimizer.num_staging_tiles = buffers.num_staging_tiles;
    return optimizer;
  }

  // All that a run needs whatever is placed where.
  std::vector<PlanTerm> FixedTerms(const StepBuffers& buffers) const {
    const int64_t tokens_per_step = options_.batch * options_.accum * options_.seq;
    const StepMemory step = StepMemoryFor(model_, inventory_, tokens_per_step);
    DecoderOptions decoder;
    decoder.num_threads = options_.threads > 0 ? options_.threads : limits_.num_cores;
    decoder.precision = options_.precision;
    decoder.max_tokens = options_.batch * options_.seq;
    const char* const kTokens = "--batch, --seq or --accum";
    std::vector<PlanTerm> terms = {
        {"program", kRuntimeBytes, 0, ""},
        {fmt::format("window of {} layers", buffers.num_block_buffers),
         Swapper::WindowBytes(Window(buffers), tiles_), 0, ""},
        {"optimizer staging", OffloadedOptimizer::StagingBytes(Optimizer(buffers), tiles_), 0,
         "--tile_elems"},
        {"checksums of the store", TensorStore::SealBytes(tiles_, num_slots_), 0, "--tile_elems"},
        {"gradient of one block (fp32)", step.block_gradient_bytes, 0, ""},
        {"gradient of the embedding (fp32)", step.large_gradient_bytes, 0, ""},
        {"activation checkpoints", step.checkpoint_bytes, 0, kTokens},
        {"activation gradients", step.activation_gradient_bytes, 0, kTokens},
        {"decoder workspace", DecoderWorkspaceBytes(model_, decoder), 0,
         "--batch, --seq or --threads"},
        {"tokens of a step", tokens_per_step * kBatchBytesPerToken, 0, kTokens},
    };
    if (options_.save_every > 0) {
      terms.push_back({"export beside the steps", kExportBytes, 0, "--save_every=0"});
    }
    return terms;
  }

  static int64_t HostBytes(const std::vector<PlanTerm>& terms) {
    return std::accumulate(terms.begin(), terms.end(), int64_t{0},
                           [](int64_t sum, const PlanTerm& term) { return sum + term.host_bytes; });
  }

  // What --weights_tier=host and --state_tier=host ask for.
  int64_t DemandedBytes() const {
    return (options_.weights_tier == TierChoice::kHost ? tiles_.weight_area_bytes() : 0) +
           (options_.state_tier == TierChoice::kHost ? tiles_.state_area_bytes() : 0);
  }

  int64_t AllGradientBytes() const {
    return inventory_.num_padded_elems() * gradient_bytes_per_elem_;
  }

  // The first choice that also keeps all gradients in RAM: a spilled byte costs a write and a read
  // in every step, a buffer less only some overlap. When none does, the largest that fits at all.
  StepBuffers ChooseBuffers(int64_t budget) const {
    for (const int64_t wanted : {DemandedBytes() + AllGradientBytes(), DemandedBytes()}) {
      for (const StepBuffers& buffers : StepBufferChoices(tiles_.num_stripes())) {
        if (HostBytes(FixedTerms(buffers)) + wanted <= budget) return buffers;
      }
    }
    return LeastBuffers();
  }

  PlacementOptions PlacementFor(int64_t left) const {
    PlacementOptions placement;
    placement.weights = options_.weights_tier;
    placement.state = options_.state_tier;
    placement.gradient_bytes_per_elem = gradient_bytes_per_elem_;
    placement.host_bytes = left;
    return placement;
  }

  void AddPlacedTerms(Plan& plan) const {
    const int64_t areas = tiles_.weight_area_bytes() + tiles_.state_area_bytes();
    StripeBytes store_bytes = TensorStore::DiskBytes(tiles_, num_slots_, plan.gradient_area_bytes);
    int64_t gradient_area = Total(plan.gradient_area_bytes);
    if (replays()) {
      store_bytes[0] += TensorStore::IntentBytes(tiles_);
      gradient_area += TensorStore::IntentBytes(tiles_);
    }
    const int64_t store = Total(store_bytes);
    for (size_t i = 0; i < limits_.disks.size(); ++i) {
      plan.stripes.push_back({limits_.disks[i].folder, limits_.disks[i].weight, store_bytes[i]});
    }
    const char* const kTiers = "--weights_tier or --state_tier";
    plan.terms.push_back({fmt::format("gradients held ({})", NameOf(options_.grad_dtype)),
                          plan.placement.host_gradient_bytes, gradient_area, ""});
    plan.terms.push_back({fmt::format("weights ({})", NameOf(WeightDType(options_.layout))),
                          plan.placement.host_weight_bytes, tiles_.weight_area_bytes(), kTiers});
    plan.terms.push_back({fmt::format("state ({})", StateText(tiles_)),
                          plan.placement.host_state_bytes, tiles_.state_area_bytes(), kTiers});
    plan.terms.push_back({num_slots_ > 1 ? "second slot and records" : "checksums and records", 0,
                          store - areas - gradient_area, ""});
    if (options_.export_format != ExportFormat::kNone) {
      plan.terms.push_back({"exported model", 0, ExportBytes(), "--keep or --export=none"});
    }
    plan.host_bytes = HostBytes(plan.terms);
    for (const PlanTerm& term : plan.terms) plan.nvme_bytes += term.nvme_bytes;
  }

  int64_t ExportBytesOnDisk() const {
    return options_.export_format == ExportFormat::kNone ? 0 : ExportBytes();
  }

  // A run that continues has some of them. The next one is whole before it takes the place of
  // another.
  int64_t ExportsToCome() const {
    const int64_t one = OneExportBytes();
    const int64_t missing = std::max(ExportBytesOnDisk() - limits_.exported_bytes, one);
    return options_.export_format == ExportFormat::kNone ? 0 : (missing + one - 1) / one;
  }

  // OUT/model, and what --save_every keeps beside it. One more is written before the oldest goes.
  int64_t ExportBytes() const {
    int64_t exports = 1;
    if (options_.save_every > 0) {
      int64_t beside = options_.keep + 1;
      if (options_.steps > 0) beside = std::min(beside, options_.steps / options_.save_every);
      exports += beside;
    }
    return exports * OneExportBytes();
  }
  int64_t OneExportBytes() const { return inventory_.num_params() * SizeOf(options_.export_dtype); }

  absl::Status CheckRoomForExports(int64_t needed_bytes) const {
    if (limits_.out_free_bytes < 0 || needed_bytes <= limits_.out_free_bytes) {
      return absl::OkStatus();
    }
    return DoesNotFitError(fmt::format(
        "the exported model needs {}{} on the file system of '{}', which has {} free. Free space "
        "there, {}or export less (--export=none, --keep)",
        FormatBytes(needed_bytes), limits_.exported_bytes > 0 ? " more" : "", options_.out,
        FormatBytes(limits_.out_free_bytes), options_.resume ? "" : "choose another --out, "));
  }

  absl::Status DoesNotFit(int64_t budget) const {
    std::vector<PlanTerm> terms = FixedTerms(LeastBuffers());
    if (options_.weights_tier == TierChoice::kHost) {
      terms.push_back({"weights in RAM", tiles_.weight_area_bytes(), 0, "--weights_tier=auto"});
    }
    if (options_.state_tier == TierChoice::kHost) {
      terms.push_back(
          {"optimizer state in RAM", tiles_.state_area_bytes(), 0, "--state_tier=auto"});
    }
    const int64_t least = HostBytes(terms);
    std::ranges::stable_sort(terms, std::ranges::greater{}, &PlanTerm::host_bytes);
    std::string largest;
    for (size_t i = 0; i < std::min<size_t>(4, terms.size()); ++i) {
      largest += fmt::format(
          "\n  {:<34}{:>10}{}", terms[i].name, FormatBytes(terms[i].host_bytes),
          terms[i].shrink_with.empty() ? "" : "   smaller with " + terms[i].shrink_with);
    }
    const std::string given =
        options_.ram_bytes > 0
            ? fmt::format("--ram={}", FormatBinaryBytes(budget))
            : fmt::format("the budget is {} ({:.0f} % of the memory that is available)",
                          FormatBinaryBytes(budget), kAutoShare * 100);
    return DoesNotFitError(fmt::format(
        "this run needs at least {} MiB of memory, and {}. The largest parts:{}\nThe least "
        "that works is --ram={}MiB",
        MebibytesUp(least), given, largest, MebibytesUp(least)));
  }

  const DecoderConfig& model_;
  const TrainOptions& options_;
  const MachineLimits& limits_;
  const int num_slots_;
  const Inventory inventory_;
  const TileMap tiles_;
  const int64_t gradient_bytes_per_elem_;
};

// Nothing where a step writes nothing.
std::optional<int64_t> StepsUntilWorn(const Plan& plan) {
  if (plan.write_bytes_per_step == 0) return std::nullopt;
  return static_cast<int64_t>(plan.rated_tbw * 1e12 /
                              static_cast<double>(plan.write_bytes_per_step));
}

std::string WearLine(const Plan& plan) {
  // Commits that do not go by steps come on top.
  const std::string commits =
      StepsPerCommit(plan.commit_pace) > 0
          ? ""
          : fmt::format(", and each commit {}", FormatBytes(plan.commit_bytes));
  const std::optional<int64_t> steps = StepsUntilWorn(plan);
  if (!steps.has_value()) return fmt::format("wear       steps write nothing{}\n", commits);
  if (plan.num_steps == 0) {
    return fmt::format("wear       a drive of {} TBW lasts {} steps{}\n", plan.rated_tbw, *steps,
                       commits.empty() ? "" : " but for commits");
  }
  const double bytes =
      static_cast<double>(plan.num_steps) * static_cast<double>(plan.write_bytes_per_step);
  return fmt::format("wear       {} steps write {:.3g} TB = {:.2g} % of a drive of {} TBW{}\n",
                     plan.num_steps, bytes / 1e12, bytes / 1e10 / plan.rated_tbw, plan.rated_tbw,
                     commits);
}

// Of several folders alone: of one, the totals have said it.
std::string StripeLines(const Plan& plan) {
  std::string lines;
  int64_t total_bytes = 0;
  for (const PlanStripe& stripe : plan.stripes) total_bytes += stripe.nvme_bytes;
  for (size_t i = 0; i < plan.stripes.size() && plan.stripes.size() > 1; ++i) {
    const PlanStripe& stripe = plan.stripes[i];
    lines += fmt::format(
        "{:<11}{} in {} ({:.0f} %)\n", i == 0 ? "swap area" : "", FormatBytes(stripe.nvme_bytes),
        stripe.folder,
        100 * static_cast<double>(stripe.nvme_bytes) / static_cast<double>(total_bytes));
  }
  return lines;
}

// With those of the gradients that are kept.
int64_t FlushesPerCommit(const Plan& plan) {
  const auto num_folders = static_cast<int64_t>(plan.stripes.size());
  const int64_t of_gradients = plan.gradient_area == GradientArea::kAll ? num_folders + 1 : 0;
  return kFlushesPerCommit * num_folders + of_gradients;
}

std::string_view NameOfDurability(const Plan& plan) {
  if (plan.num_slots == 1) return "none";
  return plan.gradient_area == GradientArea::kAll ? "replay" : "step";
}

std::string DurabilityLine(const Plan& plan) {
  const std::string commit =
      fmt::format("{} and {} flushes", FormatBytes(plan.commit_bytes), FlushesPerCommit(plan));
  if (plan.num_slots == 1) {
    return fmt::format(
        "durability none: one copy{}, committed ({}) when the run stops, evaluates or exports; a "
        "crash loses all since the last export\n",
        plan.lacks_room_for_two ? ", as the disk has no room for two" : "", commit);
  }
  if (plan.gradient_area == GradientArea::kAll) {
    return fmt::format(
        "durability replay: each step is committed, during the next ({}), and its gradients are "
        "kept until then; a crash loses the running forward and backward pass\n",
        commit);
  }
  // A step is committed when the forward pass of the next has applied its update.
  const int64_t steps = StepsPerCommit(plan.commit_pace);
  if (steps > 0) {
    return fmt::format(
        "durability step: {} is committed, during the next ({}); a crash loses {} steps at most\n",
        steps == 1 ? "each step" : fmt::format("one step in {}", steps), commit, steps + 1);
  }
  return fmt::format(
      "durability step: commits ({}) take {:.0f} % of the time, more where a crash would lose more "
      "than {:.0f} min\n",
      commit, kMostCommitShare * 100, kMostLostSeconds / 60);
}

int64_t CountHost(const std::vector<Tier>& tiers) {
  return std::ranges::count(tiers, Tier::kHost);
}

// `room`: whether the disks have room for what is planned.
absl::StatusOr<Plan> PlanWithSlots(int num_slots, const DecoderConfig& model,
                                   const TrainOptions& options, const MachineLimits& limits,
                                   absl::Status& room) {
  const Planner planner(model, options, limits, num_slots);
  FOREBAY_ASSIGN_OR_RETURN(Plan plan, planner.Make());
  room = planner.CheckDisk(plan);
  if (room.ok()) return plan;
  // As little slack as works, as what it leaves unused elsewhere may be the faster disk's.
  for (const int64_t slack_tiles : {1, 4, 16}) {
    const StripeWeights weights =
        limits.shares_are_fixed ? StripeWeights() : planner.SharesWithinRoom(plan, slack_tiles);
    if (weights.empty()) break;
    MachineLimits other_limits = limits;
    for (size_t i = 0; i < weights.size(); ++i) other_limits.disks[i].weight = weights[i];
    const Planner other_planner(model, options, other_limits, num_slots);
    FOREBAY_ASSIGN_OR_RETURN(Plan other, other_planner.Make());
    if (!other_planner.CheckDisk(other).ok()) continue;
    room = absl::OkStatus();
    return other;
  }
  return plan;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const DecoderConfig& model, const TrainOptions& options,
                              const MachineLimits& limits) {
  const bool one_slot = options.durability == Durability::kNone;
  absl::Status room;
  FOREBAY_ASSIGN_OR_RETURN(Plan plan,
                           PlanWithSlots(one_slot ? 1 : kMostSlots, model, options, limits, room));
  if (room.ok()) return plan;
  // Who says how often to commit wants to have commits.
  if (options.durability != Durability::kAuto || options.commit_every > 0) return room;
  FOREBAY_ASSIGN_OR_RETURN(plan, PlanWithSlots(1, model, options, limits, room));
  FOREBAY_RETURN_IF_ERROR(room);
  plan.lacks_room_for_two = true;
  return plan;
}

Json ToJson(const Plan& plan) {
  Json json;
  json["fits"] = true;
  json["ram_budget_bytes"] = plan.ram_budget_bytes;
  json["host_bytes"] = plan.host_bytes;
  json["nvme_bytes"] = plan.nvme_bytes;
  json["tokens_per_step"] = plan.tokens_per_step;
  json["read_bytes_per_step"] = plan.read_bytes_per_step;
  json["write_bytes_per_step"] = plan.write_bytes_per_step;
  json["io_seconds_per_step"] = plan.io_s_per_step > 0 ? Json(plan.io_s_per_step) : Json(nullptr);
  const int64_t steps_per_commit = StepsPerCommit(plan.commit_pace);
  json["durability"] = NameOfDurability(plan);
  json["commit_every"] = steps_per_commit > 0 ? Json(steps_per_commit) : Json(nullptr);
  json["commit_bytes"] = plan.commit_bytes;
  json["flushes_per_commit"] = FlushesPerCommit(plan);
  json["rated_tbw"] = plan.rated_tbw;
  const std::optional<int64_t> steps_until_worn = StepsUntilWorn(plan);
  json["steps_until_tbw"] = steps_until_worn.has_value() ? Json(*steps_until_worn) : Json(nullptr);
  json["gradient_area_bytes"] = Total(plan.gradient_area_bytes);
  json["tile_elems"] = plan.tiles.tile_elems();
  json["num_tiles"] = plan.tiles.num_tiles();
  json["num_staging_tiles"] = plan.num_staging_tiles;
  json["num_block_buffers"] = plan.window.num_block_buffers;
  json["num_large_buffers"] = plan.window.num_large_buffers;
  json["placement"] = {{"weight_layers_in_ram", CountHost(plan.placement.weights)},
                       {"num_layers", plan.placement.weights.size()},
                       {"state_tiles_in_ram", CountHost(plan.placement.state)},
                       {"gradient_layers_in_ram", CountHost(plan.placement.gradients)},
                       {"host_weight_bytes", plan.placement.host_weight_bytes},
                       {"host_state_bytes", plan.placement.host_state_bytes},
                       {"host_gradient_bytes", plan.placement.host_gradient_bytes}};
  json["stripes"] = Json::array();
  for (const PlanStripe& stripe : plan.stripes) {
    json["stripes"].push_back(
        {{"folder", stripe.folder}, {"weight", stripe.weight}, {"nvme_bytes", stripe.nvme_bytes}});
  }
  json["terms"] = Json::array();
  for (const PlanTerm& term : plan.terms) {
    json["terms"].push_back(
        {{"name", term.name}, {"host_bytes", term.host_bytes}, {"nvme_bytes", term.nvme_bytes}});
  }
  return json;
}

std::string FormatPlan(const Plan& plan, const DecoderConfig& model, const TrainOptions& options) {
  const auto bytes = [](int64_t count) {
    return count == 0 ? std::string("-") : FormatBytes(count);
  };
  const Inventory inventory = BuildInventory(model);
  std::string table = fmt::format(
      "model      {}   {} params   {} layers   {} + {}   {} tokens/step ({} x {} x {})\n",
      model.architecture, FormatCount(inventory.num_params()), model.num_layers,
      NameOf(options.layout), NameOf(options.optimizer), plan.tokens_per_step, options.batch,
      options.seq, options.accum);
  table += fmt::format("{:<36}{:>16}{:>12}\n", "",
                       "RAM " + FormatBinaryBytes(plan.ram_budget_bytes), "NVMe");
  for (const PlanTerm& term : plan.terms) {
    if (term.host_bytes == 0 && term.nvme_bytes == 0) continue;
    table += fmt::format("{:<36}{:>16}{:>12}\n", term.name, bytes(term.host_bytes),
                         bytes(term.nvme_bytes));
  }
  table +=
      fmt::format("{:<36}{:>16}{:>12}\n", "total", bytes(plan.host_bytes), bytes(plan.nvme_bytes));
  table += StripeLines(plan);
  const double params = static_cast<double>(inventory.num_params());
  table +=
      fmt::format("per step   nvme {} read + {} write ({:.1f} + {:.1f} B/param){}\n",
                  FormatBytes(plan.read_bytes_per_step), FormatBytes(plan.write_bytes_per_step),
                  static_cast<double>(plan.read_bytes_per_step) / params,
                  static_cast<double>(plan.write_bytes_per_step) / params,
                  plan.io_s_per_step > 0 ? " = " + FormatDuration(plan.io_s_per_step) : "");
  table += DurabilityLine(plan);
  table += WearLine(plan);
  table += fmt::format("verdict    fits; RAM spare {}\n",
                       FormatBytes(plan.ram_budget_bytes - plan.host_bytes));
  return table;
}

}  // namespace forebay
