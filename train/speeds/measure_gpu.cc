#include "forebay/train/speeds/measure_gpu.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/device/device.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/cuda_decoder/cuda_decoder.h"
#include "forebay/model/decoder_flops.h"
#include "forebay/step/gpu_residents.h"
#include "forebay/step/layer_walk.h"
#include "forebay/step/step_schedule.h"
#include "forebay/train/plan/gpu_plan.h"

namespace forebay {
namespace {

// A GPU needs more of them at once than a CPU to be busy.
constexpr int64_t kMostTokensOnGpu = 8192;
constexpr int64_t kCopyBytes = int64_t{64} << 20;
constexpr int kCopiesOfCall = 4;

// Every layer has the same values, from the beginning of one buffer.
class SameWeights final : public ParamSource {
 public:
  SameWeights(const Inventory& inventory, DType dtype, std::span<const std::byte> bytes)
      : inventory_(inventory), dtype_(dtype), bytes_(bytes) {}
  void Expect(std::span<const int> /*layers*/) override {}
  absl::StatusOr<WeightsLease> Acquire(int layer) override {
    const int64_t elems = inventory_.layers()[static_cast<size_t>(layer)].num_elems;
    const auto size_bytes = static_cast<size_t>(elems * SizeOf(dtype_));
    return WeightsLease(this, layer, {.dtype = dtype_, .data = bytes_.first(size_bytes)});
  }

 private:
  void Release(int /*layer*/, Event* /*done*/) override {}

  const Inventory& inventory_;
  const DType dtype_;
  const std::span<const std::byte> bytes_;
};

absl::StatusOr<std::unique_ptr<GpuResidents>> RandomResidents(const Inventory& inventory,
                                                              DType dtype, Device* device,
                                                              MemoryBudget* host_budget) {
  FOREBAY_ASSIGN_OR_RETURN(const HostBuffer memory,
                           HostBuffer::Create(host_budget, "measurement",
                                              inventory.largest_layer_elems() * SizeOf(dtype)));
  FillRandom(dtype, memory.bytes());
  SameWeights loader(inventory, dtype, memory.bytes());
  std::vector<int> layers(inventory.layers().size());
  std::iota(layers.begin(), layers.end(), 0);
  return GpuResidents::Create(layers, &loader, device);
}

absl::Status CopyBothWays(Stream& to_gpu, Stream& from_gpu, const DeviceBuffer& on_gpu,
                          std::span<std::byte> in_ram) {
  const size_t half = in_ram.size() / 2;
  std::byte* const read_half = on_gpu.As<std::byte>() + half;
  for (int i = 0; i < kCopiesOfCall; ++i) {
    FOREBAY_RETURN_IF_ERROR(to_gpu.CopyToDevice(on_gpu.address(), in_ram.first(half)));
    FOREBAY_RETURN_IF_ERROR(from_gpu.CopyToHost(in_ram.subspan(half), read_half));
  }
  FOREBAY_RETURN_IF_ERROR(to_gpu.Await());
  return from_gpu.Await();
}

}  // namespace

MeasuredTokens TokensOnGpu(const TrainOptions& options) {
  return TokensToMeasure(options, kMostTokensOnGpu);
}

absl::StatusOr<double> MeasureGpuBlock(const DecoderConfig& model, const TrainOptions& options,
                                       const std::function<bool()>& stop) {
  const DecoderConfig config = OneBlockOf(model);
  const Inventory inventory = BuildInventory(config);
  const MeasuredTokens tokens = TokensOnGpu(options);
  CudaDecoderOptions decoder_options = CudaDecoderOptionsOf(options, GpuPlan());
  decoder_options.max_tokens = decoder_options.step_tokens = tokens.num_tokens();
  decoder_options.num_batches = 1;
  MemoryBudget host_budget(0), device_budget(0);
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                           CreateCudaDevice(options.gpu_index));
  MatmulAlgorithms algorithms;
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<CudaDecoder> decoder,
                           CreateCudaDecoder(config, decoder_options, device.get(), &device_budget,
                                             &host_budget, &algorithms));
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<GpuResidents> weights,
      RandomResidents(inventory, decoder_options.dtype, device.get(), &host_budget));
  LayerWalk walk(ChainSchedule({.num_layers = static_cast<int>(inventory.layers().size()),
                                .loss_reads_first = config.tied_embeddings})
                     .operations);
  const std::vector<MicroBatch> batches = {BatchOf(tokens)};
  WalkHooks hooks;
  Event* is_complete = nullptr;  // the last gradient
  hooks.hand = [&](const LayerGradient& gradient) {
    is_complete = gradient.ready;
    return absl::OkStatus();
  };
  FOREBAY_ASSIGN_OR_RETURN(
      const double seconds, MedianSeconds(stop, [&]() -> absl::Status {
        FOREBAY_RETURN_IF_ERROR(decoder->BeginPass(batches, /*gradient_scale=*/1));
        walk.Announce(*weights);
        FOREBAY_RETURN_IF_ERROR(walk.Run(*weights, *decoder, hooks));
        return is_complete->Await();
      }));
  const DecoderFlops flops = FlopsOf(config, tokens.num_tokens(), tokens.seq);
  return (flops.forward + flops.backward) / seconds;
}

absl::StatusOr<double> MeasureBus(const TrainOptions& options, const std::function<bool()>& stop) {
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                           CreateCudaDevice(options.gpu_index));
  MemoryBudget budget(0);
  FOREBAY_ASSIGN_OR_RETURN(
      const HostBuffer in_ram,
      HostBuffer::Create(&budget, "measurement", 2 * kCopyBytes, {.device = device.get()}));
  FOREBAY_ASSIGN_OR_RETURN(const DeviceBuffer on_gpu, device->Allocate(2 * kCopyBytes));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> to_gpu, device->CreateStream());
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> from_gpu, device->CreateStream());
  FOREBAY_RETURN_IF_ERROR(to_gpu->Fill(on_gpu.address(), std::byte{0}, on_gpu.size_bytes()));
  FOREBAY_RETURN_IF_ERROR(to_gpu->Await());
  FOREBAY_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(stop, [&] {
                             return CopyBothWays(*to_gpu, *from_gpu, on_gpu, in_ram.bytes());
                           }));
  return static_cast<double>(kCopiesOfCall * kCopyBytes) / seconds;
}

}  // namespace forebay
