// The results of `forebay doctor`, as text and as JSON.
#pragma once

#include <span>
#include <string>

#include "forebay/base/json.h"
#include "forebay/doctor/check.h"

namespace forebay {

// The verdict of the worst check; kOk where there is none.
Verdict WorstOf(std::span<const Check> checks);

// For people: a line for each check, and below it what to do.
std::string FormatChecks(std::span<const Check> checks);

// For programs: {"schema": 1, "tool": {"name", "version"}, "verdict", "checks": [{"group", "of",
// "id", "verdict", "value", "fix"}]}; "of" and "fix" may be null. Fields are only ever added.
Json ChecksToJson(std::span<const Check> checks, const std::string& version);

}  // namespace forebay
