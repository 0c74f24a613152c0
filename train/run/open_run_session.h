// The session of a prepared run, with what its folder keeps for its GPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "forebay/offload/layer_session.h"
#include "forebay/train/run/logged_observer.h"
#include "forebay/train/start/prepared_run.h"
#include "forebay/train/step/run_session.h"

namespace forebay {

// Takes the store out of `run`. What a GPU computes by is durable in the run's folder when it
// returns. The errors of RunSession::Create; StorageError.
absl::StatusOr<std::unique_ptr<RunSession>> OpenRunSession(PreparedRun& run,
                                                           LayerSessionOptions session_options,
                                                           LoggedObserver& observer);

}  // namespace forebay
