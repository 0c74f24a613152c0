// The flags that `eval` and `generate` share: a model, how precisely to compute, and how much
// memory to use.
#pragma once

#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "forebay/model/cpu/ops.h"

namespace forebay {

class ModelFlags {
 public:
  void Declare(CLI::App& app);
  // Checks and reads the texts; call after the parse. UsageError naming every flag that is wrong.
  absl::Status Read();

  // Set by Read.
  std::string model;
  cpu::Precision precision = cpu::Precision::kBf16;
  int64_t ram_bytes = 0;  // 0: a share of what is available
  int threads = 0;        // 0: one per core

 private:
  std::string precision_text_ = "bf16";
  std::string ram_text_ = "auto";
};

}  // namespace forebay
