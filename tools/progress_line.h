// One line on a terminal that says how far a command is; nothing where there is no terminal.
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
  // `file` must outlive the line.
  ProgressLine(std::FILE* file, bool is_terminal) : file_(file), terminal_(is_terminal) {}
  ~ProgressLine() { Clear(); }
  // At most ten times a second. `fraction` in [0, 1].
  void Show(std::string_view what, double fraction);
  void Clear();

 private:
  std::FILE* const file_;
  const bool terminal_;
  bool shown_ = false;
  Stopwatch since_shown_;
};

// "[=====     ]  50%".
std::string ProgressBar(double fraction);

}  // namespace forebay
