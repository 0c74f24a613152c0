#include "forebay/tools/progress_line.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "forebay/base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

class ProgressLineTest : public testing::Test {
 protected:
  std::string Printed() const {
    std::fflush(file_.get());
    std::rewind(file_.get());
    std::string text(1 << 12, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file_.get()));
    return text;
  }
  // "18m34s left\n" or "20.1 s left\n".
  static double SecondsOf(const std::string& left) {
    double minutes = 0, seconds = 0;
    if (std::sscanf(left.c_str(), "%lfm%lfs left", &minutes, &seconds) == 2)
      return minutes * 60 + seconds;
    EXPECT_EQ(std::sscanf(left.c_str(), "%lf s left", &seconds), 1) << left;
    return seconds;
  }
  static void Sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_{std::tmpfile(), &std::fclose};
};

TEST_F(ProgressLineTest, OnATerminalSaysWhatIsLeftOnceThatIsKnown) {
  ProgressLine line(file_.get(), /*is_terminal=*/true, {.terminal_s = 0, .left_from_s = 0.01});
  line.Show("reading", 0.25);
  EXPECT_THAT(Printed(), AllOf(HasSubstr("reading [======  "), Not(HasSubstr("left"))));
  Sleep();
  line.Show("reading", 0.5);
  EXPECT_THAT(Printed(), MatchesRegex("(.|\n)*50%, [0-9.]+ m?s left"));
}

TEST_F(ProgressLineTest, WhatIsLeftIsByThePaceOfThisPieceOfWork) {
  ProgressLine line(file_.get(), /*is_terminal=*/false, {.log_s = 0, .left_from_s = 0});
  line.Show("one", 0);
  line.Show("one", 1);
  const Stopwatch longer;
  line.Show("two", 0.0);
  const Stopwatch shorter;
  Sleep();
  const double least_s = shorter.Seconds();
  line.Show("two", 0.001);
  const double most_s = longer.Seconds();
  const std::string printed = Printed();
  const std::string_view before = "one 0%\none 100%\ntwo 0%\ntwo 0%, ";
  ASSERT_THAT(printed, StartsWith(before));
  const double left_s = SecondsOf(printed.substr(before.size()));
  EXPECT_THAT(left_s, AllOf(Ge(999 * least_s - 0.5), Le(999 * most_s + 0.5)));
}

TEST_F(ProgressLineTest, InALogShortWorkIsSilent) {
  ProgressLine line(file_.get(), /*is_terminal=*/false);
  for (const double fraction : {0.0, 0.5, 1.0, 0.0, 1.0}) line.Show("reading", fraction);
  line.Clear();
  EXPECT_EQ(Printed(), "");
}

}  // namespace
}  // namespace forebay
