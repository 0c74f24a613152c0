// Accesses that the hardware makes on the program's behalf, compiled with the sanitizers that the
// program has: so a copy that is ordered wrongly is a race.
#pragma once

#include <cstddef>

namespace forebay::emulation {

void CopyBytes(void* to, const void* from, size_t size);
void FillBytes(void* to, int value, size_t size);

}  // namespace forebay::emulation
