// One commit over the stores of several ranks. Each prepares its part (all of the step durable but
// for the record), and publishes once all have (TensorStore::Commit, `before_record`). A crash in
// between leaves ranks that have published and ranks that have not: what each has on its disk says
// which step all of them can come to.
//
//   rank 0   step n -- prepared --|-- step n + 1
//   rank 1   step n ----- prepared|--------------- step n + 1
//                                 all are: the first record may be written
//
// So where one rank has published a step, every other has it prepared, and publishes it when it is
// opened again. Where none has, all are at the step before; what is prepared there is overwritten.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

// Plain bytes: ranks on one kind of machine send it to one another.
struct CommitStanding {
  int64_t step = 0;           // committed
  int64_t step_of_tiles = 0;  // TensorStore::StepOfTiles
  int64_t prepared_step = 0;  // TensorStore::Prepared; 0: none
};

// Requires: as TensorStore::Prepared.
CommitStanding StandingOf(TensorStore& store);

// The rank whose step all go on from: the first that has published the newest one. CorruptError
// names a rank that cannot come to that step: its store is from another time.
absl::StatusOr<size_t> NewestRank(std::span<const CommitStanding> ranks);

// Brings `store` to the step of `newest`, the standing of that rank; nothing to do where it is
// there. `trainer`: what that rank's commit carries, for a step that changed no tile, which leaves
// nothing prepared. StorageError. Requires: NewestRank found that it can come there.
absl::Status BringToStep(const CommitStanding& newest, const Json& trainer, TensorStore& store);

}  // namespace forebay
