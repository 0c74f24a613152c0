#include "forebay/train/export/export_run.h"

#include <memory>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/json.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/offload/plan.h"
#include "forebay/swap/store/store_snapshot.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/train/export/export.h"
#include "forebay/train/export/export_weights.h"
#include "forebay/train/export/run_state.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/run_files.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {
namespace {

// What ExportModel would replace or remove there may be somebody's.
absl::Status CheckNothingIsAt(const std::string& out) {
  std::vector<std::string> places = BesideExport(out);
  places.insert(places.begin(), out);
  for (const std::string& place : places) {
    FOREBAY_ASSIGN_OR_RETURN(const bool is_there, ProbePath(place));
    if (!is_there) continue;
    return UsageError(fmt::format(
        "--out={}: there is something at '{}'. Remove it, or choose another folder", out, place));
  }
  return absl::OkStatus();
}

absl::Status CheckRoomForWeights(const std::string& folder, int64_t bytes) {
  const std::string there = NearestFolder(folder);
  FOREBAY_ASSIGN_OR_RETURN(const int64_t free, FreeSpace(there));
  if (free >= bytes) return absl::OkStatus();
  return DoesNotFitError(
      fmt::format("the weights take {} and the disk of '{}' has {} free. Make room, or name a "
                  "folder on another disk with --out",
                  FormatBytes(bytes), there, FormatBytes(free)));
}

// Where the small files of the exported model come from: the run's own copies, which must be those
// that the commit was made with. A run that was never trained has none. `note`: what is left out.
absl::Status FindModelOf(const std::string& run_directory, const Json& run, const RunState& state,
                         ExportedModel& model, std::string& note) {
  const RunPaths paths(run_directory);
  FOREBAY_RETURN_IF_ERROR(CheckIsOfCommit(run, paths.run_json, state.committed()));
  model.files = RunFilesOf(run);
  model.origin = model.files.empty() ? ModelOf(run_directory, run) : paths.files;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> lost,
                           CheckRunFiles(model.origin, model.files));
  for (const std::string& line : lost) note += (note.empty() ? "" : "\n") + line;
  FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig config, ReadDecoderConfig(model.origin));
  return CheckWeightsAreOf(BuildInventory(config), state.inventory(),
                           JoinPath(model.origin, kConfigName));
}

// Memory of the process: the stores have their checksums there.
int64_t ExportBytesOf(const RunState& state) {
  int64_t bytes = kRuntimeBytes + kExportBytes;
  for (int part = 0; part < state.parts().num_parts(); ++part) {
    const TensorStore& store = state.parts().store(part);
    bytes += TensorStore::SealBytes(store.tiles(), store.num_slots());
  }
  return bytes;
}

}  // namespace

absl::StatusOr<ExportedRun> ExportRun(const ExportRunOptions& options) {
  if (!options.out.empty()) FOREBAY_RETURN_IF_ERROR(CheckNothingIsAt(options.out));
  ExportedRun exported;
  FOREBAY_ASSIGN_OR_RETURN(const Json run, ReadRunJson(options.run, &exported.note));
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({});
  FOREBAY_ASSIGN_OR_RETURN(const RunState state, RunState::Open(options.run, engine.get()));
  if (options.ram_bytes > 0) {
    FOREBAY_RETURN_IF_ERROR(CheckModelFits(ExportBytesOf(state), options.ram_bytes));
  }
  ExportedModel model;
  FOREBAY_RETURN_IF_ERROR(FindModelOf(options.run, run, state, model, exported.note));
  exported.step = state.step();
  exported.dtype = options.dtype.value_or(WeightDType(state.layout()));
  exported.bytes = state.inventory().num_params() * SizeOf(exported.dtype);
  exported.folder = options.out.empty() ? JoinPath(RunPaths(options.run).exports,
                                                   fmt::format("step-{}", exported.step))
                                        : options.out;
  model.folder = exported.folder;
  model.dtype = exported.dtype;
  FOREBAY_RETURN_IF_ERROR(CheckRoomForWeights(exported.folder, exported.bytes));
  FOREBAY_RETURN_IF_ERROR(ExportModel(state, model, options.progress));
  return exported;
}

}  // namespace forebay
