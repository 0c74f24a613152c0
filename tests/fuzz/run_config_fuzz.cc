// A configuration (--config), which may also be the resolved_config.json of a run: whatever is
// accepted holds only values that its own table allows, and reads back as itself.
#include <cmath>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/tests/fuzz/memory_file.h"
#include "forebay/train/options/option_table.h"
#include "forebay/train/start/resolve_options.h"

namespace {

using forebay::Require;

absl::StatusOr<forebay::ResolvedOptions> Resolve(std::string_view text) {
  forebay::OptionInputs inputs;
  inputs.flags = {{"model", "m"}};
  inputs.config_file = forebay::MemoryFile(text);
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
