#include "forebay/train/files/rank_parts.h"

#include "forebay/model/decoder_config.h"

namespace forebay {

RankPart PartOf(const RunOptions& options) {
  if (options.zero_stage == 0) return {};
  return {options.rank, options.num_ranks};
}

RankPart PartOf(const Json& run_json) {
  if (!run_json.contains("part") || run_json["part"].is_null()) return {};
  return {run_json["part"]["number"].get<int>(), run_json["part"]["of"].get<int>()};
}

Json ToJson(const RankPart& part) {
  if (part.of == 1) return nullptr;
  return {{"number", part.number}, {"of", part.of}};
}

std::shared_ptr<const InventoryParts> PartsOf(const DecoderConfig& config, const RankPart& part) {
  if (part.of == 1) return nullptr;
  return std::make_shared<InventoryParts>(BuildInventory(config), part.of);
}

Inventory InventoryOf(const DecoderConfig& config, const RankPart& part) {
  const std::shared_ptr<const InventoryParts> parts = PartsOf(config, part);
  return parts == nullptr ? BuildInventory(config) : parts->Of(part.number);
}

}  // namespace forebay
