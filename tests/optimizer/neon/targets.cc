// What the kernels and their tests ask of Highway's library, which is there for the host alone: of
// an emulated CPU that has NEON and SVE, with vectors of no particular length.
#include "hwy/highway.h"

namespace hwy {

int64_t SupportedTargets() {
  return HWY_TARGETS & (HWY_NEON | HWY_SVE | HWY_SVE2);
}
void SetSupportedTargetsForTest(int64_t targets) {
  GetChosenTarget().Update(targets == 0 ? SupportedTargets() : targets);
}
ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
