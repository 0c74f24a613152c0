// The folders of ranks, and whether a store may be made in them.
#include "forebay/offload/embedded/embedded_ranks.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/collective/rank_group.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FoldersOfRank, OneRankHasThoseThatAreGiven) {
  EXPECT_THAT(FoldersOfRank({"/a", "/b/"}, 0, 1), ElementsAre("/a", "/b/"));
}

TEST(FoldersOfRank, EachOfSeveralHasItsOwnInAllOfThem) {
  EXPECT_THAT(FoldersOfRank({"/a", "/b/"}, 2, 11),
              ElementsAre("/a/rank-2-of-11", "/b/rank-2-of-11"));
}

class StoresOfRanks : public ::testing::Test {
 protected:
  // As far as it matters here, a store is its manifest.
  void MakeStore(const std::string& name) {
    std::filesystem::create_directories(folder_.Path(name));
    std::ofstream(folder_.Path(name) + "/manifest.json") << "{}";
  }
  absl::Status Check(const std::string& name, int num_ranks) const {
    return CheckStoresAreOf({folder_.Path(name)}, num_ranks);
  }
  const TemporaryFolder folder_;
};

TEST_F(StoresOfRanks, OfAsManyAreRight) {
  MakeStore("two/rank-0-of-2");
  MakeStore("one");
  EXPECT_EQ(Check("two", 2), absl::OkStatus());
  EXPECT_EQ(Check("one", 1), absl::OkStatus());
}

TEST_F(StoresOfRanks, WhatIsNotThereOrNoStoreIsRight) {
  std::filesystem::create_directories(folder_.Path("some/rank-1-of-3"));
  MakeStore("some/rank-of-3");
  MakeStore("some/rank-x-of-3");
  MakeStore("some/rank-1-of-3x");
  MakeStore("some/other");
  for (const int num_ranks : {1, 2, 3}) {
    EXPECT_EQ(Check("some", num_ranks), absl::OkStatus());
    EXPECT_EQ(Check("nowhere", num_ranks), absl::OkStatus());
  }
}

TEST_F(StoresOfRanks, OfAnotherNumberAreRefused) {
  MakeStore("two/rank-1-of-2");
  MakeStore("one");
  for (const int num_ranks : {1, 3}) {
    const absl::Status status = Check("two", num_ranks);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("was made by 2 ranks"),
                                         HasSubstr("this run has " + std::to_string(num_ranks))));
  }
  const absl::Status status = Check("one", 2);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), HasSubstr("was made by 1 process, and this run has 2"));
}

TEST_F(StoresOfRanks, ThatOfOneRankIsRefused) {
  MakeStore("two/rank-1-of-2");
  for (const std::string name : {"two/rank-1-of-2", "two/rank-1-of-2/", "two/./rank-1-of-2"}) {
    const absl::Status status = Check(name, 1);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(status), HasSubstr("part of one rank"));
  }
}

TEST_F(StoresOfRanks, EveryFolderIsLookedAt) {
  MakeStore("b/rank-0-of-2");
  EXPECT_EQ(ExitCodeOf(CheckStoresAreOf({folder_.Path("a"), folder_.Path("b")}, 3)),
            ExitCode::kUsage);
}

// The stores that each of three ranks has, and how that ends on all.
struct Creation {
  std::vector<StoreStanding> standings;
  ExitCode code = ExitCode::kOk;
  bool leaves_some = false;  // those that have a store have what is left of a start
  std::string says;
};

TEST(AgreeOnCreation, IsWhatTheStoresOfAllSay) {
  constexpr StoreStanding kNone;
  constexpr StoreStanding kNew = {.is_there = true, .step = 0, .is_unfinished = true};
  constexpr StoreStanding kCopied = {.is_there = true, .step = 7, .is_unfinished = true};
  constexpr StoreStanding kFinished = {.is_there = true, .step = 0};
  constexpr StoreStanding kUsed = {.is_there = true, .step = 7};
  const std::vector<Creation> creations = {
      {.standings = {kNone, kNone, kNone}},
      {.standings = {kNew, kNew, kNew}},
      {.standings = {kUsed, kNew, kUsed}},  // told apart when they are opened
      {.standings = {kNew, kNone, kNone}, .leaves_some = true},
      {.standings = {kNone, kNew, kNew}, .leaves_some = true},
      {.standings = {kCopied, kNone, kNew}, .leaves_some = true},
      {.standings = {kFinished, kNew, kNew}},  // a creation that was ended on one so far
      {.standings = {kFinished, kNew, kNone},
       .code = ExitCode::kCorrupt,
       .says = "rank 0 has made 0 steps, and rank 2"},
      {.standings = {kNew, kNone, kUsed},
       .code = ExitCode::kCorrupt,
       .says = "rank 2 has made 7 steps, and rank 1"},
      {.standings = {kUsed, kUsed, kNone},
       .code = ExitCode::kCorrupt,
       .says = "rank 0 has made 7 steps, and rank 2"},
  };
  for (const Creation& creation : creations) {
    RunOnRanks({.num_ranks = 3}, [&](Communicator& ranks) {
      const StoreStanding own = creation.standings[static_cast<size_t>(ranks.rank())];
      bool is_left_over = !own.is_there;
      const absl::Status status = AgreeOnCreation(own, ranks, is_left_over);
      EXPECT_EQ(ExitCodeOf(status), creation.code);
      EXPECT_THAT(MessageOf(status), HasSubstr(creation.says));
      EXPECT_EQ(is_left_over, creation.leaves_some && own.is_there);
    });
  }
}

}  // namespace
}  // namespace forebay
