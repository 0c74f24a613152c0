// The files of a run: what `train` leaves in OUT, and what inspect, resume, clean and init --run
// read.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/swap/tensor_store.h"

namespace forebay {

struct RunPaths {
  explicit RunPaths(std::string out_directory)
      : out(std::move(out_directory)),
        run_json(JoinPath(out, "run.json")),
        resolved_config(JoinPath(out, "resolved_config.json")),
        plan(JoinPath(out, "plan.json")),
        metrics(JoinPath(out, "metrics.jsonl")),
        events(JoinPath(out, "events.log")),
        model(JoinPath(out, "model")),
        exports(JoinPath(out, "exports")) {}

  std::string out;
  std::string run_json;  // where the store is, model folder, fingerprint: what a resume compares
  std::string resolved_config;  // resolved_config.json
  std::string plan;             // plan.json
  std::string metrics;          // metrics.jsonl
  std::string events;           // events.log
  std::string model;            // model/: the result
  std::string exports;          // exports/
};

inline constexpr int kRunFormat = 1;

// run.json of a run folder, checked for format. BadInputError when there is none, CorruptError when
// it is damaged.
//   format       kRunFormat
//   state        "creating" until the store holds its first commit, then "ready"
//   store        folder of the store: relative to the run when it lies inside, else absolute
//   model        the model folder that the run started from (tokenizer files for the export come
//   from it) fingerprint  what changes the result (fingerprint.h); null until the first training
//   session
absl::StatusOr<Json> ReadRunJson(const std::string& run_directory);

// Whether `directory` is a run folder (has a run.json).
bool IsRunFolder(const std::string& directory);
// The store's folder as run.json records it (relative to the run when it lies inside).
absl::StatusOr<std::string> StoreDirectoryOf(const std::string& run_directory);
absl::StatusOr<std::unique_ptr<TensorStore>> OpenRunStore(const std::string& run_directory,
                                                          Engine* engine);

// One XXH3-128 over the committed state: for every tensor in the order of its Hugging Face name:
// name, shape, fp32 master, m, v; then the step. Independent of tiles, tiers and layout of the
// files. Holds one tensor at a time.
absl::StatusOr<std::string> StateDigest(TensorStore& store);
// The same over a model folder: names, shapes and fp32 values (no moments, no step).
absl::StatusOr<std::string> ModelDigest(const std::string& model_directory);

// Removes the run's swap area and says how many bytes that freed. The trained model and logs stay.
absl::StatusOr<int64_t> CleanRun(const std::string& run_directory);

}  // namespace forebay
