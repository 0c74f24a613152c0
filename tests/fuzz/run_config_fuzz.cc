// A configuration (--config), which may also be the resolved_config.json of a run: whatever is
// accepted holds only values that its own table allows, and reads back as itself.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/train/options/option_table.h"
#include "forebay/train/start/resolve_options.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

// One file in memory for the whole run of the fuzzer.
int MemoryFile() {
  static const int fd = ::memfd_create("config", MFD_CLOEXEC);
  return fd;
}

absl::StatusOr<forebay::ResolvedOptions> Resolve(std::string_view text) {
  const int fd = MemoryFile();
  Require(fd >= 0 && ::ftruncate(fd, 0) == 0);
  Require(::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  forebay::OptionInputs inputs;
  inputs.flags = {{"model", "m"}};
  inputs.config_file = fmt::format("/proc/self/fd/{}", fd);
  return forebay::ResolveOptions(inputs, forebay::OptionsUse::kPlan);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto resolved = Resolve(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!resolved.ok()) {
    Require(forebay::ExitCodeOf(resolved.status()) == forebay::ExitCode::kUsage);
    return 0;
  }
  const forebay::TrainOptions& options = resolved->options;
  Require(options.batch >= 1 && options.accum >= 1 && options.seq >= 2 && options.steps >= 0);
  Require(options.lr > 0 && std::isfinite(options.lr) && options.eps > 0);
  Require(options.beta1 >= 0 && options.beta1 < 1 && options.beta2 >= 0 && options.beta2 < 1);
  Require(options.tile_elems > 0 && options.io_threads >= 1 && options.keep >= 1);
  const auto again = Resolve(resolved->resolved.dump());
  Require(again.ok());
  for (const forebay::OptionSpec& spec : forebay::OptionTable()) {
    Require(spec.get(again->options) == spec.get(options));
  }
  return 0;
}
