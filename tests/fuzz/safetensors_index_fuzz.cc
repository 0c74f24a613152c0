// model.safetensors.index.json: whatever is accepted names files of the same folder.
#include <cstdlib>

#include "forebay/model/files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto index = forebay::ParseSafetensorsIndex(
      std::string_view(reinterpret_cast<const char*>(data), size), "fuzzed");
  if (!index.ok()) return 0;
  for (const auto& [tensor, file] : *index) {
    if (file.empty() || file.front() == '.' ||
        file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      std::abort();
    }
  }
  return 0;
}
