// The type forebay_ranks.
#pragma once

#include <memory>
#include <mutex>

#include "forebay/capi/c.h"
#include "forebay/capi/c_status.h"
#include "forebay/collective/communicator.h"

namespace forebay::capi {

// Shared by forebay_ranks and the layers of these ranks.
struct RanksState {
  std::mutex mutex;  // of calls, which are made one at a time
  std::unique_ptr<Communicator> communicator;
  int local_rank = 0;
};

}  // namespace forebay::capi

struct forebay_ranks : forebay::capi::Handle {
  std::shared_ptr<forebay::capi::RanksState> state;
};
