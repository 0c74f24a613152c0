// The command "version" of both programs.
#pragma once

#include <string>
#include <utility>

#include "forebay/tools/command.h"

namespace forebay {

class VersionCommand : public Command {
 public:
  // `program`: the name to print before the version. `libraries` (nullptr: none) gives a line of
  // those that it found on this machine.
  explicit VersionCommand(std::string program, std::string (*libraries)() = nullptr)
      : program_(std::move(program)), libraries_(libraries) {}

  void Declare(CLI::App&) override {}
  absl::Status Run(const CommandContext& context) override;

 private:
  std::string program_;
  std::string (*libraries_)();
};

}  // namespace forebay
