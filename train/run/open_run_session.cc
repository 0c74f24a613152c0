#include "forebay/train/run/open_run_session.h"

#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/train/files/cache_folder.h"
#include "forebay/train/files/run_algorithms.h"

namespace forebay {

namespace {

// The file of this user that has what new runs have measured on this machine, so that a run begun
// anew has the bits of the one before it; "" where there is no place for it. Each rank has its own,
// as each measures for itself.
std::string KeptPath(int rank) {
  const absl::StatusOr<std::string> folder = CacheFolder("products");
  return folder.ok() ? JoinPath(*folder, fmt::format("algorithms-{:03}.json", rank)) : "";
}

// Measuring chooses by time, so not always the same: without a record another run would differ.
bool CanKeep(const std::string& path) {
  if (path.empty()) return false;
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return MakeDirectories(folder).ok() && ::access(folder.c_str(), W_OK | X_OK) == 0;
}

// With what other runs have measured, where it is of the same card and library.
void Keep(const std::string& path, const MatmulAlgorithms& kept, MatmulAlgorithms algorithms) {
  if (kept.card == algorithms.card && kept.library == algorithms.library) {
    algorithms.chosen.insert(kept.chosen.begin(), kept.chosen.end());
  }
  if (algorithms == kept) return;
  // Another run measures them again where they could not be kept.
  WriteAlgorithms(path, algorithms).IgnoreError();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunSession>> OpenRunSession(PreparedRun& run,
                                                           LayerSessionOptions session_options,
                                                           LoggedObserver& observer) {
  std::string note;
  const MatmulAlgorithms of_run = ReadAlgorithms(run.paths.algorithms, note);
  if (!note.empty()) observer.OnNote(note);
  const std::string kept_path = run.plan.on_gpu() ? KeptPath(run.options.rank) : "";
  std::string ignored;
  const MatmulAlgorithms kept = ReadAlgorithms(kept_path, ignored);
  MatmulAlgorithms algorithms = of_run.chosen.empty() ? kept : of_run;
  algorithms.may_measure = CanKeep(kept_path);
  FOREBAY_ASSIGN_OR_RETURN(
      std::unique_ptr<RunSession> session,
      RunSession::Create(run.plan, run.options, run.config, std::move(run.store), run.budget.get(),
                         std::move(session_options), &algorithms));
  algorithms.may_measure = true;  // as in what was read, which it is compared with
  if (algorithms.chosen.empty()) return session;
  if (!(algorithms == of_run)) {
    FOREBAY_RETURN_IF_ERROR(WriteAlgorithms(run.paths.algorithms, algorithms));
  }
  // A resume of an older run does not change what new ones compute by.
  if (of_run.chosen.empty()) Keep(kept_path, kept, algorithms);
  return session;
}

}  // namespace forebay
