// Runs a test body once for every instruction set that this CPU has and the kernels were compiled
// for.
#pragma once

#include <cstdint>

#include "gtest/gtest.h"
#include "hwy/highway.h"

namespace forebay {

template <typename Body>
void ForEachSimdTarget(const Body& body) {
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
}

}  // namespace forebay
