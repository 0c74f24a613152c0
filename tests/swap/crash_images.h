// The disk as a crash may leave it: a recorded run gives the writes and flushes that reached it,
// and writes without a later flush may be missing or torn.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/aio/faulty_disk.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/swap/tensor_store.h"
#include "forebay/tests/swap/store_fixture.h"
#include "gtest/gtest.h"

namespace forebay {

inline constexpr int64_t kSectorBytes = 512;
inline constexpr size_t kWritesForAllSubsets = 4;

// File contents by name.
using Image = std::map<std::string, std::string>;

// "0/weights.fbs": in a folder of the store.
inline std::string NameOf(const std::filesystem::path& path) {
  return path.parent_path().filename() / path.filename();
}

inline bool IsCommitFile(const std::string& path) {
  return path.ends_with("/commit.fbs");
}

inline Image LoadImage(const std::string& directory) {
  Image image;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_directory()) continue;
    image[NameOf(entry.path())] = *ReadWholeFile(entry.path(), 1 << 24);
  }
  return image;
}

// The folders of a store in `directory`.
inline std::vector<std::string> FoldersIn(const std::string& directory, int num_folders) {
  std::vector<std::string> folders;
  for (int i = 0; i < num_folders; ++i) {
    folders.push_back(JoinPath(directory, std::to_string(i)));
  }
  return folders;
}

inline void SaveImage(const Image& image, const std::string& directory) {
  for (const auto& [name, contents] : image) {
    const std::string folder = std::filesystem::path(name).parent_path();
    ASSERT_TRUE(MakeDirectories(JoinPath(directory, folder)).ok());
    const auto fd = OpenFile(JoinPath(directory, name), O_WRONLY | O_CREAT | O_TRUNC);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_TRUE(PwriteAll(fd->get(), std::as_bytes(std::span(contents)), 0, name).ok());
  }
}

inline std::string DigestOf(const Image& image) {
  Xxh3_128 hash;
  for (const auto& [name, contents] : image) {
    hash.Update(name);
    hash.UpdateInt(static_cast<int64_t>(contents.size()));
    hash.Update(contents);
  }
  return hash.Hex();
}

inline FaultPlan Recording() {
  FaultPlan plan;
  plan.record = true;
  return plan;
}

// A store that a process of its own has open, every write and flush of it on record.
struct RecordedStore {
  explicit RecordedStore(const std::vector<std::string>& folders)
      : store(TensorStore::Open(folders, engine.get())) {}

  FaultyDisk disk{Recording()};
  std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1}, &disk);
  absl::StatusOr<std::unique_ptr<TensorStore>> store;
};

// A small store in `folders` that has committed step 1.
inline void MakeStoreWithStep1(const std::vector<std::string>& folders, int num_slots) {
  Inventory inventory;
  for (int layer = 0; layer < 2; ++layer) {
    inventory.BeginLayer(std::to_string(layer));
    inventory.Add(std::to_string(layer), {3000}, 0, true);
  }
  const auto engine = CreateThreadsEngine({.num_threads = 1});
  const auto store =
      TensorStore::Create({.directories = folders, .tile_elems = 2048, .num_slots = num_slots},
                          inventory, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_EQ(WriteStep(**store, 1), absl::OkStatus());
}

inline absl::StatusOr<RepairReport> Repair(const std::vector<std::string>& folders,
                                           FaultyDisk& disk) {
  const auto engine = CreateThreadsEngine({.num_threads = 1}, &disk);
  MemoryBudget budget(0);
  return TensorStore::Repair(folders, engine.get(), "", &budget, {});
}

// The states of the disk are many and small; in RAM they take a tenth of the time.
inline std::filesystem::path FolderInRam() {
  return ::access("/dev/shm", W_OK) == 0 ? std::filesystem::path("/dev/shm")
                                         : std::filesystem::temp_directory_path();
}

// The first `bytes` of a write.
inline void Apply(Image& image, const DiskEvent& write, int64_t bytes) {
  std::memcpy(image[NameOf(write.path)].data() + write.offset_bytes, write.data.data(), bytes);
}

// What a crash may do to the writes that no flush has made durable.
enum class Loss { kNone, kAll, kOne, kAllButOne, kTornLast, kRandom };

// The writes of `events` that a flush made durable; the others are returned.
inline std::vector<size_t> ApplyFlushed(Image& image, std::span<const DiskEvent> events) {
  std::map<std::string, size_t> last_flush;  // by file: the number of events before its end
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].is_flush) last_flush[NameOf(events[i].path)] = i;
  }
  std::vector<size_t> unflushed;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].is_flush) continue;
    const auto flush = last_flush.find(NameOf(events[i].path));
    const bool durable = flush != last_flush.end() && flush->second > i;
    if (durable) {
      Apply(image, events[i], events[i].data.size());
    } else {
      unflushed.push_back(i);
    }
  }
  return unflushed;
}

// The disk after `events`, for every subset of its unflushed writes where they are few; none where
// there are more.
inline std::vector<Image> SubsetImages(Image image, std::span<const DiskEvent> events) {
  const std::vector<size_t> unflushed = ApplyFlushed(image, events);
  std::vector<Image> images;
  if (unflushed.size() > kWritesForAllSubsets) return images;
  for (unsigned kept = 0; kept < 1U << unflushed.size(); ++kept) {
    Image& subset = images.emplace_back(image);
    for (size_t i = 0; i < unflushed.size(); ++i) {
      const DiskEvent& write = events[unflushed[i]];
      if ((kept >> i & 1U) != 0) Apply(subset, write, static_cast<int64_t>(write.data.size()));
    }
  }
  return images;
}

// The disk after `num_events` of `events`, some unflushed writes lost.
inline Image CrashImage(Image image, std::span<const DiskEvent> events, Loss loss, uint64_t seed) {
  const std::vector<size_t> unflushed = ApplyFlushed(image, events);
  const CounterRng rng(seed);
  const size_t special = unflushed.empty() ? 0 : unflushed[rng.Below(0, unflushed.size())];
  for (const size_t i : unflushed) {
    const auto bytes = static_cast<int64_t>(events[i].data.size());
    const auto sectors = static_cast<uint64_t>(bytes / kSectorBytes);
    const int64_t torn_bytes = kSectorBytes * static_cast<int64_t>(rng.Below(i + 1, sectors + 1));
    const bool last = i == unflushed.back();
    const int64_t kept_bytes = loss == Loss::kNone        ? bytes
                               : loss == Loss::kAll       ? 0
                               : loss == Loss::kOne       ? (i == special ? 0 : bytes)
                               : loss == Loss::kAllButOne ? (i == special ? bytes : 0)
                               : loss == Loss::kTornLast  ? (last ? torn_bytes : bytes)
                                                          : torn_bytes;
    Apply(image, events[i], kept_bytes);
  }
  return image;
}

}  // namespace forebay
