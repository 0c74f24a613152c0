#include <charconv>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/engine.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/format.h"
#include "forebay/doctor/examine.h"
#include "forebay/measure/host/file_system.h"

namespace forebay {
namespace {

// bf16 weight, the rest of its master and two moments, in two slots (docs/design/numbers.md).
constexpr int64_t kBytesPerParameter = 24;
// The space of the smallest model in use.
constexpr int64_t kLittleSpaceBytes = 135'000'000 * kBytesPerParameter;
// From here on a drive is to be replaced soon.
constexpr int kMuchUsedPercent = 90;

class DiskChecks {
 public:
  explicit DiskChecks(const DiskFacts& disk) : disk_(disk) {}

  void Add(std::string id, Verdict verdict, std::string value, std::string fix = "") {
    checks_.push_back(
        {"disk", disk_.folder, std::move(id), verdict, std::move(value), std::move(fix)});
  }
  void AddFileSystem();
  void AddSpace();
  void AddDirectIo();
  void AddEngine();
  void AddMedium();
  void AddDrive(const DriveFacts& drive);
  std::vector<Check> Take() { return std::move(checks_); }

 private:
  const DiskFacts& disk_;
  std::vector<Check> checks_;
};

// Advice where something speaks against the file system; "" else.
std::string AdviceAbout(const StorageInfo& storage) {
  if (storage.in_memory()) return "Choose a folder on a disk: files in this one lie in RAM";
  if (const std::string between = WhatStandsBetween(storage.fs); !between.empty()) {
    return "Choose a folder on a local disk: " + between;
  }
  if (storage.fs == "btrfs") return "Use an empty folder after 'chattr +C', or ext4 or XFS";
  if (storage.fs == "zfs") return "Use ext4 or XFS: ZFS copies on every write";
  if (HasMountOption(storage, "nobarrier") || HasMountOption(storage, "barrier=0")) {
    return "Mount it with barriers: without them a power cut takes what was flushed";
  }
  return "";
}

void DiskChecks::AddFileSystem() {
  const StorageInfo& storage = disk_.storage;
  const std::string advice = AdviceAbout(storage);
  Add("file_system", advice.empty() ? Verdict::kOk : Verdict::kWarn,
      fmt::format("{} on {}", storage.fs.empty() ? "not known" : storage.fs, storage.device),
      advice);
}

void DiskChecks::AddSpace() {
  const StorageInfo& storage = disk_.storage;
  const bool is_enough = storage.free_bytes >= kLittleSpaceBytes;
  Add("space", is_enough ? Verdict::kOk : Verdict::kWarn,
      fmt::format("{} of {} are free: {} parameters at {} bytes", FormatBytes(storage.free_bytes),
                  FormatBytes(storage.total_bytes),
                  FormatCount(storage.free_bytes / kBytesPerParameter), kBytesPerParameter),
      is_enough ? "" : "Free some, or choose a folder on a larger disk");
}

int QueueNumber(const StorageInfo& storage, const char* key) {
  int number = 0;
  const auto found = storage.queue.find(key);
  if (found == storage.queue.end()) return 0;
  const std::string& text = found->second;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

void DiskChecks::AddDirectIo() {
  const DirectInfo& direct = disk_.storage.direct;
  if (!direct.why_not.empty()) {
    return Add("direct_io", Verdict::kWarn,
               fmt::format("none ({}); transfers go through the page cache", direct.why_not),
               "Choose a folder on ext4 or XFS");
  }
  const int block_bytes = QueueNumber(disk_.storage, "logical_block_size");
  std::string value = "O_DIRECT";
  if (direct.off_align > 0) value += fmt::format(" in multiples of {} bytes", direct.off_align);
  if (block_bytes > 0) value += fmt::format(", logical blocks of {}", block_bytes);
  if (direct.off_align <= kIoAlignBytes && block_bytes <= kIoAlignBytes) {
    return Add("direct_io", Verdict::kOk, value);
  }
  Add("direct_io", Verdict::kFail, value,
      fmt::format("Choose another disk, or format this one with blocks of {} bytes: forebay moves "
                  "multiples of that",
                  kIoAlignBytes));
}

void DiskChecks::AddEngine() {
  const bool is_best = disk_.engine == NameOf(EngineKind::kIoUring);
  if (is_best) return Add("engine", Verdict::kOk, disk_.engine_line);
  Add("engine", Verdict::kWarn, disk_.engine, disk_.engine_line);
}

void DiskChecks::AddMedium() {
  if (QueueNumber(disk_.storage, "rotational") != 1) return;
  for (const DriveFacts& drive : disk_.drives) {
    if (!drive.pcie.speed.empty()) return;  // whose hypervisor says so, or nobody asked
  }
  Add("medium", Verdict::kWarn, "the kernel takes it for a disk that rotates",
      "Use an SSD, best an NVMe drive (a hypervisor may call one rotating that is none)");
}

void DiskChecks::AddDrive(const DriveFacts& drive) {
  const PcieLink& pcie = drive.pcie;
  if (!pcie.speed.empty()) {
    const std::string link = fmt::format("{}: {} x{}", drive.name, pcie.speed, pcie.width);
    if (pcie.degraded()) {
      Add("pcie", Verdict::kWarn,
          fmt::format("{}, of {} x{}", link, pcie.max_speed, pcie.max_width),
          "Move the drive to a slot that has all of its lanes, or set the slot's speed in the "
          "firmware");
    } else {
      Add("pcie", Verdict::kOk, link);
    }
  }
  if (drive.heat.has_value()) {
    Add("heat", drive.heat->too_warm() ? Verdict::kWarn : Verdict::kOk,
        fmt::format("{}: {:.0f} degrees C", drive.name, drive.heat->celsius),
        drive.heat->too_warm() ? "Give the drive air or a heat sink: it slows down" : "");
  }
  if (!drive.health.has_value()) return;
  const DriveHealth& health = *drive.health;
  std::string value = fmt::format("{}: {} % of its rated life used, {} written", drive.name,
                                  health.used_percent, FormatBytes(health.written_bytes));
  if (health.reports_trouble || health.spare_percent < health.least_spare_percent) {
    return Add("wear", Verdict::kFail,
               value + fmt::format("; it reports trouble ({} % of spare blocks, {} media errors)",
                                   health.spare_percent, health.num_media_errors),
               "Save what is on it and replace it (smartctl -a says more)");
  }
  const bool is_worn = health.used_percent >= kMuchUsedPercent;
  Add("wear", is_worn ? Verdict::kWarn : Verdict::kOk, std::move(value),
      is_worn ? "Plan to replace it: a run writes about 12 bytes per parameter and step" : "");
}

}  // namespace

std::vector<Check> ExamineDisk(const DiskFacts& disk) {
  DiskChecks checks(disk);
  if (!disk.why_unusable.empty()) {
    checks.Add("folder", Verdict::kFail, "cannot be used", disk.why_unusable);
    return checks.Take();
  }
  checks.AddFileSystem();
  checks.AddSpace();
  checks.AddDirectIo();
  checks.AddEngine();
  checks.AddMedium();
  for (const DriveFacts& drive : disk.drives) checks.AddDrive(drive);
  return checks.Take();
}

}  // namespace forebay
