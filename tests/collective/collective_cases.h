// The tests that every transport has to pass: one rank runs a case and looks at its own results.
// All ranks run it at the same time, each with its own communicator.
#pragma once

#include <ostream>
#include <vector>

#include "forebay/collective/communicator.h"

namespace forebay {

struct CollectiveCase {
  const char* name;
  void (*run)(Communicator& ranks);
};

inline void PrintTo(const CollectiveCase& one, std::ostream* out) {
  *out << one.name;
}

const std::vector<CollectiveCase>& CollectiveCases();

// The one of them that device memory is in.
void DeviceMemoryIsReducedAndGatheredWhenItIsReady(Communicator& ranks);

}  // namespace forebay
