#include <cmath>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/base/process/cores.h"
#include "forebay/measure/report/report_json.h"
#include "forebay/model/llama_shapes.h"
#include "forebay/replay/step_bench.h"
#include "forebay/tools/print.h"
#include "forebay/tools/swap_bench/bench_output.h"
#include "forebay/tools/swap_bench/job_flags.h"
#include "forebay/tools/swap_bench/program.h"
#include "forebay/tools/swap_bench/step_text.h"
#include "forebay/tools/swap_bench/storage_flags.h"

namespace forebay {
namespace {

class BenchStepCommand : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("DIR", directories_,
                   "a folder on the disk to be measured, or several, over which the store is "
                   "striped as that of a run; DIR:WEIGHT sets its share")
        ->required();
    const auto text = [&app](const std::string& name, std::string& into, const std::string& value,
                             const std::string& help) {
      app.add_option("--" + name, into, help)->type_name(value)->take_last();
    };
    text("params", params_, "N", "a Llama model of about so many parameters: 13B, 1.1B, 135M");
    text("config", config_, "PATH", "instead: a config.json, or a folder that holds one");
    text("layout", layout_, "bf16|fp16|fp32|bf16-moments|int8-moments",
         "how weights and state are kept (default: bf16)");
    text("grad_dtype", gradient_dtype_, "bf16|fp16|fp32",
         "of finished gradients (default: as --layout)");
    text("gradients", gradients_, "ram|nvme",
         "where they wait for their norm; nvme: what a run does whose --ram is short (default: "
         "ram)");
    text("activations", activations_, "ram|nvme",
         "where they wait for the backward pass; nvme: what a run does with "
         "--activations_tier=nvme (default: ram)");
    text("tokens", tokens_, "N", "of a step, which say how large activations are (default: 4096)");
    text("durability", durability_, "none|step",
         "what a crash leaves of the run: its last export, or its last step (default: step)");
    text("tile_elems", tile_elems_, "N", "elements of one tile (default: 1M)");
    text("ram", ram_, "SIZE", "for all buffers (default: 80 % of what is available)");
    text("compute", compute_, "none|adamw",
         "I/O alone, or with the optimizer's update (default: none)");
    text("threads", threads_, "N", "of the update; 0: one per core that it may use (default: 0)");
    text("time", time_, "TIME",
         "about as long as steps are replayed; a model that takes longer is cut to a slice "
         "(default: 30s)");
    text("tbw", tbw_, "X", "TB that the drive is rated to write in its life (default: 600)");
    storage_.Declare(app);
    output_.Declare(app, /*plot=*/false);
  }

  absl::Status Run(const CommandContext& context) override {
    FOREBAY_RETURN_IF_ERROR(Read());
    FOREBAY_RETURN_IF_ERROR(ReadFolders());
    FOREBAY_RETURN_IF_ERROR(ReadModel());
    FOREBAY_RETURN_IF_ERROR(output_.Check());
    FOREBAY_RETURN_IF_ERROR(CatchBenchStopSignals());
    BenchProgress progress(output_.live());
    FOREBAY_ASSIGN_OR_RETURN(const StepBenchReport report,
                             RunStepBench(options_, progress.Hooks()));
    progress.Clear();
    Json json = ReportToJson(report.bench, FOREBAY_VERSION, {});
    json["step"] = {{"model", model_}};
    json["step"].update(StepToJson(report, rated_tbw_));
    const absl::Status written = output_.WriteFiles(json, "");
    PrintTo(stdout, "{}",
            context.json              ? DumpResults(json)
            : context.format == "csv" ? StepCsv(report, rated_tbw_)
                                      : StepText(report, model_, rated_tbw_, FOREBAY_VERSION));
    return written;
  }

 private:
  // All have a weight, or none has.
  absl::Status ReadFolders() {
    for (const std::string& directory : directories_) {
      options_.targets.push_back(ParseTarget(directory));
      const double weight = options_.targets.back().weight;
      // In thousandths, as the store keeps them.
      if (weight != 0 && !(weight >= 0.001 && weight <= 1e6)) {
        return UsageError(
            fmt::format("the weight in '{}' is no number from 0.001 to 1000000", directory));
      }
      if ((weight > 0) != (options_.targets.front().weight > 0)) {
        return UsageError("give every folder a weight, such as /a:2 /b:1, or none");
      }
    }
    if (options_.targets.size() > static_cast<size_t>(kMaxStripes)) {
      return UsageError(
          fmt::format("{} folders; allowed: up to {}", options_.targets.size(), kMaxStripes));
    }
    return absl::OkStatus();
  }

  absl::Status Read() {
    FlagReader reader;
    OffloadOptions& offload = options_.replay.offload;
    const std::optional<Layout> layout = LayoutOf(layout_);
    if (layout.has_value()) {
      offload.layout = *layout;
    } else {
      reader.Problem("layout", fmt::format("'{}'; allowed: {}", layout_,
                                           "bf16, fp16, fp32, bf16-moments or int8-moments"));
    }
    offload.grad_dtype = WeightDType(offload.layout);
    if (!gradient_dtype_.empty()) {
      reader.TakeWord<DType>("grad_dtype", gradient_dtype_,
                             {{"bf16", DType::kBF16}, {"fp16", DType::kF16}, {"fp32", DType::kF32}},
                             offload.grad_dtype);
    }
    reader.TakeWord<TierChoice>("gradients", gradients_,
                                {{"ram", TierChoice::kHost}, {"nvme", TierChoice::kNvme}},
                                offload.gradients_tier);
    reader.TakeWord<ActivationsTier>(
        "activations", activations_,
        {{"ram", ActivationsTier::kRam}, {"nvme", ActivationsTier::kNvme}},
        offload.activations_tier);
    reader.TakeNumber("tokens", tokens_, num_tokens_);
    if (num_tokens_ < 1 || num_tokens_ > int64_t{1} << 30) {
      reader.Problem("tokens", fmt::format("'{}' is not from 1 to 1G", tokens_));
    }
    reader.TakeWord<Durability>("durability", durability_,
                                {{"none", Durability::kNone}, {"step", Durability::kStep}},
                                offload.durability);
    reader.Take("tile_elems", ParseSize(tile_elems_), offload.tile_elems);
    if (offload.tile_elems <= 0 || offload.tile_elems % kLayerAlignElems != 0 ||
        offload.tile_elems > int64_t{1} << 30) {
      reader.Problem("tile_elems", fmt::format("'{}' is no multiple of {} up to 1G", tile_elems_,
                                               kLayerAlignElems));
    }
    if (!ram_.empty()) reader.Take("ram", ParseSize(ram_), options_.ram_bytes);
    reader.TakeWord<ReplayCompute>(
        "compute", compute_, {{"none", ReplayCompute::kNone}, {"adamw", ReplayCompute::kAdamW}},
        options_.compute);
    reader.TakeNumber("threads", threads_, options_.num_threads);
    if (options_.num_threads < 0 || options_.num_threads > 1024) {
      reader.Problem("threads", fmt::format("'{}' is not from 0 to 1024", threads_));
    }
    if (options_.num_threads == 0) options_.num_threads = DefaultThreads();
    reader.Take("time", ParseDuration(time_), options_.seconds);
    if (!(options_.seconds > 0 && options_.seconds <= 86400)) {
      reader.Problem("time", fmt::format("'{}'; allowed: above 0 to 24h", time_));
    }
    reader.TakeNumber("tbw", tbw_, rated_tbw_);
    if (!(rated_tbw_ > 0 && rated_tbw_ <= 1e9)) {
      reader.Problem("tbw", fmt::format("'{}' is no number above 0 to 1e9", tbw_));
    }
    storage_.Read(reader);
    options_.engine = storage_.engine;
    options_.strict = storage_.strict;
    options_.size_bytes = storage_.size_bytes;
    options_.seed = storage_.seed;
    return reader.status();
  }

  absl::Status ReadModel() {
    if (!params_.empty() && !config_.empty()) {
      return UsageError("--params and --config both say which model: give one of them");
    }
    if (params_.empty() && config_.empty()) {
      return UsageError(
          "which model? Give --params, such as --params=13B, or --config with a config.json");
    }
    DecoderConfig config;
    if (!config_.empty()) {
      FOREBAY_ASSIGN_OR_RETURN(config, ReadDecoderConfigAt(config_));
      model_ = config_;
    } else {
      const absl::StatusOr<int64_t> count = ParseParamCount(params_);
      if (!count.ok()) return Annotate(count.status(), "--params");
      LlamaShape shape = LlamaShapeOf(*count);
      config = std::move(shape.config);
      model_ = std::move(shape.description);
    }
    options_.replay.inventory = BuildInventory(config);
    options_.replay.loss_reads_first = config.tied_embeddings;
    options_.replay.activation_bytes = ForwardBytes(config, num_tokens_);
    return absl::OkStatus();
  }

  StepBenchOptions options_;
  std::vector<std::string> directories_;
  StorageFlags storage_;
  OutputFlags output_;
  double rated_tbw_ = 600;
  int64_t num_tokens_ = 0;
  std::string model_;
  std::string params_, config_, gradient_dtype_, ram_;
  std::string layout_ = "bf16";
  std::string gradients_ = "ram";
  std::string activations_ = "ram";
  std::string tokens_ = "4096";
  std::string durability_ = "step";
  std::string tile_elems_ = "1M";
  std::string compute_ = "none";
  std::string threads_ = "0";
  std::string time_ = "30s";
  std::string tbw_ = "600";
};

}  // namespace

std::unique_ptr<Command> MakeBenchStepCommand() {
  return std::make_unique<BenchStepCommand>();
}

}  // namespace forebay
