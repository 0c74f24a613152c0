// All of a run's committed state: the store of a run, or where ranks divide it those of all ranks.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/offload/divided_state.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/train/export/weights_source.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {

// Used by one thread.
class RunState final : public WeightsSource {
 public:
  // Opens them to read, with the folder of any rank of the run. BadInputError names the folder of a
  // rank that is not there; CorruptError where their steps differ, or a part is another's or of
  // another run; the errors of OpenRunStore. `engine` must outlive it.
  static absl::StatusOr<RunState> Open(const std::string& run_directory, Engine* engine);

  const Inventory& inventory() const override { return state_.inventory(); }
  Layout layout() const override { return state_.store(0).tiles().layout(); }
  const StoreUuid& uuid() const override { return state_.store(0).uuid(); }
  int64_t step() const override { return state_.store(0).committed().step; }
  absl::Status ReadMasters(const TensorSpec& tensor, int64_t first_elem,
                           std::span<float> out) const override;
  absl::Status ReadW16(const TensorSpec& tensor, int64_t first_elem,
                       std::span<uint16_t> out) const override;
  const DividedState& parts() const { return state_; }
  // The commit of the first part; those of all parts are of one step of one run.
  const CommitInfo& committed() const { return state_.store(0).committed(); }
  // As StateDigest (run_folder.h) of a store with the same state.
  absl::StatusOr<std::string> Digest(const DigestProgress& progress = {}) const;

 private:
  explicit RunState(DividedState state) : state_(std::move(state)) {}

  DividedState state_;
};

}  // namespace forebay
