// A whole decoder in float64, written from the papers and transformers' modelling files without
// looking at the code under test: the loss, logits and gradients that the real one must give.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "forebay/data/micro_batch.h"
#include "forebay/model/decoder_config.h"
#include "forebay/tests/model/decoder/reference_tape.h"

namespace forebay::reference {

// Values of every tensor, by its Hugging Face name.
using NamedTensors = std::map<std::string, std::vector<double>>;

struct ReferenceResult {
  double loss_sum = 0;
  std::vector<double> logits;  // [tokens, vocab]
  NamedTensors gradients;      // of loss_sum * scale
};

ReferenceResult RunReference(const DecoderConfig& config, const Inventory& inventory,
                             const NamedTensors& weights, const MicroBatch& batch, double scale);

}  // namespace forebay::reference
