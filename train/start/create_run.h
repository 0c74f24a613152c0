// A new run: its folders, its store with the weights of the model, its records.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/model/files/model_folder.h"
#include "forebay/model/files/safetensors.h"
#include "forebay/train/start/copied_state.h"
#include "forebay/train/start/prepared_run.h"

namespace forebay {

// The model that a new run starts from: its small files, which the run gets copies of, and the
// tensors of the inventory in its safetensors files.
struct ModelSource {
  std::vector<ModelFile> files;
  Inventory inventory;
  std::unique_ptr<CheckpointReader> reader;
  std::vector<const CheckpointReader::Tensor*> tensors;  // in the order of the inventory
  std::optional<CopiedState> copied;                     // of --from, in place of the tensors
};

// All of `source` but its files. BadInputError names what does not fit the configuration.
absl::Status OpenWeights(const PreparedRun& run, ModelSource& source);

// Takes the folders and fills the store, unless this is a dry run. Requires: plan, engine, budget
// and number of steps of `run`. What is in no file of the store comes from `source` when it is
// read: until then the store keeps it, and `observer` outlives that. The errors of ClaimFolders and
// CreateFilledStore; InterruptedError once `stop` says so. What an error leaves is an unfinished
// start, which the next one replaces.
absl::Status CreateRun(const ResolvedOptions& resolved, const Json& fingerprint,
                       const std::shared_ptr<const ModelSource>& source,
                       const std::function<bool()>& stop, TrainObserver& observer,
                       PreparedRun& run);

}  // namespace forebay
