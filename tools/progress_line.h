// Says how far a command is, and how long it still takes: one line on a terminal; where there is
// none, a line of its own now and then.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "forebay/base/clock.h"

namespace forebay {

// Owned by one thread.
class ProgressLine {
 public:
  ProgressLine();  // on stderr
  struct Times {
    double terminal_s = 0.1;  // between two changes of the line on a terminal
    double log_s = 30;        // before the first line elsewhere, and between two
    double left_from_s = 2;   // of work, before it is said what is left
  };
  // `file` must outlive the line.
  ProgressLine(std::FILE* file, bool is_terminal);
  ProgressLine(std::FILE* file, bool is_terminal, const Times& times);
  ~ProgressLine() { Clear(); }
  // `fraction` in [0, 1]: of one piece of work; one that is less than before begins another.
  void Show(std::string_view what, double fraction);
  void Clear();

 private:
  std::string Left(double fraction) const;

  std::FILE* const file_;
  const bool terminal_;
  const Times times_;
  bool shown_ = false;
  Stopwatch since_shown_;
  // These are of the present piece of work.
  Stopwatch since_begin_;
  double first_fraction_ = 0;
  double last_fraction_ = 2;
};

// "[=====     ]  50%".
std::string ProgressBar(double fraction);

}  // namespace forebay
