// The commands of `forebay`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "forebay/tools/command.h"

namespace forebay {

const Program& ForebayProgram();

std::unique_ptr<Command> MakeTrainCommand();
std::unique_ptr<Command> MakePlanCommand();
std::unique_ptr<Command> MakeGenerateCommand();
std::unique_ptr<Command> MakeEvalCommand();
std::unique_ptr<Command> MakeInspectCommand();
std::unique_ptr<Command> MakeInitCommand();
std::unique_ptr<Command> MakeCleanCommand();
std::unique_ptr<Command> MakeExportCommand();
std::unique_ptr<Command> MakeDoctorCommand();
std::unique_ptr<Command> MakeReportCommand();

// Runs `forebay-data` with these arguments on our terminal and returns its exit code.
int RunDataCommand(const std::vector<std::string>& args);

}  // namespace forebay
