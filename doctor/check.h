// One line of what `forebay doctor` says.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace forebay {

enum class Verdict : uint8_t { kOk, kWarn, kFail };  // from good to bad

struct Check {
  std::string group;  // "machine", "disk", "gpu"
  std::string of;     // in a group of several: the folder; "" else
  std::string id;     // "io_uring": stable, for programs
  Verdict verdict = Verdict::kOk;
  std::string value;  // what there is
  std::string fix;    // what to do, a sentence; "" where nothing is to be done
};

// "ok", "warn", "fail".
std::string_view NameOf(Verdict verdict);

}  // namespace forebay
