// Names of tensors as programs save them from inside a wrapper of the model.
#pragma once

#include <string>
#include <string_view>

namespace forebay {

// The name that a tensor has in the model alone: without what torch.compile,
// DistributedDataParallel, FSDP, activation checkpointing, Lightning, PEFT and models of images put
// before or into it.
std::string UnwrappedName(std::string_view name);

// Why a model has no tensor of this name, and what to do, in brackets after a blank; empty where
// that is not known.
std::string_view CauseOfUnknownTensor(std::string_view name);

}  // namespace forebay
