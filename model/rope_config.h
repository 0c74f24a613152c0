// What a config.json says of RoPE. Not for: the angles that follow from it (rope.h).
#pragma once

#include <string>
#include <vector>

#include "forebay/model/config_fields.h"
#include "forebay/model/decoder_config.h"

namespace forebay {

// Requires: `config` has its positions and the size of its heads. What is wrong goes to `problems`,
// those of `top` too.
RopeConfig ReadRope(const ConfigFields& top, const DecoderConfig& config,
                    std::vector<std::string>* problems);

}  // namespace forebay
