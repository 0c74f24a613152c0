// `forebay inspect`: what a model folder or a run holds.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

struct InspectOptions {
  bool hash = false;     // the digest over all values, which reads all of them
  bool tensors = false;  // one entry per tensor
};

// Stable keys (docs/cli.md, "inspect"). Both kinds: kind, path, architecture, num_tensors, params,
// bytes; with `tensors`, an array of {name, shape, dtype, bytes}; with `hash`, digest
// (run_folder.h: StateDigest or ModelDigest).
//   "model": dtypes, and of the architecture layers, hidden, vocab
//   "run":   step, layout, tile_elems, store_bytes, stripes [{folder, weight, bytes}], model
// BadInputError when `path` is neither; CorruptError or EnvironmentError from the run's store.
absl::StatusOr<Json> Inspect(const std::string& path, const InspectOptions& options);

}  // namespace forebay
