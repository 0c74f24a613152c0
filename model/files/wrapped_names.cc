#include "forebay/model/files/wrapped_names.h"

#include <algorithm>
#include <array>
#include <utility>

namespace forebay {
namespace {

// Parts of a name that no model has of its own.
constexpr std::array<std::string_view, 6> kWrappers = {
    "_orig_mod",                   // torch.compile
    "module",                      // DataParallel, DistributedDataParallel
    "_fsdp_wrapped_module",        // FSDP
    "_checkpoint_wrapped_module",  // activation checkpointing
    "_forward_module",             // Lightning
    "base_layer",                  // PEFT, around a layer
};
// Beginnings, and what they are without the wrapper. The first that fits counts.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kPrefixes = {{
    {"base_model.model.", ""},            // PEFT
    {"model.language_model.", "model."},  // models of images and text
    {"language_model.model.", "model."},  // the same, older
    {"language_model.lm_head.", "lm_head."},
    {"model.model.", "model."},  // a module that has the model as `model`
    {"model.transformer.", "transformer."},
    {"model.lm_head.", "lm_head."},
}};

struct Cause {
  std::string_view part;
  std::string_view text;
};
constexpr std::string_view kAdapter =
    " (an adapter that is not merged with its model: merge_and_unload of PEFT, then "
    "save_pretrained, does it)";
constexpr std::string_view kOtherModality =
    " (part of a model of images or sound: save only its language model, with a config.json of its "
    "own)";
constexpr std::string_view kQuantized = " (quantized weights: use the unquantized model)";
constexpr std::array<Cause, 14> kCauses = {{
    {".lora_", kAdapter},
    {".modules_to_save.", kAdapter},
    {".original_module.", kAdapter},
    {"visual.", kOtherModality},
    {"vision_tower.", kOtherModality},
    {"vision_model.", kOtherModality},
    {"audio_tower.", kOtherModality},
    {"multi_modal_projector.", kOtherModality},
    {".qweight", kQuantized},
    {".qzeros", kQuantized},
    {".scales", kQuantized},
    {".absmax", kQuantized},
    {".quant_map", kQuantized},
    {".weight_scale", kQuantized},
}};

}  // namespace

std::string UnwrappedName(std::string_view name) {
  std::string unwrapped;
  for (size_t begin = 0, end = 0; begin <= name.size(); begin = end + 1) {
    end = std::min(name.find('.', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (std::ranges::count(kWrappers, part) > 0) continue;
    if (!unwrapped.empty()) unwrapped += '.';
    unwrapped += part;
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& [prefix, without] : kPrefixes) {
      if (!unwrapped.starts_with(prefix)) continue;
      unwrapped.replace(0, prefix.size(), without);
      changed = true;
      break;
    }
  }
  return unwrapped;
}

std::string_view CauseOfUnknownTensor(std::string_view name) {
  for (const Cause& cause : kCauses) {
    if (name.find(cause.part) != std::string_view::npos) return cause.text;
  }
  return "";
}

}  // namespace forebay
