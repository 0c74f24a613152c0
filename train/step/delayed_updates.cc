#include "forebay/train/step/delayed_updates.h"

#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {

absl::Status DelayedUpdates::BeginStep(int64_t step, bool follows_update) {
  Swapper& swapper = session_->swapper();
  if (!Delays(step) || !follows_update) {
    ShowNewest();
    return absl::OkStatus();
  }
  if (session_->optimizer().DelayedUpdateIsPending()) {
    swapper.SwitchTo(Generation::kCommitted);
    return absl::OkStatus();
  }
  FOREBAY_RETURN_IF_ERROR(session_->store().FindPrevious());
  swapper.SwitchTo(Generation::kPrevious);
  return absl::OkStatus();
}

void DelayedUpdates::ShowNewest() {
  FOREBAY_CHECK(!session_->optimizer().DelayedUpdateIsPending());
  session_->swapper().SwitchTo(Generation::kNewest);
}

}  // namespace forebay
