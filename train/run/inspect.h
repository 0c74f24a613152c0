// `forebay inspect`: what a model folder, a run or the store of another program holds.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

struct InspectOptions {
  bool hash = false;     // the digest over all values, which reads all of them
  bool tensors = false;  // one entry per tensor
  bool verify = false;   // every byte of a run, or of an exported model, against its checksums
  bool repair = false;   // verify, and TensorStore::Repair
  // Told of "hashing" and "verifying", also where that is for a repair. May be empty.
  std::function<void(const char* what, int64_t done, int64_t all)> progress;
};

// Stable keys (docs/cli.md, "inspect"). Both kinds: kind, path, architecture, num_tensors, params,
// bytes; with `tensors`, an array of {name, shape, dtype, bytes}; with `hash`, digest
// (run_folder.h: StateDigest or ModelDigest).
//   "model": dtypes, and of the architecture layers, hidden, vocab; end_tokens {file: [token]}
// with `verify`, verified {bytes, seconds, damaged [{tile, layer, file, offset_bytes, size_bytes,
// message}], steps [{step, bytes}]}, of a model damaged [{file, message}] and no steps (where that
// is not empty, the model is not looked at any further: kind, path and verified alone); with
// `repair`, repaired {changed, step_before, step, damaged, notes} and written_anew [path]; note
// where run.json is lost.
//   "run":   in_use (whether a process works on it), notes (what of it is there but once), step,
//   layout, tile_elems, store_bytes, stripes [{folder, weight, bytes}], model
//   "store": the same without model; `path` names its folders, with commas between them
// Only `repair` changes anything, or makes a file. A run that is in use is looked at and verified
// beside its process, with low priority; its digest cannot be taken, nor a run with one slot be
// verified: EnvironmentError.
// BadInputError when `path` is none of them; or for `verify` of a model without a manifest;
// UsageError for `repair` of a model folder, and for `hash` of a store;
// CorruptError or EnvironmentError from the run's store.
absl::StatusOr<Json> Inspect(const std::string& path, const InspectOptions& options);

}  // namespace forebay
