// Where results go: the terminal, --out, --plot; and the live line while they are made.
#pragma once

#include <string>
#include <string_view>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "forebay/base/json.h"
#include "forebay/measure/runs/bench_session.h"
#include "forebay/tools/progress_line.h"

namespace forebay {

// --out, --plot and --live.
class OutputFlags {
 public:
  // `plot`: there is a picture of these results.
  void Declare(CLI::App& app, bool plot = true);
  // Before anything is measured: UsageError where a file is in the way that swap-bench did not
  // make, StorageError where there is no room for one.
  absl::Status Check() const;
  // What was asked for of these two. StorageError.
  absl::Status WriteFiles(const Json& results, const std::string& svg) const;
  bool live() const { return live_; }

 private:
  std::string out_;
  std::string plot_;
  bool live_ = false;
};

// A results file has this near its beginning; an io.json the other.
inline constexpr char kResultsMark[] = "\"name\": \"swap-bench\"";
inline constexpr char kProfileMark[] = "\"made_by\": \"swap-bench tune";

// OK when `path` (of a flag; "" names none) may be written: it is not there, or it holds `mark`
// near its beginning, so that it is an earlier result. UsageError; StorageError where there is no
// room.
absl::Status CheckReplaceable(const std::string& flag, const std::string& path, const char* mark);

// Hooks of a run that stop at Ctrl-C and show what goes on: on a terminal in a live line, with
// --live as a line for each phase and each second anywhere. Must outlive the run.
class BenchProgress {
 public:
  explicit BenchProgress(bool live) : live_(live) {}
  BenchHooks Hooks();
  void Clear() { line_.Clear(); }

 private:
  void Show(std::string_view phase, double fraction, double bytes_per_s);

  const bool live_;
  ProgressLine line_;
  std::string phase_;  // the one that was printed last
  Stopwatch since_printed_;
};

// Ctrl-C and the like stop the measurement. EnvironmentError where no thread can wait for them.
absl::Status CatchBenchStopSignals();

// JSON as it is printed: with line breaks, and any bytes in paths replaced.
std::string DumpResults(const Json& json);

}  // namespace forebay
