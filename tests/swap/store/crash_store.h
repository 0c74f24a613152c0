// Stores on disks that crash: folders that hold one state after another, what opens there, and how
// many states were looked at.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/faults/fault_script.h"
#include "forebay/base/file.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/swap/store/disk_case.h"
#include "forebay/tests/temporary_folder.h"

namespace forebay {

// Of everything that is drawn: FOREBAY_CRASH_SEED, or another one in every process.
uint64_t CrashSeed();
// The command that repeats the test that is running.
std::string RepeatCommand();

// Adds to what the program prints at its end: crash points that were tried, and the different
// states of the disk that they left.
void CountCrashPoints(int64_t num_points, int64_t num_states);

Image LoadImage(const std::string& directory);
std::string DigestOf(const Image& image);
// The folders of a store in `directory`.
std::vector<std::string> FoldersIn(const std::string& directory, int num_folders);
// The states of the disk are many and small; in RAM they take a tenth of the time.
std::filesystem::path FolderInRam();

// The folders of a store that hold one image after another. Only what differs is written.
class ImageFolder {
 public:
  explicit ImageFolder(int num_folders);
  void Put(const Image& image);
  // What somebody else wrote there since.
  void Written(std::span<const DiskEvent> events);
  // What lies there now.
  const Image& image() const { return image_; }
  const std::vector<std::string>& folders() const { return folders_; }

 private:
  TemporaryFolder folder_{FolderInRam()};
  std::vector<std::string> folders_;
  Image image_;
  std::map<std::string, UniqueFd> files_;
};

// A store that a process of its own has open, on a disk that completes calls in any order, with
// every write and flush on record.
class RecordedStore {
 public:
  explicit RecordedStore(const std::vector<std::string>& folders);
  explicit RecordedStore(ImageFolder& folder);
  ~RecordedStore();

  TensorStore& operator*() { return **store_; }
  TensorStore* operator->() { return store_->get(); }
  bool ok() const { return store_.ok(); }
  absl::Status status() const { return store_.status(); }
  std::vector<DiskEvent> events() const { return script_->events(); }

 private:
  ImageFolder* const folder_ = nullptr;
  std::shared_ptr<FaultScript> script_;
  std::unique_ptr<Engine> engine_;
  absl::StatusOr<std::unique_ptr<TensorStore>> store_;
};

// A small store without a committed step: a layer of two tiles and one of a single tile. In a lossy
// layout a tile of the first has rounded moments, and the others fp32 ones.
void MakeStore(const std::vector<std::string>& folders, int num_slots,
               Layout layout = Layout::kBf16);

// TensorStore::Repair by a process of its own; `events` (may be nullptr): its writes and flushes.
absl::StatusOr<RepairReport> RepairStore(ImageFolder& folder,
                                         std::vector<DiskEvent>* events = nullptr);

// What opens in a folder.
struct Found {
  // What may never be, on no disk: a tile that passes verification and is not of the step; an error
  // that is not one of corruption, or does not name what is damaged. "": none.
  std::string problem;
  bool opened = false;
  int64_t step = -1;               // committed; -1: none
  bool whole = false;              // all tiles hold `step`
  std::string error;               // of opening, or of the first tile that is damaged
  std::vector<DiskEvent> on_open;  // what opening did to the disk
};
Found Look(ImageFolder& folder);

}  // namespace forebay
