// What a run notes at its start: the machine that it found, in the words of whoever looks into
// events.log for the reason of a slow run, or of other last bits.
#pragma once

#include "forebay/train/run/logged_observer.h"
#include "forebay/train/start/prepared_run.h"
#include "forebay/train/step/run_session.h"

namespace forebay {

// Notes which files the store has found missing, damaged or hard-linked since it was last asked.
void NoteStore(TensorStore& store, LoggedObserver& observer);

// Compute, disks, memory, and whether the steps so far were computed by something else.
void NoteMachine(const PreparedRun& run, RunSession& session, LoggedObserver& observer);

}  // namespace forebay
