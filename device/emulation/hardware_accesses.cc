#include "forebay/device/emulation/hardware_accesses.h"

#include <cstring>

namespace forebay::emulation {

void CopyBytes(void* to, const void* from, size_t size) {
  std::memcpy(to, from, size);
}

void FillBytes(void* to, int value, size_t size) {
  std::memset(to, value, size);
}

}  // namespace forebay::emulation
