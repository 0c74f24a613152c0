#include "forebay/bench/cuda_ops/copies.h"

#include <functional>
#include <memory>
#include <vector>

#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"

namespace forebay {
namespace {

// In one direction: host memory, its twin on the GPU, a stream, and an event for each piece.
struct Lane {
  HostBuffer host;
  DeviceBuffer on_device;
  std::unique_ptr<Stream> stream;
  std::vector<std::unique_ptr<Event>> events;
};

absl::StatusOr<Lane> MakeLane(BenchGpu& gpu, MemoryBudget* budget, int64_t size_bytes,
                              int64_t num_pieces) {
  Lane lane;
  Device& device = gpu.device();
  FOREBAY_ASSIGN_OR_RETURN(lane.host,
                           HostBuffer::Create(budget, "copies", size_bytes, {.device = &device}));
  if (!lane.host.pinned()) {
    return EnvironmentError("host memory could not be pinned for the GPU: " +
                            lane.host.pages().note);
  }
  FOREBAY_ASSIGN_OR_RETURN(lane.on_device, device.Allocate(size_bytes));
  FOREBAY_ASSIGN_OR_RETURN(lane.stream, device.CreateStream());
  for (int64_t i = 0; i < num_pieces; ++i) {
    FOREBAY_ASSIGN_OR_RETURN(lane.events.emplace_back(), device.CreateEvent());
  }
  return lane;
}

absl::Status Enqueue(Lane& lane, bool to_device) {
  const size_t piece_bytes = lane.host.bytes().size() / lane.events.size();
  for (size_t i = 0; i < lane.events.size(); ++i) {
    const std::span<std::byte> piece = lane.host.bytes().subspan(i * piece_bytes, piece_bytes);
    std::byte* const there = lane.on_device.As<std::byte>() + i * piece_bytes;
    FOREBAY_RETURN_IF_ERROR(to_device ? lane.stream->CopyToDevice(there, piece)
                                      : lane.stream->CopyToHost(piece, there));
    FOREBAY_RETURN_IF_ERROR(lane.stream->Record(*lane.events[i]));
  }
  return absl::OkStatus();
}

// The median of the time until both lanes, or one (the other is nullptr), are through.
absl::StatusOr<double> SecondsOf(const BenchGpu& gpu, Lane* to_device, Lane* to_host) {
  std::vector<double> seconds;
  for (int i = 0; i <= gpu.settings().repeats; ++i) {
    const Stopwatch watch;
    if (to_device != nullptr) FOREBAY_RETURN_IF_ERROR(Enqueue(*to_device, true));
    if (to_host != nullptr) FOREBAY_RETURN_IF_ERROR(Enqueue(*to_host, false));
    if (to_device != nullptr) FOREBAY_RETURN_IF_ERROR(to_device->stream->Await());
    if (to_host != nullptr) FOREBAY_RETURN_IF_ERROR(to_host->stream->Await());
    if (i > 0) seconds.push_back(watch.Seconds());  // the first one wakes the bus up
  }
  return MedianOf(std::move(seconds));
}

absl::StatusOr<CopyRates> Measure(BenchGpu& gpu, int64_t size_bytes, int64_t num_pieces) {
  MemoryBudget budget(0);
  FOREBAY_ASSIGN_OR_RETURN(Lane down, MakeLane(gpu, &budget, size_bytes, num_pieces));
  FOREBAY_ASSIGN_OR_RETURN(Lane up, MakeLane(gpu, &budget, size_bytes, num_pieces));
  const auto bytes = static_cast<double>(size_bytes);
  CopyRates rates;
  FOREBAY_ASSIGN_OR_RETURN(const double down_s, SecondsOf(gpu, &down, nullptr));
  FOREBAY_ASSIGN_OR_RETURN(const double up_s, SecondsOf(gpu, nullptr, &up));
  FOREBAY_ASSIGN_OR_RETURN(const double both_s, SecondsOf(gpu, &down, &up));
  rates.to_device = bytes / down_s;
  rates.to_host = bytes / up_s;
  rates.both = 2 * bytes / both_s;
  return rates;
}

int64_t CopiedBytes(const BenchGpu& gpu) {
  return gpu.settings().tiny ? int64_t{1} << 16 : int64_t{1} << 30;
}

}  // namespace

absl::StatusOr<CopyRates> MeasureRawCopies(BenchGpu& gpu) {
  return Measure(gpu, CopiedBytes(gpu), 1);
}

absl::StatusOr<CopyRates> MeasureLayerCopies(BenchGpu& gpu) {
  return Measure(gpu, CopiedBytes(gpu), 16);
}

}  // namespace forebay
