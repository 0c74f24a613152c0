// The commands of `swap-bench`.
#pragma once

#include <memory>

#include "forebay/tools/command.h"

namespace forebay {

const Program& SwapBenchProgram();

std::unique_ptr<Command> MakeBenchRunCommand();
std::unique_ptr<Command> MakeBenchProbeCommand();
std::unique_ptr<Command> MakeBenchSweepCommand();
std::unique_ptr<Command> MakeBenchTuneCommand();
std::unique_ptr<Command> MakeBenchStepCommand();
std::unique_ptr<Command> MakeBenchCompareCommand();

}  // namespace forebay
