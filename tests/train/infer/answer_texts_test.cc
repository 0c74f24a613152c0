#include "forebay/train/infer/answer_texts.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::ElementsAre;

// What each piece lets through, and the rest.
std::vector<std::string> Shown(const std::vector<std::string>& stops,
                               const std::vector<std::string>& pieces) {
  StoppedText text(stops);
  std::vector<std::string> shown;
  for (const std::string& piece : pieces) shown.push_back(text.Add(piece));
  shown.push_back(text.Finish());
  return shown;
}

TEST(StoppedText, WithoutStopsEveryPieceIsShownAtOnce) {
  EXPECT_THAT(Shown({}, {"a", "", "bc"}), ElementsAre("a", "", "bc", ""));
}

TEST(StoppedText, EndsBeforeTheFirstStop) {
  EXPECT_THAT(Shown({"END", "\n\n"}, {"one\n", "\nEND", "two"}), ElementsAre("one", "", "", ""));
  EXPECT_THAT(Shown({"\n\n", "END"}, {"one END two\n\n"}), ElementsAre("one ", ""));
}

TEST(StoppedText, HoldsBackWhatAStopMayBeginWith) {
  EXPECT_THAT(Shown({"<end>"}, {"a<", "en", "x<e", "nd"}),
              ElementsAre("a", "", "<enx", "", "<end"));
  // The beginning of a stop within the beginning of another try of it.
  EXPECT_THAT(Shown({"aab"}, {"a", "a", "a", "b", "c"}), ElementsAre("", "", "a", "", "", ""));
}

TEST(StoppedText, SaysThatItIsStopped) {
  const std::vector<std::string> stops = {"b"};
  StoppedText text(stops);
  text.Add("a");
  EXPECT_FALSE(text.is_stopped());
  text.Add("b");
  EXPECT_TRUE(text.is_stopped());
}

}  // namespace
}  // namespace forebay
