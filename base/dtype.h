// Element types, with the names that safetensors and Hugging Face configs use.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace forebay {

enum class DType : uint8_t { kF32, kBF16, kF16 };

constexpr int64_t SizeOf(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

// "F32", "BF16", "F16": the spelling of safetensors headers.
constexpr std::string_view SafetensorsName(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kBF16 ? "BF16" : "F16";
}

// "float32", "bfloat16", "float16": the spelling of `torch_dtype` and `dtype` in config.json.
constexpr std::string_view TorchName(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kBF16 ? "bfloat16" : "float16";
}

// "fp32", "bf16", "fp16": as options and layouts are called.
constexpr std::string_view NameOf(DType dtype) {
  return dtype == DType::kF32 ? "fp32" : dtype == DType::kBF16 ? "bf16" : "fp16";
}

}  // namespace forebay
