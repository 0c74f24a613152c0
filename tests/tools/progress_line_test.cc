#include "forebay/tools/progress_line.h"

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

class ProgressLineTest : public testing::Test {
 protected:
  std::string Printed() const {
    std::fflush(file_.get());
    std::rewind(file_.get());
    std::string text(1 << 12, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file_.get()));
    return text;
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
  line.Show("two", 0.0);
  Sleep();
  line.Show("two", 0.00002);  // 20 ms and more for a 50,000th
  EXPECT_THAT(Printed(), MatchesRegex("one 0%\none 100%\ntwo 0%\ntwo 0%, (1[67]|2.)m..s left\n"));
}

TEST_F(ProgressLineTest, InALogShortWorkIsSilent) {
  ProgressLine line(file_.get(), /*is_terminal=*/false);
  for (const double fraction : {0.0, 0.5, 1.0, 0.0, 1.0}) line.Show("reading", fraction);
  line.Clear();
  EXPECT_EQ(Printed(), "");
}

}  // namespace
}  // namespace forebay
