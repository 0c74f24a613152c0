#include "forebay/measure/runs/bench_session.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/check.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/measure/host/file_system.h"
#include "forebay/measure/runs/cell_result.h"
#include "forebay/memory/available_memory.h"

namespace forebay {
namespace {

constexpr int kFillDepth = 8;
constexpr int64_t kFillBlockBytes = int64_t{2} << 20;
// Operations in one turn of a stripe; more would only make its proportions finer.
constexpr int kStripeTurns = 64;

PageKind BestPages(BenchPages pages) {
  switch (pages) {
    case BenchPages::kReservedHuge:
      return PageKind::kReservedHuge;
    case BenchPages::kTransparentHuge:
      return PageKind::kTransparentHuge;
    case BenchPages::kBase:
      return PageKind::kBase;
  }
  return PageKind::kBase;
}

std::string QueueSetting(const StorageInfo& storage, const std::string& key) {
  const auto found = storage.queue.find(key);
  return found == storage.queue.end() ? "" : found->second;
}

// "26G", as --size takes it.
std::string GibibytesUp(int64_t bytes) {
  return fmt::format("{}G", (bytes + (int64_t{1} << 30) - 1) >> 30);
}

// Below this, a drive may serve everything from caches of its own.
int64_t AdvisedBytes(const StorageInfo& storage, bool direct) {
  if (!direct) return 2 * AskHost().memory_bytes;
  return std::min(int64_t{32} << 30, storage.total_bytes / 10);
}

// Of a pass over a whole file, that begins now.
std::function<void(double)> FileProgress(const BenchHooks& hooks, const std::string& phase,
                                         int64_t file_bytes) {
  if (!hooks.progress) return nullptr;
  return [&hooks, phase, file_bytes, watch = Stopwatch()](double fraction) {
    const double seconds = watch.Seconds();
    const double bytes = fraction * static_cast<double>(file_bytes);
    hooks.progress(phase, fraction, seconds > 0 ? bytes / seconds : 0);
  };
}

absl::Status CheckFoldersDiffer(const std::vector<JobTarget>& targets) {
  std::map<std::pair<dev_t, ino_t>, std::string> seen;
  for (const JobTarget& target : targets) {
    struct stat info = {};
    if (::stat(target.directory.c_str(), &info) != 0) continue;  // OpenTarget says so
    const auto [other, is_new] =
        seen.try_emplace(std::pair(info.st_dev, info.st_ino), target.directory);
    if (is_new) continue;
    return UsageError(fmt::format("'{}' and '{}' are one folder: name each folder once",
                                  other->second, target.directory));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t BenchSession::huge_bytes() const {
  int64_t bytes = 0;
  for (const HostBuffer& buffer : memory_) {
    bytes += buffer.size_bytes() / kHugePageBytes * kHugePageBytes;
  }
  return bytes;
}

int64_t MemoryForBuffers(BenchPages pages, const std::string& root) {
  return pages == BenchPages::kReservedHuge ? AvailableMemoryBytes(root)
                                            : OrdinaryMemoryBytes(root);
}

std::vector<int> StripeOrder(std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  FOREBAY_CHECK(sum > 0);
  if (weights.size() == 1) return {0};
  // Each turn goes to the file that is furthest behind its share.
  std::vector<int> order;
  std::vector<double> had(weights.size(), 0);
  for (int turn = 1; turn <= kStripeTurns; ++turn) {
    size_t next = 0;
    double most_behind = -1e300;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double behind = weights[i] / sum * turn - had[i];
      if (behind > most_behind) {
        most_behind = behind;
        next = i;
      }
    }
    ++had[next];
    order.push_back(static_cast<int>(next));
  }
  return order;
}

std::vector<std::string> StorageWarnings(const StorageInfo& storage) {
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& text) {
    warnings.push_back(fmt::format("{}: {}", storage.path, text));
  };
  if (storage.in_memory()) {
    warn(storage.fs + " keeps its files in RAM: what is measured there is memory, not a disk");
  }
  if (const std::string between = WhatStandsBetween(storage.fs); !between.empty()) warn(between);
  if (storage.fs == "btrfs" || storage.fs == "zfs") {
    warn(storage.fs +
         " copies on write and checks sums, which costs bandwidth; on btrfs, 'chattr "
         "+C' on an empty folder switches that off for new files");
  }
  if (HasMountOption(storage, "nobarrier") || HasMountOption(storage, "barrier=0")) {
    warn("mounted without barriers: a power cut may lose what was flushed");
  }
  if (HasMountOption(storage, "discard")) {
    warn("mounted with 'discard': freeing files stalls some drives; fstrim.timer is gentler");
  }
  if (QueueSetting(storage, "rotational") == "1" && storage.pcie.speed.empty()) {
    warn(fmt::format("the kernel takes {} for a disk that rotates (or its hypervisor says so)",
                     storage.device));
  }
  if (storage.pcie.degraded()) {
    warn(fmt::format("{} hangs on PCIe {} x{} and could do {} x{}: another slot may be faster",
                     storage.device, storage.pcie.speed, storage.pcie.width, storage.pcie.max_speed,
                     storage.pcie.max_width));
  }
  if (storage.heat.has_value() && storage.heat->too_warm()) {
    warn(HeatWarning(*storage.heat, storage.device));
  }
  return warnings;
}

BenchSession::BenchSession(const Job& job) : pattern_(job.seed, job.compressible_percent) {}

absl::StatusOr<std::unique_ptr<BenchSession>> BenchSession::Open(const Job& job,
                                                                 const BenchHooks& hooks) {
  FOREBAY_RETURN_IF_ERROR(CheckJob(job));
  FOREBAY_RETURN_IF_ERROR(CheckFoldersDiffer(job.targets));
  std::unique_ptr<BenchSession> session(new BenchSession(job));
  for (const JobTarget& target : job.targets) {
    FOREBAY_RETURN_IF_ERROR(session->OpenTarget(job, target));
  }
  const int at_once = static_cast<int>(job.targets.size());
  FOREBAY_RETURN_IF_ERROR(session->PrepareMemory(job, at_once));
  for (const auto& target : session->targets_) {
    FOREBAY_RETURN_IF_ERROR(session->Fill(job, *target, hooks));
    session->Warn(job, *target);
  }
  return session;
}

absl::Status BenchSession::OpenTarget(const Job& job, const JobTarget& target) {
  auto opened = std::make_unique<BenchTarget>();
  // One name for one folder, however it was spelled: results are compared by it.
  std::error_code error;
  opened->directory = std::filesystem::canonical(target.directory, error).string();
  opened->weight = target.weight;
  if (!IsDirectory(target.directory)) {
    return BadInputError(
        fmt::format("'{}' is no folder. Name one on the disk to be measured", target.directory));
  }
  FOREBAY_ASSIGN_OR_RETURN(opened->storage, AskStorage(opened->directory));
  // Trying the engines on a full disk would fail with less to the point.
  FOREBAY_RETURN_IF_ERROR(CheckRoom(opened->directory, job.size_bytes, opened->storage.free_bytes));
  EngineOptions options = EngineOptionsOf(job, job.depth);
  options.engine = job.engine;
  FOREBAY_ASSIGN_OR_RETURN(OpenedEngine engine, OpenEngine(options, {opened->directory}));
  opened->engine = engine.kind;
  opened->engine_line = engine.line;
  const EngineKind asked = job.engine == EngineKind::kAuto ? EngineKind::kIoUring : job.engine;
  opened->engine_as_asked = engine.kind == asked;
  opened->storage.direct.verified = engine.engine->direct();
  const int64_t size_bytes = job.size_bytes / kIoAlignBytes * kIoAlignBytes;
  FOREBAY_ASSIGN_OR_RETURN(opened->file, BenchFile::Create(opened->directory, size_bytes,
                                                           engine.engine->direct(), job.verify));
  targets_.push_back(std::move(opened));
  return absl::OkStatus();
}

void BenchSession::Warn(const Job& job, const BenchTarget& target) {
  for (std::string& warning : StorageWarnings(target.storage)) {
    warnings_.push_back(std::move(warning));
  }
  if (target.storage.in_memory()) return;  // no file is large enough for that to be a disk
  const int64_t advised = AdvisedBytes(target.storage, target.file.direct());
  if (job.size_bytes < advised) {
    warnings_.push_back(fmt::format(
        "{}: a file of {} may fit into a cache of the {}; --size={} is large enough to see past it",
        target.directory, FormatBinaryBytes(job.size_bytes),
        target.file.direct() ? "drive" : "system", GibibytesUp(advised)));
  }
}

EngineKind BenchSession::EngineOf(std::span<const int> targets) const {
  EngineKind least = EngineKind::kIoUring;
  for (const int target : targets) {
    least = std::max(least, targets_[static_cast<size_t>(target)]->engine);
  }
  return least;
}

absl::Status BenchSession::PrepareMemory(const Job& job, int num_targets) {
  int64_t needed_bytes = 0;
  bool enough = std::ssize(memory_) == job.threads;
  for (int i = 0; i < job.threads; ++i) {
    const int64_t bytes = LoadMemoryBytes(job, i, num_targets);
    needed_bytes += bytes;
    enough = enough && memory_[static_cast<size_t>(i)].size_bytes() >= bytes;
  }
  if (enough) return absl::OkStatus();
  memory_.clear();
  const int64_t available_bytes = MemoryForBuffers(job.pages);
  if (needed_bytes > available_bytes / 2) {
    return DoesNotFitError(fmt::format(
        "{} operations of {} in flight need buffers of {}; at most half of the {} of memory that "
        "are available is taken. Take a smaller --qd or --bs",
        job.depth * num_targets, FormatBinaryBytes(job.block_bytes),
        FormatBinaryBytes(needed_bytes), FormatBinaryBytes(available_bytes)));
  }
  HostBufferOptions options;
  options.best_pages = BestPages(job.pages);
  options.numa_node = job.numa_node >= 0 ? job.numa_node : targets_[0]->storage.numa_node;
  pages_ = {};
  for (int i = 0; i < job.threads; ++i) {
    FOREBAY_ASSIGN_OR_RETURN(
        HostBuffer buffer,
        HostBuffer::Create(&budget_, "transfers", LoadMemoryBytes(job, i, num_targets), options));
    pages_.Add(buffer.pages());
    memory_.push_back(std::move(buffer));
  }
  return absl::OkStatus();
}

absl::Status BenchSession::Fill(const Job& job, BenchTarget& target, const BenchHooks& hooks) {
  Job fill = job;
  fill.block_bytes = kFillBlockBytes;
  FOREBAY_ASSIGN_OR_RETURN(HostBuffer memory,
                           HostBuffer::Create(&budget_, "filling", kFillDepth * kFillBlockBytes));
  EngineOptions options = EngineOptionsOf(fill, kFillDepth);
  options.report = hooks.report;
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                           MakeEngineOf(target.engine, options));
  const std::string phase = fmt::format("filling a file in {}", target.directory);
  FilePass pass;
  pass.kind = IoKind::kWrite;
  pass.block_bytes = kFillBlockBytes;
  pass.memory = memory.bytes();
  pass.use = [&](int64_t offset_bytes, std::span<std::byte> buffer) {
    pattern_.Fill(buffer, target.file.NextPlace(offset_bytes, static_cast<int64_t>(buffer.size())));
  };
  pass.stop = [&] { return hooks.stop && hooks.stop(); };
  pass.progress = FileProgress(hooks, phase, target.file.size_bytes());
  const Stopwatch watch;
  FOREBAY_RETURN_IF_ERROR(RunFilePass(*engine, target.file, pass));
  // What is still on its way would be counted as part of the first pass.
  FOREBAY_ASSIGN_OR_RETURN(const int number, target.file.AddTo(*engine));
  FOREBAY_RETURN_IF_ERROR(engine->Flush(number));
  target.fill_bytes_per_s = static_cast<double>(target.file.size_bytes()) / watch.Seconds();
  return absl::OkStatus();
}

absl::StatusOr<PatternTally> BenchSession::ReadBack(const Job& job, int target,
                                                    const BenchHooks& hooks) {
  BenchTarget& at = *targets_[static_cast<size_t>(target)];
  // In the blocks of the load, as each was written at once and has one generation.
  const int depth = static_cast<int>(
      std::clamp<int64_t>(kFillDepth * kFillBlockBytes / job.block_bytes, 1, kFillDepth));
  FOREBAY_ASSIGN_OR_RETURN(HostBuffer memory,
                           HostBuffer::Create(&budget_, "reading back", depth * job.block_bytes));
  EngineOptions options = EngineOptionsOf(job, depth);
  options.report = hooks.report;
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, MakeEngineOf(at.engine, options));
  PatternTally tally;
  const std::string phase = fmt::format("reading back {}", at.directory);
  FilePass pass;
  pass.kind = IoKind::kRead;
  pass.block_bytes = job.block_bytes;
  pass.memory = memory.bytes();
  pass.use = [&](int64_t offset_bytes, std::span<std::byte> buffer) {
    CheckPattern(buffer, at.file.PlaceAt(offset_bytes), tally);
  };
  pass.stop = [&] { return hooks.stop && hooks.stop(); };
  pass.progress = FileProgress(hooks, phase, at.file.size_bytes());
  FOREBAY_RETURN_IF_ERROR(RunFilePass(*engine, at.file, pass));
  return tally;
}

absl::StatusOr<PassResult> BenchSession::Pass(const Job& job, const LoadKind& load,
                                              std::span<const int> targets,
                                              std::span<const double> weights, EngineKind engine,
                                              const BenchHooks& hooks) {
  FOREBAY_CHECK(!targets.empty() && targets.size() == weights.size());
  FOREBAY_RETURN_IF_ERROR(PrepareMemory(job, static_cast<int>(targets.size())));
  LoadPlan plan;
  plan.job = &job;
  plan.load = load;
  plan.engine = engine == EngineKind::kAuto ? EngineOf(targets) : engine;
  plan.pattern = &pattern_;
  plan.report = hooks.report;
  plan.stripe = StripeOrder(weights);
  std::string names;
  for (const int target : targets) {
    BenchTarget& at = *targets_[static_cast<size_t>(target)];
    plan.files.push_back(&at.file);
    names += (names.empty() ? "" : "+") + at.directory;
  }
  const std::string phase = fmt::format("{} {}", LoadName(load), names);
  PassHooks pass_hooks;
  pass_hooks.stop = hooks.stop;
  pass_hooks.progress = [&](double fraction, double bytes_per_s) {
    if (hooks.progress) hooks.progress(phase, fraction, bytes_per_s);
  };
  return RunPass(plan, memory_, pass_hooks);
}

}  // namespace forebay
