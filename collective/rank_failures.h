// Failures that every transport may find, in the same words.
#pragma once

#include <string>

#include "fmt/format.h"
#include "forebay/collective/transport.h"

namespace forebay {

inline RankFailure RankIsGone(int rank, const std::string& how) {
  return {rank,
          fmt::format("is gone ({}): it ended or was killed; its own output may say why", how)};
}

inline RankFailure RankIsSilent(int rank, double timeout_s) {
  return {rank,
          fmt::format(
              "did not go on for {:g} s (--set=rank_timeout, timeout_s): it hangs, is cut off, or "
              "needs longer than that between two exchanges",
              timeout_s)};
}

inline RankFailure WasStopped(int own_rank) {
  return {own_rank, "was stopped"};
}

}  // namespace forebay
