// Whether an export that blocks finds room before it begins: ranks that divide the state must know.
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/run/run_exports.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class WarningsObserver : public SilentObserver {
 public:
  void OnWarning(const std::string& line) override { warnings.push_back(line); }
  std::vector<std::string> warnings;
};

Inventory ModelOf(int64_t num_elems) {
  Inventory inventory;
  inventory.BeginLayer("layer");
  inventory.Add("tensor", {num_elems}, 0, /*decay=*/true);
  return inventory;
}

TEST(ExportRoom, AModelThatIsTooLargeIsLeftOutWithAWarning) {
  const TemporaryFolder folder(FolderInRam());
  const ToyTask task(folder.path());
  const TrainOptions run = task.RoomyRun(folder.Path("run"));
  ASSERT_EQ(TrainToy(run), absl::OkStatus());
  const auto engine = CreateThreadsEngine({.num_threads = 1});
  const auto store = OpenRunStore(run.out, engine.get(), StoreAccess::kReadOnly);
  ASSERT_TRUE(store.ok()) << store.status();
  WarningsObserver warnings;
  LoggedObserver observer(warnings);
  RunExports exports({.origin = run.model, .directory = RunPaths(run.out).exports}, store->get(),
                     &observer);
  EXPECT_EQ(exports.HoldSpace(ModelOf(1000), 1), absl::OkStatus());
  const auto has_room = exports.HasRoom();
  ASSERT_TRUE(has_room.ok()) << has_room.status();
  EXPECT_TRUE(*has_room);
  EXPECT_THAT(warnings.warnings, IsEmpty());
  // A petabyte, which cannot be held either.
  EXPECT_EQ(ExitCodeOf(exports.HoldSpace(ModelOf(int64_t{1} << 49), 1)), ExitCode::kDoesNotFit);
  EXPECT_EQ(exports.HasRoom().value_or(true), false);
  EXPECT_THAT(warnings.warnings, ElementsAre(HasSubstr("is not exported, as the disk is full")));
}

}  // namespace
}  // namespace forebay
