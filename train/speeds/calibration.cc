#include "forebay/train/speeds/calibration.h"

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/io_profile.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/process/cores.h"
#include "forebay/device/cuda_info.h"
#include "forebay/model/cpu/ops.h"
#include "forebay/train/files/cache_folder.h"
#include "forebay/train/plan/gpu_plan.h"

namespace forebay {
namespace {

constexpr char kFlops[] = "flops_per_s";
constexpr char kBytes[] = "bytes_per_s";
constexpr char kReadBytes[] = "read_bytes_per_s";
constexpr char kWriteBytes[] = "write_bytes_per_s";

// The number of the way in which speeds are measured, and of FlopsOf, by which a block's time
// becomes one: one more when any of it changes, so that no speed is kept that was taken otherwise.
constexpr int kMeasurement = 4;

// All is measured in turns, and the median counts: a machine that is busy for a second or two then
// spoils one turn of each part, and not all that is known of one of them. Blocks of large models
// take so long that there are fewer turns.
constexpr int kLeastTurns = 2;
constexpr int kMostTurns = 5;
constexpr double kSecondsOfTurns = 10;

// Of each speed the median; of two the higher one, as others only make it lower. Requires: turns
// have the same names, and there are some.
Speeds MedianOf(const std::vector<Speeds>& turns) {
  Speeds medians;
  for (const auto& [name, speed] : turns.front()) {
    std::vector<double> values;
    for (const Speeds& turn : turns) values.push_back(turn.at(name));
    const auto middle = values.begin() + std::ssize(values) / 2;
    std::ranges::nth_element(values, middle);
    medians[name] = *middle;
  }
  return medians;
}

// The lines of /proc/cpuinfo that say which CPU it is.
std::string CpuName() {
  constexpr int64_t kMostBytes = 1 << 20;
  const std::string text = ReadWholeFile("/proc/cpuinfo", kMostBytes).value_or("");
  const size_t begin = text.find("model name");
  return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

int ComputeThreads(const TrainOptions& options, const MachineLimits& limits) {
  return options.threads > 0 ? options.threads : limits.num_cores;
}

int UpdateThreads(const TrainOptions& options, const MachineLimits& limits) {
  return options.update_threads > 0 ? options.update_threads : ComputeThreads(options, limits);
}

Json KeyOf(std::string_view what, int num_threads) {
  return {{"what", what},     {"version", FOREBAY_VERSION}, {"measurement", kMeasurement},
          {"cpu", CpuName()}, {"cores", NumUsableCores()},  {"threads", num_threads}};
}

// All that the speed of a block depends on, on any device.
void AddBlock(const DecoderConfig& model, const MeasuredTokens& tokens, Json& key) {
  key["tokens"] = {tokens.rows, tokens.seq};
  key["model"] = {model.architecture, model.hidden_size, model.intermediate_size, model.num_heads,
                  model.num_kv_heads, model.head_dim,    model.qkv_bias,          model.out_bias,
                  model.mlp_bias,     model.qk_norm};
  key["window"] = model.window.empty() ? 0 : model.window.front();
}

Json KeyOfBlock(const DecoderConfig& model, const TrainOptions& options,
                const MachineLimits& limits) {
  Json key = KeyOf("block", ComputeThreads(options, limits));
  key["library"] = cpu::Context(1, options.precision).kernel_identity();
  AddBlock(model, TokensOnCpu(options), key);
  return key;
}

// The card with its number: the same card in another place may have another bus.
Json KeyOfGpu(std::string_view what, const MachineLimits& limits) {
  const CudaInfo info = AskCudaLibraries();
  return {{"what", what},
          {"version", FOREBAY_VERSION},
          {"measurement", kMeasurement},
          {"cpu", CpuName()},
          {"gpu", limits.gpu.name},
          {"cuda", {info.runtime_version, info.driver_version, info.cublaslt_file}}};
}

Json KeyOfGpuBlock(const DecoderConfig& model, const TrainOptions& options,
                   const MachineLimits& limits) {
  Json key = KeyOfGpu("GPU block", limits);
  key["precision"] = {NameOf(cpu::WeightDType(options.precision)), options.tf32};
  AddBlock(model, TokensOnGpu(options), key);
  return key;
}

Json KeyOfBus(const MachineLimits& limits) {
  return KeyOfGpu("bus", limits);
}

Json KeyOfUpdate(const TrainOptions& options, const MachineLimits& limits) {
  Json key = KeyOf("update", UpdateThreads(options, limits));
  key["optimizer"] = NameOf(options.optimizer);
  key["layout"] = NameOf(options.layout);
  key["gradient"] = NameOf(options.grad_dtype);
  key["momentum"] = options.momentum > 0;
  return key;
}

absl::StatusOr<Json> KeyOfDisk(const TrainOptions& options, const std::string& folder) {
  FOREBAY_ASSIGN_OR_RETURN(const DeviceKey device, AskDeviceKey(folder));
  return Json{{"what", "disk"},
              {"version", FOREBAY_VERSION},
              {"device", device.device},
              {"file_system", device.file_system},
              {"kernel", device.kernel},
              {"engine", NameOf(options.engine)},
              {"measurement", kMeasurement}};
}

std::string OriginText(double age_s) {
  constexpr double kNow = 60, kDay = 86400;
  if (age_s < kNow) return "measured just now";
  if (age_s < 2 * kDay) return fmt::format("measured {} ago", FormatDuration(age_s));
  return fmt::format("measured {:.0f} days ago", age_s / kDay);
}

}  // namespace

Calibration Calibration::OfThisUser() {
  const absl::StatusOr<std::string> folder = CacheFolder("speeds");
  if (folder.ok()) return Calibration(SpeedCache(*folder));
  Calibration calibration(std::nullopt);
  calibration.notes_.push_back("speeds are not kept: " + MessageOf(folder.status()));
  return calibration;
}

std::optional<KeptSpeeds> Calibration::Find(const Json& key) const {
  if (const auto own = measured_.find(key.dump()); own != measured_.end()) {
    return KeptSpeeds{own->second, 0};
  }
  return cache_.has_value() ? cache_->Find(key) : std::nullopt;
}

void Calibration::Keep(const Json& key, Speeds speeds) {
  if (cache_.has_value()) {
    if (const absl::Status kept = cache_->Keep(key, speeds); !kept.ok()) {
      notes_.push_back("speeds are not kept for later plans: " + MessageOf(kept));
      cache_.reset();
    }
  }
  measured_[key.dump()] = std::move(speeds);
}

absl::StatusOr<std::vector<Calibration::Part>> Calibration::PartsOf(
    const DecoderConfig& model, const TrainOptions& options, const MachineLimits& limits,
    const std::function<bool()>& stop) const {
  const auto as = [](const char* name, absl::StatusOr<double> speed) -> absl::StatusOr<Speeds> {
    FOREBAY_RETURN_IF_ERROR(speed.status());
    return Speeds{{name, *speed}};
  };
  std::vector<Part> parts;
  for (const auto& [file_system, folders] : ByFileSystem(limits.disks)) {
    const DiskLimits& disk = limits.disks[folders.front()];
    if (disk.read_bytes_per_s > 0) continue;
    FOREBAY_ASSIGN_OR_RETURN(const Json key, KeyOfDisk(options, disk.folder));
    parts.push_back(
        {"measuring the disk", key, [this, &options, &disk, &stop]() -> absl::StatusOr<Speeds> {
           FOREBAY_ASSIGN_OR_RETURN(const DiskSpeed speed,
                                    measures_.disk(options, disk.folder, stop));
           return Speeds{{kReadBytes, speed.read_bytes_per_s},
                         {kWriteBytes, speed.write_bytes_per_s}};
         }});
  }
  if (IsForGpu(options, limits.gpu)) {
    parts.push_back({"measuring the GPU", KeyOfGpuBlock(model, options, limits),
                     [=, this, &model, &options, &stop] {
                       return as(kFlops, measures_.gpu_block(model, options, stop));
                     }});
    parts.push_back({"measuring the GPU's bus", KeyOfBus(limits), [=, this, &options, &stop] {
                       return as(kBytes, measures_.bus(options, stop));
                     }});
  } else {
    parts.push_back({"measuring the CPU", KeyOfBlock(model, options, limits),
                     [=, this, &model, &options, &limits, &stop] {
                       return as(kFlops, measures_.block(model, options,
                                                         ComputeThreads(options, limits), stop));
                     }});
  }
  parts.push_back(
      {"measuring RAM", KeyOfUpdate(options, limits), [=, this, &options, &limits, &stop] {
         return as(kBytes, measures_.update(options, UpdateThreads(options, limits), stop));
       }});
  return parts;
}

absl::Status Calibration::Measure(
    const DecoderConfig& model, const TrainOptions& options, const MachineLimits& limits,
    const std::function<bool()>& stop,
    const std::function<void(std::string_view, double)>& on_progress) {
  FOREBAY_ASSIGN_OR_RETURN(std::vector<Part> parts, PartsOf(model, options, limits, stop));
  std::erase_if(parts, [&](const Part& part) { return measured_.contains(part.key.dump()); });
  std::vector<std::vector<Speeds>> turns(parts.size());
  const auto num_measures = static_cast<double>(kMostTurns * parts.size());
  const Stopwatch all;
  for (int turn = 0; turn < kMostTurns; ++turn) {
    if (turn >= kLeastTurns && all.Seconds() >= kSecondsOfTurns) break;
    for (size_t i = 0; i < parts.size(); ++i) {
      on_progress(parts[i].what, static_cast<double>(turn * parts.size() + i) / num_measures);
      FOREBAY_ASSIGN_OR_RETURN(Speeds speeds, parts[i].measure());
      turns[i].push_back(std::move(speeds));
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) Keep(parts[i].key, MedianOf(turns[i]));
  return absl::OkStatus();
}

void Calibration::AddTo(const DecoderConfig& model, const TrainOptions& options,
                        MachineLimits& limits) const {
  double age_s = 0;
  const auto take = [&](const Json& key, const char* name, double& to) {
    const std::optional<KeptSpeeds> kept = Find(key);
    if (!kept.has_value() || !kept->speeds.contains(name)) return;
    to = kept->speeds.at(name);
    age_s = std::max(age_s, kept->age_s);
  };
  if (IsForGpu(options, limits.gpu)) {
    if (limits.gpu.name.empty()) return;  // a plan for one that is not here
    take(KeyOfGpuBlock(model, options, limits), kFlops, limits.speeds.matmul_flops_per_s);
    take(KeyOfBus(limits), kBytes, limits.speeds.bus_bytes_per_s);
  } else {
    take(KeyOfBlock(model, options, limits), kFlops, limits.speeds.matmul_flops_per_s);
  }
  take(KeyOfUpdate(options, limits), kBytes, limits.speeds.memory_bytes_per_s);
  bool all_from_bench = true;
  for (DiskLimits& disk : limits.disks) {
    if (disk.read_bytes_per_s > 0) continue;
    all_from_bench = false;
    const absl::StatusOr<Json> key = KeyOfDisk(options, disk.folder);
    if (!key.ok()) continue;
    take(*key, kReadBytes, disk.read_bytes_per_s);
    take(*key, kWriteBytes, disk.write_bytes_per_s);
  }
  limits.speeds.origin = OriginText(age_s) + (all_from_bench ? ", the disk as --bench has it" : "");
  limits.speeds.age_s = age_s;
}

std::vector<std::string> Calibration::TakeNotes() {
  return std::exchange(notes_, {});
}

}  // namespace forebay
