// From absl::Status to the codes and messages of c.h, and options of any version to ours.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fmt/format.h"
#include "forebay/base/dtype.h"
#include "forebay/base/errors.h"
#include "forebay/base/json.h"

namespace forebay::capi {

// A copy that forebay_free frees; nullptr where there is no memory.
char* CopyText(std::string_view text);

// The code of `status`, and its text in *message where it is an error and message is not NULL.
int32_t CodeOf(const absl::Status& status, char** message);

// Runs a call that returns absl::Status. Nothing of ours throws; the standard library does, where
// memory ends.
template <typename Call>
int32_t Run(char** message, const Call& call) {
  try {
    return CodeOf(call(), message);
  } catch (const std::bad_alloc&) {
    return CodeOf(OutOfMemoryError("there is no memory for this call"), message);
  } catch (const std::exception& error) {
    return CodeOf(absl::InternalError(error.what()), message);
  }
}

// The base of every object of c.h with threads or locks. It knows the process that made it: a fork
// has none of the threads and an arbitrary state of the locks, so every call there is an error, and
// a destroy function does nothing.
class Handle {
 public:
  bool IsUsable() const { return process_ == ::getpid(); }
  // UsageError: this process is a fork of that which made the object.
  absl::Status Check(std::string_view name) const;

 private:
  const pid_t process_ = ::getpid();
};

template <typename Object>
absl::Status CheckPointer(const Object* pointer, std::string_view name) {
  if (pointer == nullptr) return UsageError(fmt::format("{} is NULL", name));
  if constexpr (std::is_base_of_v<Handle, Object>) return pointer->Check(name);
  return absl::OkStatus();
}

// Whether a call without a message may use the object.
inline bool IsUsable(const Handle* handle) {
  return handle != nullptr && handle->IsUsable();
}

// A `_destroy`.
template <typename Object>
void Destroy(Object* object) {
  if (IsUsable(object)) delete object;
}

// UsageError: it is none.
inline absl::StatusOr<std::string> TextOf(const char* text, size_t length, std::string_view name) {
  if (text == nullptr && length > 0) return UsageError(fmt::format("{} is NULL", name));
  return std::string(text == nullptr ? "" : text, length);
}

// The options as this library knows them: what an older program leaves out is zero, which is the
// default. UsageError: no struct_size, or one of a newer program that sets what is not known here.
template <typename Options>
absl::StatusOr<Options> OptionsOf(const Options* options) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(options, "options"));
  size_t size = 0;
  std::memcpy(&size, options, sizeof(size));
  if (size < sizeof(size)) {
    return UsageError(fmt::format("struct_size is {}. Set it to sizeof of the struct", size));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(options);
  for (size_t i = sizeof(Options); i < size; ++i) {
    if (bytes[i] == 0) continue;
    return UsageError(
        "the options have settings that this library does not know. Install a newer forebay");
  }
  Options result = {};
  std::memcpy(&result, options, std::min(size, sizeof(Options)));
  return result;
}

// The JSON object that `text` is; no text: an empty one.
absl::StatusOr<Json> ObjectOf(const char* text, size_t length, std::string_view name);

// The value that a number of c.h stands for.
template <typename Value, size_t kNum>
absl::StatusOr<Value> Choice(int32_t choice, const std::array<Value, kNum>& values,
                             std::string_view name) {
  if (choice >= 0 && choice < static_cast<int32_t>(kNum))
    return values[static_cast<size_t>(choice)];
  return UsageError(fmt::format("{} is {}, and has to be from 0 to {}", name, choice, kNum - 1));
}

absl::StatusOr<DType> DTypeOf(int32_t dtype, std::string_view name);

// Gives text to the caller.
absl::Status Give(std::string_view text, char** to);

}  // namespace forebay::capi
