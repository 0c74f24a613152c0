#include "forebay/tools/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "fmt/format.h"
#include "forebay/tools/print.h"

namespace forebay {
namespace {

constexpr double kIntervalS = 0.1;
constexpr int kBarWidth = 24;

}  // namespace

ProgressLine::ProgressLine() : ProgressLine(stderr, ::isatty(STDERR_FILENO) == 1) {}

void ProgressLine::Show(std::string_view what, double fraction) {
  if (!terminal_ || (shown_ && since_shown_.Seconds() < kIntervalS)) return;
  shown_ = true;
  since_shown_.Restart();
  PrintTo(file_, "\r\x1b[K{} {}", what, ProgressBar(fraction));
  std::fflush(file_);
}

void ProgressLine::Clear() {
  if (!shown_) return;
  shown_ = false;
  PrintTo(file_, "\r\x1b[K");
  std::fflush(file_);
}

std::string ProgressBar(double fraction) {
  const double clamped = std::clamp(fraction, 0.0, 1.0);
  const int full = static_cast<int>(std::lround(clamped * kBarWidth));
  return fmt::format("[{}{}] {:3.0f}%", std::string(full, '='), std::string(kBarWidth - full, ' '),
                     clamped * 100);
}

}  // namespace forebay
