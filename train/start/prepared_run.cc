#include "forebay/train/start/prepared_run.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/file_space.h"
#include "forebay/base/json.h"
#include "forebay/data/data_program.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/train/files/swap_area.h"
#include "forebay/train/options/option_table.h"
#include "forebay/train/plan/disk_profile.h"

namespace forebay {
namespace {

// Of the file systems that the folders are on.
int NumDisks(const std::vector<std::string>& directories) {
  TrainOptions options;
  options.nvme = directories;
  return static_cast<int>(ByFileSystem(AskMachine(options).disks).size());
}

}  // namespace

absl::Status OpenEngineFor(const std::vector<std::string>& directories, TrainObserver& observer,
                           const TrainEnvironment& environment, PreparedRun& run) {
  if (kMostBytesOfSmallFiles > MostBytesOfAFile()) {
    return FileTooLargeError("the run", kMostBytesOfSmallFiles);
  }
  EngineOptions options;
  options.engine = run.options.engine;
  options.strict = run.options.engine_strict;
  options.file_to_read = kCommitName;  // of a run that goes on
  options.offset_to_read_bytes = kSpareBlockOffsetBytes;
  run.num_disks = NumDisks(directories);
  options.num_threads = run.options.io_threads * run.num_disks;
  options.report = [&observer](const std::string& line) { observer.OnWarning(line); };
  FOREBAY_ASSIGN_OR_RETURN(DiskProfile profile, ReadDiskProfile(run.options.bench, directories));
  FOREBAY_ASSIGN_OR_RETURN(
      OpenedEngine opened,
      OpenProfiledEngine(options, directories, environment.open_engine, profile));
  if (!profile.warning.empty()) observer.OnWarning(profile.warning);
  run.engine = std::move(opened.engine);
  run.engine_line = std::move(opened.line);
  return absl::OkStatus();
}

absl::Status WriteRecords(const PreparedRun& run, const ResolvedOptions& resolved) {
  Json config = resolved.resolved;
  for (const char* const name : {"model", "data", "eval_data", "nvme"}) {
    const bool is_data = FindOption(name)->adds_up;
    Json& value = config[FindOption(name)->section][name]["value"];
    const auto make_absolute = [is_data](Json& path) {
      const auto& text = path.get_ref<const std::string&>();
      if (!text.empty()) path = is_data ? WithAbsolutePaths(text, NormalPath) : NormalPath(text);
    };
    if (value.is_string()) make_absolute(value);
    if (value.is_array()) std::ranges::for_each(value, make_absolute);
  }
  // On --resume the command may have named but some of the folders, and in any order.
  Json& nvme = config[FindOption("nvme")->section]["nvme"];
  const bool names_some = run.resumed && !run.options.nvme.empty() &&
                          !nvme["origin"].get<std::string>().starts_with("run ");
  if (names_some) nvme["value"] = FoldersToName(run.store->directories());
  config[FindOption("tile_elems")->section]["tile_elems"]["value"] = run.options.tile_elems;
  const std::string text = config.dump(2) + "\n";
  FOREBAY_RETURN_IF_ERROR(WriteFileAtomically(run.paths.resolved_config_copy, text));
  FOREBAY_RETURN_IF_ERROR(WriteFileAtomically(run.paths.resolved_config, text));
  return WriteFileAtomically(run.paths.plan, ToJson(run.plan).dump(2) + "\n");
}

}  // namespace forebay
