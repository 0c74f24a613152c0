// --ram of a command that needs little memory, whatever the model.
#pragma once

#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"

namespace forebay {

class RamFlag {
 public:
  void Declare(CLI::App& app);
  // 0: not given. UsageError.
  absl::StatusOr<int64_t> Read() const;

 private:
  std::string text_;
};

}  // namespace forebay
