// A whole safetensors file, as small as its header lets it be.
#include <cstdio>
#include <cstdlib>

#include "../model/io/safetensors_invariants.h"
#include "forebay/model/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto file_size_bytes = static_cast<int64_t>(size);
  const auto header = forebay::ParseSafetensorsHeader(bytes, file_size_bytes, "fuzzed");
  if (!header.ok()) return 0;
  const std::string broken = forebay::BrokenInvariant(*header, file_size_bytes);
  if (!broken.empty()) {
    std::fprintf(stderr, "does not hold: %s\n", broken.c_str());
    std::abort();
  }
  return 0;
}
