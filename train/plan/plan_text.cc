// What a plan looks like: the table that people read, and the JSON.
#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "fmt/format.h"
#include "forebay/base/format.h"
#include "forebay/model/decoder.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/plan/write_budget.h"

namespace forebay {
namespace {

// In one folder a commit flushes weights, state, two copies of the checksums, and two of the
// record.
constexpr int kFlushesPerCommit = 6;

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

std::string LimitLine(const Plan& plan, const TrainOptions& options) {
  if (!plan.steps_within_limit.has_value()) return "";
  if (plan.written_before_bytes.has_value()) {
    return fmt::format(
        "limit      --max_tbw={} stops the run after {} more steps at the earliest: its sessions "
        "have written {}\n",
        options.max_tbw, *plan.steps_within_limit, FormatBytes(*plan.written_before_bytes));
  }
  return fmt::format(
      "limit      --max_tbw={} stops a new run after {} steps at the earliest: making the swap "
      "area writes up to {} of it\n",
      options.max_tbw, *plan.steps_within_limit, FormatBytes(StoreFillBytes(plan)));
}

// Of several folders alone: of one, the totals have said it.
std::string StripeLines(const Plan& plan) {
  std::string lines;
  const int64_t total_bytes = plan.StoreBytes();
  if (plan.stripes.size() == 1 || total_bytes == 0) return lines;
  for (size_t i = 0; i < plan.stripes.size(); ++i) {
    const PlanStripe& stripe = plan.stripes[i];
    lines += fmt::format(
        "{:<11}{} in {} ({:.0f} %)\n", i == 0 ? "swap area" : "",
        FormatBinaryBytes(stripe.nvme_bytes), stripe.folder,
        100 * static_cast<double>(stripe.nvme_bytes) / static_cast<double>(total_bytes));
  }
  return lines;
}

std::string DurabilityLine(const Plan& plan) {
  const std::string commit = fmt::format("{} and {} flushes", FormatBytes(plan.commit_bytes),
                                         kFlushesPerCommit * plan.stripes.size());
  if (!plan.store_files.records) {
    return "durability none: no state of the run is kept, and no model: what has ended or stopped "
           "cannot be resumed\n";
  }
  if (plan.num_slots == 1) {
    return fmt::format(
        "durability none: one copy{}, committed ({}) when the run stops, evaluates or exports; a "
        "crash loses all since the last export\n",
        plan.lacks_room_for_two ? ", as the disk has no room for two" : "", commit);
  }
  const int64_t steps = StepsPerCommit(plan.commit_pace);
  if (plan.placement.NumUpdated(UpdateTime::kAfterHand) == std::ssize(plan.placement.weights)) {
    return fmt::format(
        "durability step: each step is committed as it ends ({}); a crash loses the running one\n",
        commit);
  }
  // A step is committed when the forward pass of the next has applied its update.
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

std::string DelayLine(const Plan& plan) {
  if (plan.delay_update_from == 0) return "";
  return fmt::format(
      "updates    from step {} on each is applied in the backward pass of the next step, which "
      "sees "
      "the weights before it: one step stale, so the result is another; after a commit none is, "
      "and "
      "a stop goes on from the last commit\n",
      plan.delay_update_from);
}

int64_t CountHost(const std::vector<Tier>& tiers) {
  return std::ranges::count(tiers, Tier::kHost);
}

Json PlacementJson(const Placement& placement) {
  return {{"weight_layers_in_ram", CountHost(placement.weights)},
          {"num_layers", placement.weights.size()},
          {"state_tiles_in_ram", CountHost(placement.state)},
          {"state_tiles_on_gpu", std::ranges::count(placement.state, Tier::kDevice)},
          {"gradient_layers_in_ram", CountHost(placement.gradients)},
          {"speculative_layers", placement.NumUpdated(UpdateTime::kAfterHand)},
          {"host_weight_bytes", placement.host_weight_bytes},
          {"host_state_bytes", placement.host_state_bytes},
          {"gpu_state_bytes", placement.device_state_bytes},
          {"host_gradient_bytes", placement.host_gradient_bytes}};
}

std::string SpeculationLine(const Plan& plan) {
  const auto count = plan.placement.NumUpdated(UpdateTime::kAfterHand);
  if (count == 0) return "";
  const auto num_layers = std::ssize(plan.placement.weights);
  const std::string which =
      count == num_layers
          ? fmt::format("{}", count)
          : fmt::format("{} of {} (--set=speculate_layers={})", count, num_layers, count);
  return fmt::format(
      "gradients  of {} layers are applied as they come, and undone where the step turns out to be "
      "clipped, which is computed again then, or skipped\n",
      which);
}

// Where it is not the usual: all of all layers.
std::string RecomputeLine(const Plan& plan, const DecoderConfig& model) {
  const Recompute recompute = plan.recompute.recompute;
  const int num_blocks = plan.recompute.num_blocks;
  const int segment_blocks = plan.recompute.segment_blocks;
  if (segment_blocks > 1) {
    const int segments = (model.num_layers + segment_blocks - 1) / segment_blocks;
    return fmt::format(
        "recompute  all of all layers, from the inputs of {} segments of {} "
        "(--set=number_checkpoints={})\n",
        segments, segment_blocks, segments);
  }
  if (num_blocks == 0) {
    return "recompute  nothing: what backward needs inside of layers waits in RAM "
           "(--recompute=none)\n";
  }
  const std::string flag = fmt::format("--recompute={}", NameOf(recompute));
  const std::string_view what = recompute == Recompute::kAll ? "all" : "attention";
  if (num_blocks < model.num_layers) {
    return fmt::format(
        "recompute  {} of the first {} of {} layers, nothing of the others ({} "
        "--set=recompute_layers={})\n",
        what, num_blocks, model.num_layers, flag, num_blocks);
  }
  if (recompute == Recompute::kAll) return "";
  return fmt::format("recompute  {} of all layers ({})\n", what, flag);
}

bool LendsPieces(const Plan& plan) {
  for (int layer = 0; layer < plan.tiles.num_streamed_layers(); ++layer) {
    const bool is_in_ram = plan.placement.weights[static_cast<size_t>(layer)] == Tier::kHost;
    if (!is_in_ram && IsInPieces(plan.window, plan.tiles, layer)) return true;
  }
  return false;
}

std::string VocabularyLine(const Plan& plan) {
  if (!plan.recompute.vocabulary_in_parts) return "";
  return fmt::format(
      "vocabulary its gradients are made in parts, from logits that are computed once more{}\n",
      LendsPieces(plan) ? ", and its weights are read in pieces: memory has no room for them whole"
                        : ": memory has no room for them whole, or better use for it");
}

// Where nobody asked for it.
std::string ActivationsLine(const Plan& plan, const TrainOptions& options) {
  if (plan.activations.num_spilled == 0 || options.activations_tier != ActivationsTier::kAuto) {
    return "";
  }
  return fmt::format("activations of {} layers wait on NVMe (--set=activations_tier=nvme)\n",
                     plan.activations.num_spilled);
}

std::string PassText(const PassForecast& pass) {
  return fmt::format("{} ({})", FormatDuration(pass.Seconds()), NameOf(pass.bound()));
}

std::string ForecastLines(const Plan& plan) {
  if (!plan.forecast.has_value()) return "";
  const StepForecast& step = *plan.forecast;
  const auto of_both = [&step](double PassForecast::*seconds) {
    return FormatDuration(step.forward.*seconds + step.backward.*seconds);
  };
  std::string parts =
      fmt::format("compute {}, disk {}, memory {}", of_both(&PassForecast::compute_s),
                  of_both(&PassForecast::disk_s), of_both(&PassForecast::memory_s));
  if (plan.on_gpu()) parts += fmt::format(", bus {}", of_both(&PassForecast::bus_s));
  return fmt::format(
      "forecast   {} a step, {:.0f} tokens/s: forward {}, backward {}\n"
      "           {}\n"
      "           at best {} ({}), if all of it went on at one time; speeds {}\n",
      FormatDuration(step.step_s), step.tokens_per_s, PassText(step.forward),
      PassText(step.backward), parts, FormatDuration(step.bound_s), NameOf(step.bound),
      plan.speeds_origin);
}

std::string BetterLines(const Plan& plan) {
  std::string lines;
  for (const BetterSetting& setting : plan.better) {
    lines +=
        fmt::format("{:<11}{} a step, {:.0f} tokens/s with {}\n", lines.empty() ? "better" : "",
                    FormatDuration(setting.step_s), setting.tokens_per_s, setting.text);
  }
  return lines;
}

Json ToJson(const PassForecast& pass) {
  return {{"seconds", pass.Seconds()},        {"bound", NameOf(pass.bound())},
          {"compute_s", pass.compute_s},      {"disk_s", pass.disk_s},
          {"memory_s", pass.memory_s},        {"bus_s", pass.bus_s},
          {"not_hidden_s", pass.not_hidden_s}};
}

Json ForecastJson(const Plan& plan) {
  const std::optional<StepForecast>& forecast = plan.forecast;
  if (!forecast.has_value()) return nullptr;
  return {{"step_s", forecast->step_s},           {"tokens_per_s", forecast->tokens_per_s},
          {"bound_s", forecast->bound_s},         {"bound", NameOf(forecast->bound)},
          {"forward", ToJson(forecast->forward)}, {"backward", ToJson(forecast->backward)},
          {"speeds", plan.speeds_origin},         {"speeds_age_s", plan.speeds_age_s}};
}

}  // namespace

Json ToJson(const Plan& plan) {
  Json json;
  json["fits"] = true;
  json["ram_budget_bytes"] = plan.ram_budget_bytes;
  json["host_bytes"] = plan.host_bytes;
  json["nvme_bytes"] = plan.nvme_bytes;
  json["tokens_per_step"] = plan.tokens_per_step;
  json["read_bytes_per_step"] = plan.read_bytes_per_step;
  json["sent_bytes_per_step"] = plan.traffic.sent_bytes;
  json["received_bytes_per_step"] = plan.traffic.received_bytes;
  json["write_bytes_per_step"] = plan.write_bytes_per_step;
  json["io_seconds_per_step"] = plan.io_s_per_step > 0 ? Json(plan.io_s_per_step) : Json(nullptr);
  json["forecast"] = ForecastJson(plan);
  json["better"] = Json::array();
  for (const auto& [text, step_s, tokens_per_s] : plan.better) {
    json["better"].push_back(
        {{"setting", text}, {"step_s", step_s}, {"tokens_per_s", tokens_per_s}});
  }
  const int64_t steps_per_commit = StepsPerCommit(plan.commit_pace);
  json["durability"] = plan.num_slots == 1 ? "none" : "step";
  json["commit_every"] = steps_per_commit > 0 ? Json(steps_per_commit) : Json(nullptr);
  json["commit_bytes"] = plan.commit_bytes;
  json["delay_update_from"] = plan.delay_update_from;
  json["flushes_per_commit"] = kFlushesPerCommit * plan.stripes.size();
  json["rated_tbw"] = plan.rated_tbw;
  const std::optional<int64_t> steps_until_worn = StepsUntilWorn(plan);
  json["steps_until_tbw"] = steps_until_worn.has_value() ? Json(*steps_until_worn) : Json(nullptr);
  json["steps_within_max_tbw"] =
      plan.steps_within_limit.has_value() ? Json(*plan.steps_within_limit) : Json(nullptr);
  json["gradient_area_bytes"] = Total(plan.gradient_area_bytes);
  json["activation_area_bytes"] = Total(plan.activations.AreaBytes(plan.tiles.stripe_weights()));
  json["tile_elems"] = plan.tiles.tile_elems();
  json["num_tiles"] = plan.tiles.num_tiles();
  json["num_staging_tiles"] = plan.num_staging_tiles;
  json["num_block_buffers"] = plan.window.num_block_buffers;
  json["num_large_buffers"] = plan.window.num_large_buffers;
  json["placement"] = PlacementJson(plan.placement);
  json["recompute"] = {{"what", NameOf(plan.recompute.recompute)},
                       {"layers", plan.recompute.num_blocks},
                       {"segment_layers", plan.recompute.segment_blocks},
                       {"vocabulary_in_parts", plan.recompute.vocabulary_in_parts},
                       {"vocabulary_in_pieces", LendsPieces(plan)}};
  json["stripes"] = Json::array();
  for (const PlanStripe& stripe : plan.stripes) {
    json["stripes"].push_back(
        {{"folder", stripe.folder}, {"weight", stripe.weight}, {"nvme_bytes", stripe.nvme_bytes}});
  }
  if (plan.on_gpu()) {
    Json& gpu = json["gpu"];
    gpu = {{"device", plan.gpu.device},
           {"budget_bytes", plan.gpu.budget_bytes},
           {"bytes", plan.gpu.bytes},
           {"activations_in_ram", plan.gpu.num_spilled_activations - plan.activations.num_spilled},
           {"activations_on_nvme", plan.activations.num_spilled},
           {"terms", Json::array()}};
    for (const GpuTerm& term : plan.gpu.terms) {
      gpu["terms"].push_back({{"name", term.name}, {"bytes", term.bytes}});
    }
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
    return count == 0 ? std::string("-") : FormatBinaryBytes(count);
  };
  const Inventory inventory = BuildInventory(model);
  std::string table = fmt::format(
      "model      {}   {} params   {} layers   {} + {}   {} tokens/step ({} x {} x {}{})\n",
      model.architecture, FormatCount(inventory.num_params()), model.num_layers,
      NameOf(options.layout), NameOf(options.optimizer), plan.tokens_per_step,
      options.data_parallel * options.batch, options.seq, options.accum,
      options.num_ranks > 1 ? fmt::format(", of each of {} ranks", options.num_ranks) : "");
  if (options.data_parallel > 1) {
    table += fmt::format("parts      {} of {} rows each, {}\n", options.data_parallel,
                         options.batch, plan.on_gpu() ? "on a GPU each" : "one after the other");
  }
  table += fmt::format("{:<36}{:>16}{:>12}\n", "",
                       "RAM " + FormatBinaryBytes(plan.ram_budget_bytes), "NVMe");
  for (const PlanTerm& term : plan.terms) {
    if (term.host_bytes == 0 && term.nvme_bytes == 0) continue;
    table += fmt::format("{:<36}{:>16}{:>12}\n", term.name, bytes(term.host_bytes),
                         bytes(term.nvme_bytes));
  }
  table +=
      fmt::format("{:<36}{:>16}{:>12}\n", "total", bytes(plan.host_bytes), bytes(plan.nvme_bytes));
  if (plan.on_gpu()) {
    table += fmt::format("{:<36}{:>16}\n", plan.gpu.device,
                         "GPU " + FormatBinaryBytes(plan.gpu.budget_bytes));
    for (const GpuTerm& term : plan.gpu.terms) {
      table += fmt::format("{:<36}{:>16}\n", term.name, bytes(term.bytes));
    }
    table += fmt::format("{:<36}{:>16}\n", "total on the GPU", bytes(plan.gpu.bytes));
  }
  table += StripeLines(plan);
  table += RecomputeLine(plan, model) + VocabularyLine(plan) + ActivationsLine(plan, options);
  table += SpeculationLine(plan);
  table += DelayLine(plan);
  const double params = static_cast<double>(inventory.num_params());
  table +=
      fmt::format("per step   nvme {} read + {} write ({:.1f} + {:.1f} B/param){}\n",
                  FormatBytes(plan.read_bytes_per_step), FormatBytes(plan.write_bytes_per_step),
                  static_cast<double>(plan.read_bytes_per_step) / params,
                  static_cast<double>(plan.write_bytes_per_step) / params,
                  plan.io_s_per_step > 0 ? " = " + FormatDuration(plan.io_s_per_step) : "");
  if (options.num_ranks > 1) {
    table +=
        fmt::format("           ranks {} sent + {} received\n",
                    FormatBytes(plan.traffic.sent_bytes), FormatBytes(plan.traffic.received_bytes));
  }
  table += ForecastLines(plan);
  table += BetterLines(plan);
  table += DurabilityLine(plan);
  table += WearLine(plan);
  table += LimitLine(plan, options);
  table += fmt::format("verdict    fits; RAM spare {}\n",
                       FormatBinaryBytes(plan.ram_budget_bytes - plan.host_bytes));
  return table;
}

}  // namespace forebay
