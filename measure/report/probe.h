// What a machine offers for disk transfers, found by trying and without moving much: engines,
// direct I/O, huge pages, registered buffers, the disk's place and settings.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/json.h"
#include "forebay/measure/host/host_info.h"

namespace forebay {

struct EngineProbe {
  EngineKind kind = EngineKind::kAuto;
  bool works = false;
  std::string line;  // what it is, or why it does not work and what to do
};

struct StorageProbe {
  StorageInfo storage;
  std::vector<EngineProbe> engines;  // best first
  std::string chosen;                // of them, by --engine=auto
  std::vector<std::string> warnings;
};

struct ProbeReport {
  HostInfo host;
  std::string pages;           // what buffers get
  std::string not_registered;  // why io_uring does not register them; "": it does
  std::vector<StorageProbe> devices;
};

// BadInputError when one of `directories` is none; StorageError when not even the least engine
// works. `stop` is asked between engines: InterruptedError.
absl::StatusOr<ProbeReport> ProbeMachine(std::span<const std::string> directories,
                                         const std::function<bool()>& stop);

// With "schema" as in report_json.h.
Json ProbeToJson(const ProbeReport& probe, const std::string& version);

}  // namespace forebay
