// A recorded run of a small store, and the search for a state of its disk that a crash must not
// leave.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "forebay/tests/swap/store/crash_store.h"
#include "forebay/tests/swap/store/disk_case.h"
#include "gtest/gtest.h"

namespace forebay {

struct RunShape {
  int num_folders = 1;
  int num_slots = kMostSlots;
  int writes_per_commit = 1;  // of each tile: in place, but for the first
  bool skips = false;         // every second step changes no tile
  Layout layout = Layout::kBf16;
};
std::string NameOfShape(const testing::TestParamInfo<RunShape>& info);

// What was found in one state of the disk, and what a repair made of it.
struct Seen {
  std::string problem;  // that no disk may cause, before the repair or behind it
  Found found;
  bool repaired = false;  // it was not whole, and is now
  Found after;            // when repaired
};

// "" when the store may be so, else what is wrong.
using Judge = std::function<std::string(const DiskCase&)>;

struct Violation {
  DiskCase crash;
  std::string problem;
};

class CrashFixture : public testing::TestWithParam<RunShape> {
 protected:
  // Makes a store and records it from its first opening to the commit of step `num_steps`.
  void Record(int64_t num_steps);
  // Counts what was looked at, but for tests that are to find something.
  void TearDown() override;

  // The newest step whose Commit had returned within the first `num_events`; 0: none.
  int64_t PromisedStep(size_t num_events) const;

  // What opens, and where `repair` what a repair makes of what is not whole. Many crash points
  // leave the same disk, which is looked at once.
  const Seen& See(const Image& image, bool repair);

  // The first case of `cases` that `judge` objects to.
  std::optional<Violation> FirstOf(const std::vector<DiskCase>& cases, const Judge& judge);
  // Of all crashes of an honest disk during `events`.
  std::optional<Violation> FirstOnHonestDisk(std::span<const DiskEvent> events, const Judge& judge,
                                             const CrashChoice& choice = {});
  // "" for none; else the violation made as small as it gets, and how to repeat it.
  static std::string Explain(const std::optional<Violation>& violation,
                             std::span<const DiskEvent> events, const Judge& judge);

  ImageFolder& crashed() { return crashed_; }

  Image start_;
  std::vector<DiskEvent> events_;
  std::vector<size_t> events_at_commit_;      // number of events when Commit returned, by step - 1
  std::vector<size_t> events_before_record_;  // and when all but the record was durable
  int64_t num_points_ = 0;
  int64_t num_states_ = 0;  // that were not looked at by See

 private:
  TemporaryFolder folder_{FolderInRam()};
  ImageFolder crashed_{GetParam().num_folders};
  std::map<std::pair<std::string, bool>, Seen> seen_;  // by digest, and whether it was repaired
};

}  // namespace forebay
