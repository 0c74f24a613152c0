#include "forebay/train/run/open_run_session.h"

#include <string>
#include <utility>

#include "forebay/base/errors.h"
#include "forebay/train/files/run_algorithms.h"

namespace forebay {

absl::StatusOr<std::unique_ptr<RunSession>> OpenRunSession(PreparedRun& run,
                                                           LayerSessionOptions session_options,
                                                           LoggedObserver& observer) {
  std::string note;
  const MatmulAlgorithms kept = ReadAlgorithms(run.paths.algorithms, note);
  if (!note.empty()) observer.OnNote(note);
  MatmulAlgorithms algorithms = kept;
  FOREBAY_ASSIGN_OR_RETURN(
      std::unique_ptr<RunSession> session,
      RunSession::Create(run.plan, run.options, run.config, std::move(run.store), run.budget.get(),
                         std::move(session_options), &algorithms));
  if (!(algorithms == kept)) {
    FOREBAY_RETURN_IF_ERROR(WriteAlgorithms(run.paths.algorithms, algorithms));
  }
  return session;
}

}  // namespace forebay
