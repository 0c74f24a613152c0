#include "forebay/train/step/run_compute.h"

#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/model/cuda_decoder/cuda_decoder.h"
#include "forebay/model/decoder.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/step/gpu_window.h"
#include "forebay/train/plan/gpu_plan.h"

namespace forebay {
namespace {

class OnCpu final : public RunCompute {
 public:
  static absl::StatusOr<std::unique_ptr<RunCompute>> Create(const Plan& plan,
                                                            const TrainOptions& options,
                                                            const DecoderConfig& config,
                                                            MemoryBudget* budget) {
    auto made = std::make_unique<OnCpu>();
    made->tokens_per_step_ = plan.tokens_per_step;
    made->recompute_ = plan.recompute;
    made->activations_dtype_ = options.activations_dtype;
    made->budget_ = budget;
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
    FOREBAY_ASSIGN_OR_RETURN(compute_, DecoderCompute::CreateForTraining(
                                           decoder_.get(), tokens_per_step_, budget_,
                                           layers->activations(), recompute_, activations_dtype_));
    return absl::OkStatus();
  }
  LayerCompute& compute() override { return *compute_; }
  ParamSource& source() override { return *layers_; }
  ActivationStorage* activations() override { return layers_->activations(); }
  int64_t most_forward_tokens() const override { return compute_->most_forward_tokens(); }
  std::string kernel_identity() override { return decoder_->context().kernel_identity(); }

 private:
  int64_t tokens_per_step_ = 0;
  BlockRecompute recompute_;
  DType activations_dtype_ = DType::kF32;
  MemoryBudget* budget_ = nullptr;
  LayerSession* layers_ = nullptr;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<DecoderCompute> compute_;
};

class OnGpu final : public RunCompute {
 public:
  static absl::StatusOr<std::unique_ptr<RunCompute>> Create(const Plan& plan,
                                                            const TrainOptions& options,
                                                            const DecoderConfig& config,
                                                            MemoryBudget* budget,
                                                            MatmulAlgorithms* algorithms) {
    auto made = std::make_unique<OnGpu>(plan.gpu.budget_bytes);
    made->options_ = CudaDecoderOptionsOf(options, plan.gpu);
    made->place_bytes_ = GpuPlaceBytes(options, BuildInventory(config));
    FOREBAY_ASSIGN_OR_RETURN(made->device_, CreateCudaDevice(options.gpu_index));
    FOREBAY_ASSIGN_OR_RETURN(made->compute_,
                             CreateCudaDecoder(config, made->options_, made->device_.get(),
                                               &made->device_budget_, budget, algorithms));
    if (algorithms != nullptr) made->algorithms_ = TextOf(*algorithms);
    return made;
  }
  explicit OnGpu(int64_t budget_bytes) : device_budget_(budget_bytes, "--gpu_mem") {}

  Device* device() override { return device_.get(); }
  MemoryBudget* device_budget() override { return &device_budget_; }
  absl::Status Attach(LayerSession* layers) override {
    FOREBAY_RETURN_IF_ERROR(device_budget_.Charge("weights on the GPU", kGpuPlaces * place_bytes_));
    FOREBAY_ASSIGN_OR_RETURN(window_,
                             GpuWindow::Create(layers, device_.get(), kGpuPlaces, place_bytes_));
    if (layers->activations() != nullptr) compute_->SpillTo(layers->activations());
    return absl::OkStatus();
  }
  void Detach() override { compute_->EndSpilling(); }
  LayerCompute& compute() override { return *compute_; }
  ParamSource& source() override { return *window_; }
  ActivationStorage* activations() override { return &compute_->activations(); }
  int64_t most_forward_tokens() const override { return options_.step_tokens; }
  std::string kernel_identity() override {
    return fmt::format("{}, {}{}", device_->name(), NameOf(options_.dtype), algorithms_);
  }

 private:
  static std::string TextOf(const MatmulAlgorithms& algorithms) {
    return fmt::format(", cuBLASLt {} with algorithms {}", algorithms.library,
                       DigestOf(algorithms).substr(0, 8));
  }

  CudaDecoderOptions options_;
  std::string algorithms_;
  int64_t place_bytes_ = 0;
  MemoryBudget device_budget_;
  // In this order, so that each is destroyed before what it uses: the window waits for events of
  // the computation.
  std::unique_ptr<Device> device_;
  std::unique_ptr<CudaDecoder> compute_;
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
