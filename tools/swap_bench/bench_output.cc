#include "forebay/tools/swap_bench/bench_output.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/output_folder.h"
#include "forebay/base/shared_file.h"
#include "forebay/tools/print.h"
#include "forebay/tools/stop_signal.h"
#include "forebay/tools/swap_bench/svg_plot.h"

namespace forebay {
namespace {

constexpr int64_t kMaxResultsBytes = int64_t{256} << 20;
constexpr double kLiveS = 1;

bool HasMark(const std::string& text, const char* mark) {
  return std::string_view(text).substr(0, 512).find(mark) != std::string_view::npos;
}

// What a file is that may not be replaced.
std::string WhatItIs(const std::string& text) {
  if (HasMark(text, kProfileMark)) return "holds settings of swap-bench tune";
  if (HasMark(text, kSvgMark)) return "holds a picture of swap-bench";
  if (HasMark(text, kResultsMark)) return "holds results of swap-bench run, sweep or step";
  return "is there and was not made by swap-bench";
}

bool IsOneFile(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code error;
  const auto folder = [&](const std::filesystem::path& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error).parent_path(),
                                             error);
  };
  return a.filename() == b.filename() && folder(a) == folder(b);
}

}  // namespace

absl::Status CheckReplaceable(const std::string& flag, const std::string& path, const char* mark) {
  if (path.empty()) return absl::OkStatus();
  if (IsDirectory(path)) {
    return UsageError(fmt::format("--{}={} is a folder. Name a file in it", flag, path));
  }
  if (FileExists(path)) {
    const std::string text = ReadWholeFile(path, kMaxResultsBytes).value_or("");
    if (!HasMark(text, mark)) {
      return UsageError(fmt::format("--{}={} {}: it is left as it is. Name another file", flag,
                                    path, WhatItIs(text)));
    }
  }
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (!IsDirectory(folder)) {
    return UsageError(fmt::format("--{}={}: '{}' is no folder", flag, path, folder));
  }
  // The file is written under this name first.
  if (FileExists(path + ".tmp")) {
    return UsageError(fmt::format("'{}.tmp' is in the way of --{}; move it", path, flag));
  }
  return CheckWritable(folder);
}

void OutputFlags::Declare(CLI::App& app, bool plot) {
  app.add_option("-o,--out", out_, "write the results as JSON, whatever is printed")
      ->type_name("FILE")
      ->take_last();
  if (plot) {
    app.add_option("--plot", plot_, "write a picture of the results")
        ->type_name("FILE.svg")
        ->take_last();
  }
  app.add_flag("--live", live_, "a line each second with the bandwidth, on stderr");
}

absl::Status OutputFlags::Check() const {
  if (!plot_.empty() && !plot_.ends_with(".svg")) {
    return UsageError(
        fmt::format("--plot={} does not end in .svg, the one format there is", plot_));
  }
  if (!out_.empty() && !plot_.empty() && IsOneFile(out_, plot_)) {
    return UsageError(fmt::format(
        "--out={} and --plot={} name one file: the picture would replace the results. Name two",
        out_, plot_));
  }
  FOREBAY_RETURN_IF_ERROR(CheckReplaceable("out", out_, kResultsMark));
  return CheckReplaceable("plot", plot_, kSvgMark);
}

absl::Status OutputFlags::WriteFiles(const Json& results, const std::string& svg) const {
  if (!out_.empty()) FOREBAY_RETURN_IF_ERROR(WriteSharedFileAtomically(out_, DumpResults(results)));
  if (!plot_.empty()) FOREBAY_RETURN_IF_ERROR(WriteSharedFileAtomically(plot_, svg));
  return absl::OkStatus();
}

void BenchProgress::Show(std::string_view phase, double fraction, double bytes_per_s) {
  const std::string text = fmt::format("{} {:.2f} GB/s", phase, bytes_per_s / 1e9);
  line_.Show(text, fraction);
  if (!live_ || (phase == phase_ && since_printed_.Seconds() < kLiveS)) return;
  phase_ = phase;
  since_printed_.Restart();
  line_.Clear();
  PrintTo(stderr, "{} {:.0f} %\n", text, std::clamp(fraction, 0.0, 1.0) * 100);
}

BenchHooks BenchProgress::Hooks() {
  BenchHooks hooks;
  hooks.stop = StopRequested;
  hooks.progress = [this](std::string_view phase, double fraction, double bytes_per_s) {
    Show(phase, fraction, bytes_per_s);
  };
  hooks.report = [](const std::string& line) {
    // One write on a line of its own, as it comes from another thread.
    PrintTo(stderr, "\nswap-bench: warning: {}\n", line);
  };
  return hooks;
}

absl::Status CatchBenchStopSignals() {
  return CatchStopSignals("\nswap-bench: stopping; once more ends at once\n");
}

std::string DumpResults(const Json& json) {
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace forebay
