#include "forebay/tests/swap/store/disk_case.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/swap/store/store_folders.h"

namespace forebay {
namespace {

constexpr int64_t kMostSectors = 64;

uint64_t FirstSectors(int64_t count) {
  return count >= kMostSectors ? kAllSectors : (uint64_t{1} << count) - 1;
}

int64_t NumSectors(const DiskEvent& write) {
  return static_cast<int64_t>(write.data.size()) / kSectorBytes;
}

// The number of the flush that made a write durable; -1: none did.
int64_t FlushOf(std::span<const DiskEvent> events, size_t write) {
  for (size_t i = write + 1; i < events.size(); ++i) {
    if (events[i].is_flush && NameOf(events[i].path) == NameOf(events[write].path)) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

void Land(Image& image, const DiskEvent& write, const Fate& fate) {
  FOREBAY_CHECK(NumSectors(write) <= kMostSectors);
  const auto found = image.find(fate.file.empty() ? NameOf(write.path) : fate.file);
  const int64_t offset_bytes = fate.file.empty() ? write.offset_bytes : fate.offset_bytes;
  const auto size_bytes = static_cast<int64_t>(write.data.size());
  if (found == image.end() ||
      offset_bytes + size_bytes > static_cast<int64_t>(found->second.size())) {
    FOREBAY_CHECK(!fate.file.empty());  // a write of the run itself fits
    return;
  }
  std::vector<std::byte> data = write.data;
  if (fate.flipped_bit >= 0) {
    data[static_cast<size_t>(fate.flipped_bit / 8)] ^= std::byte{1} << (fate.flipped_bit % 8);
  }
  for (int64_t sector = 0; sector < NumSectors(write); ++sector) {
    if ((fate.kept_sectors >> sector & 1U) == 0) continue;
    std::memcpy(found->second.data() + offset_bytes + sector * kSectorBytes,
                data.data() + sector * kSectorBytes, kSectorBytes);
  }
}

std::string TextOf(const Fate& fate, const DiskEvent& write) {
  const uint64_t all = FirstSectors(NumSectors(write));
  std::string text;
  if (!fate.file.empty()) text += fmt::format("landed in {} at {}", fate.file, fate.offset_bytes);
  if ((fate.kept_sectors & all) == 0) {
    text += "lost";
  } else if ((fate.kept_sectors & all) != all) {
    text += fmt::format("{}torn: sectors {:#x} of {} landed", text.empty() ? "" : ", ",
                        fate.kept_sectors & all, NumSectors(write));
  }
  if (fate.flipped_bit >= 0) {
    text += fmt::format("{}bit {} flipped", text.empty() ? "" : ", ", fate.flipped_bit);
  }
  return text.empty() ? "landed whole" : text;
}

}  // namespace

std::string NameOf(const std::string& path) {
  size_t file = path.rfind('/');
  const std::string second_copies = std::string("/") + kCopyFolderName;
  if (std::string_view(path).substr(0, file).ends_with(second_copies)) {
    file -= second_copies.size();
  }
  const size_t folder = path.rfind('/', file - 1);
  return path.substr(folder + 1);
}

bool IsCommitFile(const std::string& path) {
  return path.ends_with("/commit.fbs");
}
bool IsSealsFile(const std::string& path) {
  return path.ends_with("/seals.fbs");
}

bool Fate::operator<(const Fate& other) const {
  return std::tie(kept_sectors, file, offset_bytes, flipped_bit) <
         std::tie(other.kept_sectors, other.file, other.offset_bytes, other.flipped_bit);
}

bool DiskCase::operator<(const DiskCase& other) const {
  return std::tie(num_events, fates) < std::tie(other.num_events, other.fates);
}

Fate Lost() {
  return {.kept_sectors = 0};
}
Fate Torn(int64_t num_sectors) {
  return {.kept_sectors = FirstSectors(num_sectors)};
}
Fate Misdirected(std::string file, int64_t offset_bytes) {
  return {.file = std::move(file), .offset_bytes = offset_bytes};
}
Fate Flipped(int64_t bit) {
  return {.flipped_bit = bit};
}

void Apply(Image& image, const DiskEvent& write, int64_t bytes) {
  std::memcpy(image[NameOf(write.path)].data() + write.offset_bytes, write.data.data(),
              static_cast<size_t>(bytes));
}

Image ImageOf(Image start, std::span<const DiskEvent> events, const DiskCase& crash) {
  for (size_t i = 0; i < crash.num_events; ++i) {
    if (events[i].is_flush) continue;
    const auto fate = crash.fates.find(i);
    if (fate == crash.fates.end()) {
      Apply(start, events[i], static_cast<int64_t>(events[i].data.size()));
    } else {
      Land(start, events[i], fate->second);
    }
  }
  return start;
}

std::vector<size_t> UnflushedWrites(std::span<const DiskEvent> events) {
  std::vector<size_t> unflushed;
  // Files that are flushed later on; by name, as each process has the folders elsewhere.
  std::set<std::string> flushed;
  for (size_t i = events.size(); i-- > 0;) {
    if (events[i].is_flush) {
      flushed.insert(NameOf(events[i].path));
    } else if (!flushed.contains(NameOf(events[i].path))) {
      unflushed.push_back(i);
    }
  }
  std::ranges::reverse(unflushed);
  return unflushed;
}

std::vector<DiskCase> CrashesAfter(std::span<const DiskEvent> events, size_t num_events,
                                   const CounterRng& rng, const CrashChoice& choice) {
  const std::vector<size_t> writes = UnflushedWrites(events.first(num_events));
  std::set<DiskCase> cases;
  const auto add = [&](const std::function<bool(size_t)>& is_lost) {
    DiskCase next{num_events, {}};
    for (size_t i = 0; i < writes.size(); ++i) {
      if (is_lost(i)) next.fates[writes[i]] = Lost();
    }
    cases.insert(std::move(next));
  };
  if (writes.size() <= choice.writes_for_all_subsets) {
    for (unsigned lost = 0; lost < 1U << writes.size(); ++lost) {
      add([&](size_t i) { return (lost >> i & 1U) != 0; });
    }
  } else {
    add([](size_t) { return false; });
    add([](size_t) { return true; });
    for (size_t one = 0; one < writes.size(); ++one) {
      add([&](size_t i) { return i == one; });
      add([&](size_t i) { return i != one; });
    }
  }
  DiskCase all_torn{num_events, {}};
  for (const size_t write : writes) all_torn.fates[write] = Torn(1);
  cases.insert(std::move(all_torn));
  if (choice.tear_last && !writes.empty()) {
    for (int64_t kept = 1; kept < NumSectors(events[writes.back()]); ++kept) {
      cases.insert({num_events, {{writes.back(), Torn(kept)}}});
    }
  }
  uint64_t draw = 0;
  for (int i = 0; i < choice.num_random; ++i) {
    DiskCase next{num_events, {}};
    for (const size_t write : writes) {
      const uint64_t kind = rng.Below(draw++, 3);
      if (kind == 0) next.fates[write] = Lost();
      if (kind == 1) next.fates[write] = Fate{.kept_sectors = rng.Bits64(draw++)};
    }
    cases.insert(std::move(next));
  }
  return {cases.begin(), cases.end()};
}

DiskCase Shrink(DiskCase crash, const std::function<bool(const DiskCase&)>& fails) {
  for (bool smaller = true; smaller;) {
    smaller = false;
    const auto keep = [&](DiskCase next) {
      if (!fails(next)) return false;
      crash = std::move(next);
      smaller = true;
      return true;
    };
    // What happened last mattered least, as a rule.
    while (crash.num_events > 0) {
      DiskCase next = crash;
      next.fates.erase(--next.num_events);
      if (!keep(std::move(next))) break;
    }
    std::vector<size_t> with_fates;
    for (const auto& [event, fate] : crash.fates) with_fates.push_back(event);
    for (const size_t event : with_fates) {
      DiskCase next = crash;
      next.fates.erase(event);
      keep(std::move(next));
    }
  }
  return crash;
}

std::string Describe(std::span<const DiskEvent> events, const DiskCase& crash) {
  std::string text;
  for (const auto& [i, fate] : crash.fates) {
    const int64_t flush = FlushOf(events.first(crash.num_events), i);
    text += fmt::format(
        "  event {}: write {} at {}, {} bytes: {}; {}\n", i, NameOf(events[i].path),
        events[i].offset_bytes, events[i].data.size(), TextOf(fate, events[i]),
        flush < 0 ? "not flushed" : fmt::format("flushed by event {}, which said OK", flush));
  }
  std::string last = "at the beginning";
  if (crash.num_events > 0) {
    const DiskEvent& event = events[crash.num_events - 1];
    last = fmt::format("behind event {}: {} {}", crash.num_events - 1,
                       event.is_flush ? "flush" : "write", NameOf(event.path));
    if (!event.is_flush) {
      last += fmt::format(" at {}, {} bytes", event.offset_bytes, event.data.size());
    }
  }
  return text + "  crash " + last + "\n";
}

}  // namespace forebay
