// forebay_export.json: whatever is accepted names files of its own folder, whose bytes can be
// counted together.
#include <cstdlib>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/train/files/export_files.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto files = forebay::ParseExportFiles(
      std::string_view(reinterpret_cast<const char*>(data), size), "fuzzed");
  if (!files.ok()) {
    Require(forebay::ExitCodeOf(files.status()) == forebay::ExitCode::kCorrupt);
    return 0;
  }
  int64_t all_bytes = 0;
  for (const forebay::ExportedFile& file : *files) {
    Require(file.bytes >= 0 && !__builtin_add_overflow(all_bytes, file.bytes, &all_bytes));
    Require(!file.name.empty() && file.name.front() != '.');
    Require(file.name.find_first_of(std::string_view("/\0", 2)) == std::string::npos);
  }
  return 0;
}
