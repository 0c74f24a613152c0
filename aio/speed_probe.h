// A short look at how fast the disk under a folder is: enough to share tiles out between disks.
//
// Not for: figures that anybody reads. `swap-bench tune` measures for as long as that takes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"

namespace forebay {

struct DiskSpeed {
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
};

// How long the scratch file is, and what ProbeSpeed wants to be free in the folder.
inline constexpr int64_t kSpeedProbeBytes = int64_t{64} << 20;

// Writes and reads a nameless scratch file in the nearest part of `folder` that exists. Nothing is
// left behind.
//
// The drive is written to the length of the file once, and then over it again for 0.08 s: some 0.5
// GB in all on one that takes 5 GB/s. Reads are of what was written just before, so that a cache of
// the drive may have its part in their speed.
//
// It takes some 0.2 s. A slow disk gets no more than what it takes in a second, and the 16 MiB that
// are on their way then.
//
// `stop`: true ends it with InterruptedError as soon as the disk gives back what is on its way.
// StorageError; OutOfMemoryError (16 MiB of buffers, outside every budget).
absl::StatusOr<DiskSpeed> ProbeSpeed(Engine& engine, const std::string& folder,
                                     const std::function<bool()>& stop);

}  // namespace forebay
