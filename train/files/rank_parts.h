// The part of a run's state that a rank has: all of it, or with ZeRO's stages 1 to 3 its part of
// every layer.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/model/decoder_config.h"
#include "forebay/swap/tiles/inventory_parts.h"
#include "forebay/train/options/options.h"

namespace forebay {

struct RankPart {
  int number = 0;
  int of = 1;  // 1: the whole
  friend bool operator==(const RankPart&, const RankPart&) = default;
};

// The part of this process of a run with these options. Pure.
RankPart PartOf(const RunOptions& options);
// As run.json says; the whole where it says nothing. Requires: ReadRunJson's.
RankPart PartOf(const Json& run_json);
// For run.json; null for the whole.
Json ToJson(const RankPart& part);

// How the layers of the decoder are divided; nullptr: they are not.
std::shared_ptr<const InventoryParts> PartsOf(const DecoderConfig& config, const RankPart& part);
// The layers as the rank's store has them.
Inventory InventoryOf(const DecoderConfig& config, const RankPart& part);

}  // namespace forebay
