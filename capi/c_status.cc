#include "forebay/capi/c_status.h"

#include <cstdlib>

#include "forebay/base/errors.h"
#include "forebay/capi/c.h"

namespace forebay::capi {

char* CopyText(std::string_view text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = 0;
  return copy;
}

absl::Status Handle::Check(std::string_view name) const {
  if (IsUsable()) return absl::OkStatus();
  return UsageError(
      fmt::format("{}: process {} made this object, and process {} is a fork of it, which has none "
                  "of its threads. Use it there, or make another one here, in other folders",
                  name, process_, ::getpid()));
}

int32_t CodeOf(const absl::Status& status, char** message) {
  if (status.ok()) return FOREBAY_OK;
  if (message != nullptr) *message = CopyText(MessageOf(status));
  return static_cast<int32_t>(ExitCodeOf(status));
}

absl::StatusOr<Json> ObjectOf(const char* text, size_t length, std::string_view name) {
  FOREBAY_ASSIGN_OR_RETURN(const std::string copy, TextOf(text, length, name));
  if (copy.empty()) return Json::object();
  absl::StatusOr<Json> json = ParseJson(copy, name);
  if (!json.ok()) return UsageError(MessageOf(json.status()));
  if (json->is_object()) return json;
  return UsageError(
      fmt::format("{} is a JSON {}, and has to be an object", name, json->type_name()));
}

absl::StatusOr<DType> DTypeOf(int32_t dtype, std::string_view name) {
  switch (dtype) {
    case FOREBAY_F32:
      return DType::kF32;
    case FOREBAY_BF16:
      return DType::kBF16;
    case FOREBAY_F16:
      return DType::kF16;
    default:
      return UsageError(
          fmt::format("{} is {}, and has to be 0 (fp32), 1 (bf16) or 2 (fp16)", name, dtype));
  }
}

absl::Status Give(std::string_view text, char** to) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(to, "where the text goes"));
  *to = CopyText(text);
  return *to != nullptr ? absl::OkStatus() : OutOfMemoryError("there is no memory for a text");
}

}  // namespace forebay::capi

extern "C" {

int32_t forebay_abi_version(void) {
  return FOREBAY_ABI_VERSION;
}

const char* forebay_version(void) {
  return FOREBAY_VERSION;
}

void forebay_free(void* text) {
  std::free(text);
}

}  // extern "C"
