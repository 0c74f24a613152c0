// What a disk made of a recorded run: how much of it had happened when the power went, and what
// became of single writes. Cases are plain values, so that one that fails can be made smaller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "forebay/aio/faults/fault_script.h"
#include "forebay/base/counter_rng.h"
#include "forebay/tests/sample.h"

namespace forebay {

inline constexpr int64_t kSectorBytes = 512;
inline constexpr uint64_t kAllSectors = ~uint64_t{0};

// File contents by name.
using Image = std::map<std::string, std::string>;

// "0/weights.fbs": in a folder of the store.
std::string NameOf(const std::string& path);
bool IsCommitFile(const std::string& path);
bool IsSealsFile(const std::string& path);

// What became of one write. The defaults are those of a disk that works.
struct Fate {
  uint64_t kept_sectors = kAllSectors;  // by bit: what landed; the rest is as it was before
  std::string file;                     // where it landed; "": where it was to
  int64_t offset_bytes = 0;             // in `file`
  int64_t flipped_bit = -1;             // of its data; -1: none

  bool operator<(const Fate& other) const;
};
Fate Lost();
// Of 64 sectors at most: the first so many landed.
Fate Torn(int64_t num_sectors);
Fate Misdirected(std::string file, int64_t offset_bytes);
Fate Flipped(int64_t bit);

struct DiskCase {
  size_t num_events = 0;         // those that happened before the crash
  std::map<size_t, Fate> fates;  // by event; the other writes landed as they were

  bool operator<(const DiskCase& other) const;
};

// The first `bytes` of a write.
void Apply(Image& image, const DiskEvent& write, int64_t bytes);
// What the disk holds after the crash. A write that is misdirected to where it does not fit is
// lost.
Image ImageOf(Image start, std::span<const DiskEvent> events, const DiskCase& crash);
// Those without a later flush of their file.
std::vector<size_t> UnflushedWrites(std::span<const DiskEvent> events);

// Under sanitizers every state is several times slower: fewer of the random ones there.
inline constexpr bool kFewerStates = kIsSanitized;

struct CrashChoice {
  size_t writes_for_all_subsets = kFewerStates ? 3 : 5;  // unflushed ones, at most
  bool tear_last = !kFewerStates;                        // at every sector
  int num_random = kFewerStates ? 1 : 3;  // each write kept, lost, or torn into any of its sectors
};
// What a crash behind the first `num_events` may leave on an honest disk, each case once: every
// subset of few unflushed writes, of more those with none, all, one and all but one of them lost;
// all of them torn; and what `choice` says.
std::vector<DiskCase> CrashesAfter(std::span<const DiskEvent> events, size_t num_events,
                                   const CounterRng& rng, const CrashChoice& choice);

// `crash` with as little as possible gone wrong, and as early as possible, so that `fails` still
// holds: no single fate can be left out, and the crash cannot be one event earlier. Requires:
// fails(crash).
DiskCase Shrink(DiskCase crash, const std::function<bool(const DiskCase&)>& fails);
// A line for each write with a fate (file, offset, length, what became of it, whether it had been
// flushed), and one for the crash.
std::string Describe(std::span<const DiskEvent> events, const DiskCase& crash);

}  // namespace forebay
