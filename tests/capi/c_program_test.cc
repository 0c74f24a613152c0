// A program in C11 trains, and goes on where it stopped.
#include <string>
#include <vector>

#include "forebay/base/process/child_process.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> LinesOf(const std::string& folder) {
  auto child = ChildProcess::Start({C_PROGRAM, folder}, ChildStreams::kOurs);
  EXPECT_EQ(child.status(), absl::OkStatus());
  std::vector<std::string> lines;
  for (std::string line; (*child)->ReadLine(line);) lines.push_back(line);
  return lines;
}

// The first steps of AdamW go the whole rate: from 0 towards 1, by 0.1.
TEST(CProgram, TrainsAndGoesOn) {
  const TemporaryFolder folder;
  const std::string store = folder.Path("store");
  EXPECT_THAT(LinesOf(store),
              ElementsAre("step 1: norm 141.4214", "step 2: norm 127.2792", "step 3: norm 113.1371",
                          HasSubstr("committed step 3: 0.3000")));
  EXPECT_THAT(LinesOf(store), ElementsAre("step 4: norm 98.9949", HasSubstr("step 5"),
                                          HasSubstr("step 6"), HasSubstr("committed step 6")));
}

}  // namespace
}  // namespace forebay
