#include "forebay/tools/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "fmt/format.h"
#include "forebay/base/format.h"
#include "forebay/tools/print.h"

namespace forebay {
namespace {

constexpr int kBarWidth = 24;

}  // namespace

ProgressLine::ProgressLine() : ProgressLine(stderr, ::isatty(STDERR_FILENO) == 1) {}

ProgressLine::ProgressLine(std::FILE* file, bool is_terminal)
    : ProgressLine(file, is_terminal, Times()) {}

ProgressLine::ProgressLine(std::FILE* file, bool is_terminal, const Times& times)
    : file_(file), terminal_(is_terminal), times_(times) {}

void ProgressLine::Show(std::string_view what, double fraction) {
  if (fraction < last_fraction_) {
    since_begin_.Restart();
    first_fraction_ = fraction;
    if (!terminal_) since_shown_.Restart();
  }
  last_fraction_ = fraction;
  const bool waits = terminal_ ? shown_ && since_shown_.Seconds() < times_.terminal_s
                               : since_shown_.Seconds() < times_.log_s;
  if (waits) return;
  since_shown_.Restart();
  if (terminal_) {
    shown_ = true;
    PrintTo(file_, "\r\x1b[K{} {}{}", what, ProgressBar(fraction), Left(fraction));
  } else {
    PrintTo(file_, "{} {:.0f}%{}\n", what, fraction * 100, Left(fraction));
  }
  std::fflush(file_);
}

// As long as the rest takes at the pace up to now; "": that is not known yet.
std::string ProgressLine::Left(double fraction) const {
  const double done = fraction - first_fraction_;
  const double seconds = since_begin_.Seconds();
  if (done <= 0 || fraction >= 1 || seconds < times_.left_from_s) return "";
  return fmt::format(", {} left", FormatDuration(seconds * (1 - fraction) / done));
}

void ProgressLine::Clear() {
  if (!terminal_) since_shown_.Restart();  // somebody prints lines
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
