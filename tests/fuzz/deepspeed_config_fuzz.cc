// A configuration of DeepSpeed (--ds_config): it is a usage error, or gives options that training
// accepts from our own configuration too.
#include "forebay/base/errors.h"
#include "forebay/tests/fuzz/memory_file.h"
#include "forebay/train/start/resolve_options.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace forebay;
  OptionInputs inputs;
  inputs.flags = {{"model", "m"}};
  inputs.ds_config_file = MemoryFile(std::string_view(reinterpret_cast<const char*>(data), size));
  const auto resolved = ResolveOptions(inputs, OptionsUse::kPlan);
  if (!resolved.ok()) {
    Require(ExitCodeOf(resolved.status()) == ExitCode::kUsage);
    return 0;
  }
  OptionInputs resolved_inputs;
  resolved_inputs.flags = inputs.flags;
  resolved_inputs.config_file = MemoryFile(resolved->resolved.dump());
  Require(ResolveOptions(resolved_inputs, OptionsUse::kPlan).ok());
  return 0;
}
