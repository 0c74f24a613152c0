// The command "version" of both programs.
#pragma once

#include <string>
#include <utility>

#include "forebay/tools/command.h"

namespace forebay {

class VersionCommand : public Command {
 public:
  // `program`: the name to print before the version.
  explicit VersionCommand(std::string program) : program_(std::move(program)) {}

  void Declare(CLI::App&) override {}
  absl::Status Run(const CommandContext& context) override;

 private:
  std::string program_;
};

}  // namespace forebay
