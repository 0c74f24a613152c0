#include "forebay/train/run/saving_progress.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

class PhaseObserver : public TrainObserver {
 public:
  void OnPlan(const std::string&, const Json&) override {}
  void OnPhase(const std::string& phase, double fraction) override {
    phases.emplace_back(phase, fraction);
  }
  void OnProgress(int64_t, int64_t, double) override {}
  void OnStep(const Json&) override {}
  void OnNote(const std::string&) override {}
  void OnWarning(const std::string&) override {}
  void OnDone(const Json&) override {}
  std::vector<std::pair<std::string, double>> phases;
};

TEST(SavingProgress, ACommitIsToldOfFromItsBeginning) {
  PhaseObserver observer;
  SavingProgress saving(&observer, /*long_s=*/0);
  saving.Begin();
  for (const double fraction : {0.0, 0.5, 0.25}) saving.Show(fraction);
  EXPECT_THAT(observer.phases, ElementsAre(Pair("saving", 0), Pair("saving", 0),
                                           Pair("saving", 0.5), Pair("saving", 0.25)));
}

TEST(SavingProgress, AShortCommitInAStepIsNotToldOf) {
  PhaseObserver observer;
  SavingProgress saving(&observer);
  for (const double fraction : {0.0, 0.5, 1.0}) saving.Show(fraction);
  EXPECT_THAT(observer.phases, IsEmpty());
}

}  // namespace
}  // namespace forebay
