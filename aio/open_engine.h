// The fastest engine that this machine, this user and these folders can run, found by trying.
//
//   io_uring with O_DIRECT -> libaio with O_DIRECT -> threads with O_DIRECT -> threads, buffered
//
// Each rung is proved by real transfers: kernels, containers and file systems that accept a call
// and fail the transfer are common. libaio is never used without O_DIRECT, as it is synchronous
// then.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"

namespace forebay {

// What was chosen. `kind` is never kAuto.
struct OpenedEngine {
  std::unique_ptr<Engine> engine;
  EngineKind kind = EngineKind::kThreads;
  // "io_uring (...), direct I/O", or which rung was taken instead, why, and how to get the better
  // one. One line, for logs.
  std::string line;
};

// An engine for files in all of `folders` (of which the nearest parts that exist are tried; nothing
// is left behind, and where `options.file_to_read` is there nothing is written). Begins with
// `options.engine` and goes down from there, never up. With `options.strict`, EnvironmentError
// instead of a step down (kAuto: instead of anything but io_uring with O_DIRECT). DoesNotFitError
// where a folder has no room for a scratch file; StorageError when even a plain transfer fails in
// one of them. Requires: there is a folder.
absl::StatusOr<OpenedEngine> OpenEngine(const EngineOptions& options,
                                        const std::vector<std::string>& folders);

// OpenEngine, or what stands in for it.
using EngineOpener = std::function<absl::StatusOr<OpenedEngine>(
    const EngineOptions& options, const std::vector<std::string>& folders)>;

// "io_uring", as --engine spells it.
std::string_view NameOf(EngineKind kind);

}  // namespace forebay
