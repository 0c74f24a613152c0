#include "forebay/train/step/run_compute.h"

#include <span>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/cuda_decoder/cuda_decoder.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/offload/ranks/part_gradients.h"
#include "forebay/step/gpu_window.h"
#include "forebay/train/plan/gpu_plan.h"
#include "forebay/train/step/divided_compute.h"

namespace forebay {
namespace {

// The parts are computed one after the other, with one decoder's workspace.
class OnCpu final : public RunCompute {
 public:
  static absl::StatusOr<std::unique_ptr<RunCompute>> Create(const Plan& plan,
                                                            const TrainOptions& options,
                                                            const DecoderConfig& config,
                                                            MemoryBudget* budget) {
    auto made = std::make_unique<OnCpu>();
    made->tokens_per_part_ = plan.tokens_per_step / options.data_parallel;
    made->recompute_ = plan.recompute;
    made->activations_dtype_ = options.activations_dtype;
    made->budget_ = budget;
    made->parts_.resize(static_cast<size_t>(options.data_parallel));
    FOREBAY_ASSIGN_OR_RETURN(made->decoder_,
                             Decoder::Create(config,
                                             {.num_threads = options.threads,
                                              .precision = options.precision,
                                              .max_tokens = options.batch * options.seq},
                                             budget));
    return made;
  }

  ThreadPool* pool() override { return &decoder_->context().pool(); }
  absl::Status Attach(LayerSession* layers) override {
    layers_ = layers;
    std::vector<LayerCompute*> parts;
    for (std::unique_ptr<DecoderCompute>& part : parts_) {
      FOREBAY_ASSIGN_OR_RETURN(part, DecoderCompute::CreateForTraining(
                                         decoder_.get(), tokens_per_part_, budget_,
                                         layers->activations(), recompute_, activations_dtype_));
      parts.push_back(part.get());
    }
    if (parts.size() == 1) return absl::OkStatus();
    FOREBAY_CHECK(layers->activations() == nullptr);  // those of a part have no buffers there
    FOREBAY_ASSIGN_OR_RETURN(
        std::unique_ptr<PartGradients> gradients,
        HostPartGradients::Create(decoder_->inventory().largest_layer_elems(), pool(), budget_));
    divided_ = std::make_unique<DividedCompute>(std::move(parts), std::move(gradients), nullptr);
    return absl::OkStatus();
  }
  LayerCompute& compute() override {
    return divided_ != nullptr ? static_cast<LayerCompute&>(*divided_) : *parts_.front();
  }
  ParamSource& source() override { return *layers_; }
  ActivationStorage* activations() override { return layers_->activations(); }
  int64_t most_forward_tokens() const override { return parts_.front()->most_forward_tokens(); }
  std::string kernel_identity() override { return decoder_->context().kernel_identity(); }

 private:
  int64_t tokens_per_part_ = 0;
  BlockRecompute recompute_;
  DType activations_dtype_ = DType::kF32;
  MemoryBudget* budget_ = nullptr;
  LayerSession* layers_ = nullptr;
  std::unique_ptr<Decoder> decoder_;
  std::vector<std::unique_ptr<DecoderCompute>> parts_;
  std::unique_ptr<DividedCompute> divided_;  // nullptr: all is one part
};

// Each part on a GPU of its own. The session's memory and state are the first one's.
class OnGpu final : public RunCompute {
 public:
  static absl::StatusOr<std::unique_ptr<RunCompute>> Create(const Plan& plan,
                                                            const TrainOptions& options,
                                                            const DecoderConfig& config,
                                                            MemoryBudget* budget,
                                                            MatmulAlgorithms* algorithms) {
    auto made = std::make_unique<OnGpu>();
    made->options_ = CudaDecoderOptionsOf(options, plan.gpu);
    const Inventory inventory = BuildInventory(config);
    made->places_ = GpuPlacesOf(options, inventory);
    made->largest_elems_ = inventory.largest_layer_elems();
    made->budget_ = budget;
    for (int part = 0; part < options.data_parallel; ++part) {
      auto gpu = std::make_unique<Gpu>(plan.gpu.budget_bytes);
      FOREBAY_ASSIGN_OR_RETURN(gpu->device, CreateCudaDevice(options.gpu_index + part));
      const std::string card = gpu->device->card();
      if (part > 0 && card != made->gpus_.front()->device->card()) {
        return EnvironmentError(fmt::format(
            "--data_parallel={} takes GPUs of one kind, as each kind adds products in an order of "
            "its own, but {} is not as {}. Choose others with CUDA_VISIBLE_DEVICES",
            options.data_parallel, gpu->device->name(), made->gpus_.front()->device->name()));
      }
      if (!options.trace.empty()) {
        FOREBAY_ASSIGN_OR_RETURN(
            gpu->trace, StreamTrace::Create(gpu->device.get(), NameInTrace(options, part)));
      }
      FOREBAY_ASSIGN_OR_RETURN(
          gpu->compute, CreateCudaDecoder(config, made->options_, gpu->device.get(), &gpu->budget,
                                          budget, algorithms));
      made->gpus_.push_back(std::move(gpu));
    }
    // The first GPU may choose, and the others compute with the same.
    if (algorithms != nullptr) made->algorithms_ = TextOf(*algorithms);
    return made;
  }

  Device* device() override { return gpus_.front()->device.get(); }
  MemoryBudget* device_budget() override { return &gpus_.front()->budget; }
  std::vector<StreamTrace*> stream_traces() override {
    std::vector<StreamTrace*> traces;
    for (const std::unique_ptr<Gpu>& gpu : gpus_) {
      if (gpu->trace != nullptr) traces.push_back(gpu->trace.get());
    }
    return traces;
  }
  absl::Status Attach(LayerSession* layers) override {
    std::vector<Device*> devices;
    for (const std::unique_ptr<Gpu>& gpu : gpus_) {
      FOREBAY_RETURN_IF_ERROR(gpu->budget.Charge("weights on the GPU", places_.TotalBytes()));
      devices.push_back(gpu->device.get());
    }
    const auto used = [this](size_t part, int layer) {
      return gpus_[part]->compute->WeightsAreUsed(layer);
    };
    FOREBAY_ASSIGN_OR_RETURN(window_, GpuWindow::Create(layers, devices, places_, used));
    if (layers->activations() != nullptr) {
      gpus_.front()->compute->SpillTo(layers->activations());
    }
    return devices.size() == 1 ? absl::OkStatus() : Divide(devices);
  }
  void Detach() override { gpus_.front()->compute->EndSpilling(); }
  LayerCompute& compute() override {
    return divided_ != nullptr ? static_cast<LayerCompute&>(*divided_) : *gpus_.front()->compute;
  }
  ParamSource& source() override { return *window_; }
  ActivationStorage* activations() override {
    return activations_ != nullptr ? activations_.get() : &gpus_.front()->compute->activations();
  }
  int64_t most_forward_tokens() const override { return options_.step_tokens; }
  std::string kernel_identity() override {
    std::string names;
    for (const std::unique_ptr<Gpu>& gpu : gpus_) names += gpu->device->name() + ", ";
    return fmt::format("{}{}{}", names, NameOf(options_.dtype), algorithms_);
  }

 private:
  static std::string NameInTrace(const TrainOptions& options, int part) {
    return options.data_parallel == 1 ? "GPU" : fmt::format("GPU {}", options.gpu_index + part);
  }
  static std::string TextOf(const MatmulAlgorithms& algorithms) {
    return fmt::format(", cuBLASLt {} with algorithms {}", algorithms.library,
                       DigestOf(algorithms).substr(0, 8));
  }
  struct Gpu {
    explicit Gpu(int64_t budget_bytes) : budget(budget_bytes, "--gpu_mem") {}
    MemoryBudget budget;
    std::unique_ptr<Device> device;
    std::unique_ptr<StreamTrace> trace;  // nullptr: none
    std::unique_ptr<CudaDecoder> compute;
  };

  absl::Status Divide(std::span<Device* const> devices) {
    std::vector<LayerCompute*> parts;
    std::vector<ActivationStorage*> activations;
    for (const std::unique_ptr<Gpu>& gpu : gpus_) {
      parts.push_back(gpu->compute.get());
      activations.push_back(&gpu->compute->activations());
    }
    FOREBAY_ASSIGN_OR_RETURN(
        std::unique_ptr<PartGradients> gradients,
        GpuPartGradients::Create(devices, largest_elems_, device_budget(), budget_));
    divided_ = std::make_unique<DividedCompute>(
        std::move(parts), std::move(gradients),
        [this](size_t part, int layer) { return window_->WeightsOn(part, layer); });
    activations_ = std::make_unique<DividedActivations>(std::move(activations));
    return absl::OkStatus();
  }

  CudaDecoderOptions options_;
  std::string algorithms_;
  GpuPlaces places_;
  int64_t largest_elems_ = 0;
  MemoryBudget* budget_ = nullptr;
  // In this order, so that each is destroyed before what it uses: the window waits for events of
  // the computation.
  std::vector<std::unique_ptr<Gpu>> gpus_;
  std::unique_ptr<DividedCompute> divided_;  // nullptr: all is one part
  std::unique_ptr<ActivationStorage> activations_;
  std::unique_ptr<GpuWindow> window_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RunCompute>> RunCompute::Create(const Plan& plan,
                                                               const TrainOptions& options,
                                                               const DecoderConfig& config,
                                                               MemoryBudget* budget,
                                                               MatmulAlgorithms* algorithms) {
  return plan.on_gpu() ? OnGpu::Create(plan, options, config, budget, algorithms)
                       : OnCpu::Create(plan, options, config, budget);
}

}  // namespace forebay
