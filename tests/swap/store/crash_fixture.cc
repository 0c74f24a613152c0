#include "forebay/tests/swap/store/crash_fixture.h"

#include <string_view>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/tests/swap/store/store_fixture.h"

namespace forebay {

std::string NameOfShape(const testing::TestParamInfo<RunShape>& info) {
  const Layout layout = info.param.layout;
  return fmt::format("{}x{}{}{}{}", info.param.num_folders, info.param.writes_per_commit,
                     info.param.num_slots == 1 ? "OneSlot" : "", info.param.skips ? "Skips" : "",
                     layout == Layout::kBf16 ? "" : "_" + TestNameOf(layout));
}

void CrashFixture::Record(int64_t num_steps) {
  const std::string directory = folder_.Path("recorded");
  const std::vector<std::string> folders = FoldersIn(directory, GetParam().num_folders);
  MakeStore(folders, GetParam().num_slots, GetParam().layout);
  start_ = LoadImage(directory);
  RecordedStore recorded(folders);
  ASSERT_TRUE(recorded.ok()) << recorded.status();
  for (int64_t step = 1; step <= num_steps; ++step) {
    for (int write = 1; write < GetParam().writes_per_commit; ++write) {
      ASSERT_EQ(WriteTiles(*recorded, 100 * step + write), absl::OkStatus());
    }
    const bool skips = GetParam().skips && step % 2 == 0;
    const auto before_record = [&] {
      events_before_record_.push_back(recorded.events().size());
      return absl::OkStatus();
    };
    ASSERT_EQ(skips ? SkipStep(*recorded, step, before_record)
                    : WriteStep(*recorded, step, before_record),
              absl::OkStatus());
    events_at_commit_.push_back(recorded.events().size());
  }
  events_ = recorded.events();
}

void CrashFixture::TearDown() {
  const std::string_view name = testing::UnitTest::GetInstance()->current_test_info()->name();
  if (name.starts_with("WouldBeCaught")) return;
  CountCrashPoints(num_points_, num_states_ + static_cast<int64_t>(seen_.size()));
}

int64_t CrashFixture::PromisedStep(size_t num_events) const {
  int64_t step = 0;
  for (const size_t events : events_at_commit_) step += events <= num_events ? 1 : 0;
  return step;
}

const Seen& CrashFixture::See(const Image& image, bool repair) {
  const auto [entry, is_new] = seen_.try_emplace({DigestOf(image), repair});
  Seen& seen = entry->second;
  if (!is_new) return seen;
  crashed_.Put(image);
  seen.found = Look(crashed_);
  seen.problem = seen.found.problem;
  if (!repair || seen.found.whole || !seen.problem.empty()) return seen;
  const auto report = RepairStore(crashed_);
  if (!report.ok()) {
    // Whoever opens it finds the same errors, so they may be all that a repair says.
    if (ExitCodeOf(report.status()) != ExitCode::kCorrupt) {
      seen.problem = "repair: " + MessageOf(report.status());
    }
    return seen;
  }
  seen.repaired = true;
  seen.after = Look(crashed_);
  if (!seen.after.problem.empty()) {
    seen.problem = "after a repair: " + seen.after.problem;
  } else if (!seen.after.whole || seen.after.step != report->step) {
    seen.problem = fmt::format("a repair promised step {} and left step {}, {}", report->step,
                               seen.after.step, seen.after.error);
  }
  return seen;
}

std::optional<Violation> CrashFixture::FirstOf(const std::vector<DiskCase>& cases,
                                               const Judge& judge) {
  for (const DiskCase& crash : cases) {
    ++num_points_;
    std::string problem = judge(crash);
    if (!problem.empty()) return Violation{crash, std::move(problem)};
  }
  return std::nullopt;
}

std::optional<Violation> CrashFixture::FirstOnHonestDisk(std::span<const DiskEvent> events,
                                                         const Judge& judge,
                                                         const CrashChoice& choice) {
  for (size_t num_events = 0; num_events <= events.size(); ++num_events) {
    auto violation = FirstOf(
        CrashesAfter(events, num_events, CounterRng(CrashSeed(), num_events), choice), judge);
    if (violation.has_value()) return violation;
  }
  return std::nullopt;
}

std::string CrashFixture::Explain(const std::optional<Violation>& violation,
                                  std::span<const DiskEvent> events, const Judge& judge) {
  if (!violation.has_value()) return "";
  const DiskCase least =
      Shrink(violation->crash, [&](const DiskCase& crash) { return !judge(crash).empty(); });
  return fmt::format("{}\n{}Repeat with: {}\n", judge(least), Describe(events, least),
                     RepeatCommand());
}

}  // namespace forebay
