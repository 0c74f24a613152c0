// The flags that `eval` and `generate` share: a model, what computes it and how precisely, and how
// much memory to use.
#pragma once

#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "forebay/train/infer/infer_options.h"

namespace forebay {

class ModelFlags {
 public:
  void Declare(CLI::App& app);
  // Checks and reads the texts; call after the parse. UsageError naming every flag that is wrong.
  absl::StatusOr<InferOptions> Read() const;

 private:
  InferOptions options_;
  std::string precision_text_ = "bf16";
  std::string ram_text_ = "auto";
  std::string device_text_ = "cpu";
  std::string gpu_mem_text_ = "auto";
};

}  // namespace forebay
