// config.json: whatever is accepted makes an inventory whose sizes are those of the config, and
// tables that are finite.
#include <cmath>
#include <cstdlib>

#include "forebay/model/decoder_config.h"
#include "forebay/model/rope.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json =
      forebay::ParseJson(std::string_view(reinterpret_cast<const char*>(data), size), "fuzzed");
  if (!json.ok()) return 0;
  const auto config = forebay::ParseDecoderConfig(*json, "fuzzed");
  if (!config.ok()) return 0;
  Require(config->num_heads % config->num_kv_heads == 0);
  Require(config->window.size() == static_cast<size_t>(config->num_layers));
  const forebay::Inventory inventory = forebay::BuildInventory(*config);
  Require(inventory.num_layers() == config->num_layers + 2);
  Require(inventory.num_params() >= config->vocab_size * config->hidden_size);
  Require(inventory.num_padded_elems() >= inventory.num_params());
  for (const int64_t sequence_tokens : {int64_t{1}, config->max_positions}) {
    if (config->positions != forebay::PositionKind::kRope) break;
    for (const float frequency :
         forebay::ComputeRopeFrequencies(config->rope, config->head_dim, sequence_tokens)
             .inv_freq) {
      Require(std::isfinite(frequency));
    }
  }
  return 0;
}
