#include "forebay/measure/report/probe.h"

#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/buffer_registration.h"
#include "forebay/aio/engine_probe.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/errors.h"
#include "forebay/measure/load/bench_file.h"
#include "forebay/measure/load/load_thread.h"
#include "forebay/measure/report/report_json.h"
#include "forebay/measure/runs/bench_session.h"

namespace forebay {
namespace {

// As much as a run keeps in flight.
constexpr int64_t kTriedBytes = int64_t{32} << 20;
// What trying an engine takes of the disk, and some more.
constexpr int64_t kTriedFileBytes = int64_t{4} << 20;

constexpr std::array<EngineKind, 4> kEngines = {EngineKind::kIoUring, EngineKind::kLibaio,
                                                EngineKind::kThreads, EngineKind::kBuffered};

// Without the ladder of aio/open_engine.h: each for itself.
EngineProbe TryEngine(EngineKind kind, const std::string& directory,
                      const std::string& why_not_direct) {
  const bool direct = kind != EngineKind::kBuffered;
  if (direct && !why_not_direct.empty()) {
    return {kind, false, fmt::format("no direct I/O here ({})", why_not_direct)};
  }
  EngineOptions options;
  options.drive = RingDrive::kWaiter;
  const absl::StatusOr<std::unique_ptr<Engine>> engine = MakeEngineOf(kind, options);
  const absl::Status status = engine.ok() ? ProveEngine(**engine, directory) : engine.status();
  if (!status.ok()) return {kind, false, MessageOf(status)};
  return {
      kind, true,
      fmt::format("{}, {}", (*engine)->name(), direct ? "direct I/O" : "through the page cache")};
}

void TryMemory(ProbeReport& probe) {
  MemoryBudget budget(0);
  const auto buffer = HostBuffer::Create(&budget, "probe", kTriedBytes);
  if (!buffer.ok()) {
    probe.pages = probe.not_registered = MessageOf(buffer.status());
    return;
  }
  probe.pages = DescribePages(buffer->pages());
  constexpr std::string_view kPrefix = "pages: ";
  if (probe.pages.starts_with(kPrefix)) probe.pages.erase(0, kPrefix.size());
  EngineOptions options;
  options.drive = RingDrive::kWaiter;
  const auto engine = CreateIoUringEngine(options);
  if (!engine.ok()) {
    probe.not_registered = MessageOf(engine.status());
    return;
  }
  const BufferRegistration registration(engine->get(), buffer->IoPieces());
  probe.not_registered = (*engine)->RegistrationNote();
}

}  // namespace

absl::StatusOr<ProbeReport> ProbeMachine(std::span<const std::string> directories,
                                         const std::function<bool()>& stop) {
  ProbeReport probe;
  probe.host = AskHost();
  TryMemory(probe);
  for (const std::string& directory : directories) {
    if (!IsDirectory(directory)) {
      return BadInputError(
          fmt::format("'{}' is no folder. Name one on the disk to be looked at", directory));
    }
    StorageProbe device;
    FOREBAY_ASSIGN_OR_RETURN(device.storage, AskStorage(directory));
    FOREBAY_RETURN_IF_ERROR(CheckRoom(directory, kTriedFileBytes, device.storage.free_bytes,
                                      "Free some or name another folder"));
    for (const EngineKind kind : kEngines) {
      if (stop()) return InterruptedError("stopped on request");
      device.engines.push_back(TryEngine(kind, directory, device.storage.direct.why_not));
    }
    EngineOptions options;
    options.drive = RingDrive::kWaiter;
    FOREBAY_ASSIGN_OR_RETURN(const OpenedEngine chosen, OpenEngine(options, {directory}));
    device.chosen = chosen.line;
    device.storage.direct.verified = chosen.engine->direct();
    device.warnings = StorageWarnings(device.storage);
    probe.devices.push_back(std::move(device));
  }
  return probe;
}

Json ProbeToJson(const ProbeReport& probe, const std::string& version) {
  Json devices = Json::array();
  for (const StorageProbe& device : probe.devices) {
    Json json = StorageToJson(device.storage);
    Json engines = Json::array();
    for (const EngineProbe& engine : device.engines) {
      engines.push_back(
          {{"engine", NameOf(engine.kind)}, {"works", engine.works}, {"line", engine.line}});
    }
    json["engines"] = std::move(engines);
    json["chosen"] = device.chosen;
    json["warnings"] = device.warnings;
    devices.push_back(std::move(json));
  }
  return {
      {"schema", kReportSchema},
      {"tool", {{"name", "swap-bench"}, {"version", version}}},
      {"host", HostToJson(probe.host)},
      {"pages", probe.pages},
      {"not_registered", probe.not_registered.empty() ? Json(nullptr) : Json(probe.not_registered)},
      {"devices", std::move(devices)}};
}

}  // namespace forebay
