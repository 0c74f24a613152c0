#include "forebay/tests/swap/store/crash_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/faults/simulated_disk.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int64_t kLeastPoints = 10'000;  // of the whole program

class PointCount : public testing::Environment {
 public:
  void Add(int64_t num_points, int64_t num_states) {
    num_points_ += num_points;
    num_states_ += num_states;
  }
  void SetUp() override { fmt::print("FOREBAY_CRASH_SEED={}\n", CrashSeed()); }
  void TearDown() override {
    fmt::print(
        "{} crash points, which left {} different states of the disk; each state was "
        "looked at\n",
        num_points_, num_states_);
    const auto* const all = testing::UnitTest::GetInstance();
    const bool is_whole_run =
        all->test_to_run_count() == all->total_test_count() && all->failed_test_count() == 0;
    if (is_whole_run && !kFewerStates) {
      EXPECT_GE(num_points_, kLeastPoints);
    }
  }

 private:
  int64_t num_points_ = 0;
  int64_t num_states_ = 0;
};

// GoogleTest owns it.
PointCount* const point_count = static_cast<PointCount*>(
    testing::AddGlobalTestEnvironment(new PointCount));  // NOLINT(cppcoreguidelines-owning-memory)

std::unique_ptr<Engine> Recording(std::shared_ptr<FaultScript> script) {
  return CreateSimulatedEngine({}, {.seed = CrashSeed()}, std::move(script));
}

std::shared_ptr<FaultScript> NewRecord() {
  FaultPlan plan;
  plan.record = true;
  return std::make_shared<FaultScript>(plan);
}

bool NamesAFile(const std::string& message) {
  return std::ranges::any_of(
      std::initializer_list<const char*>{"weights.fbs'", "state.fbs'", "seals.fbs'", "commit.fbs'",
                                         "manifest.json'"},
      [&](const char* name) { return message.find(name) != std::string::npos; });
}

// An error of opening or reading that is as it should be: "", else what is wrong with it.
std::string ProblemOf(const absl::Status& status) {
  if (ExitCodeOf(status) != ExitCode::kCorrupt) {
    return "not an error of corruption: " + MessageOf(status);
  }
  const std::string message = MessageOf(status);
  // One slot that was being overwritten is in pieces, but nothing of it is damaged.
  if (message.find("keeps one copy") != std::string::npos || NamesAFile(message)) return "";
  return "an error that names no file: " + message;
}

// Reads and verifies everything.
void LookAtTiles(TensorStore& store, Found& found) {
  Scratch read(store.tiles().max_state_bytes());
  Scratch expected(store.tiles().max_state_bytes());
  found.whole = true;
  for (int i = 0; i < store.tiles().num_tiles(); ++i) {
    const Tile& tile = store.tiles().tiles()[i];
    for (const bool state : {false, true}) {
      const int64_t bytes =
          state ? store.tiles().StateBytes(tile) : store.tiles().WeightBytes(tile);
      const auto got = read.first(bytes);
      IoOp op;
      if (state) {
        store.StartReadState(i, got, IoClass::kDemand, op);
      } else {
        store.StartReadWeights(i, got, IoClass::kDemand, op);
      }
      absl::Status status = store.engine().Wait(op);
      if (status.ok()) status = state ? store.VerifyState(i, got) : store.VerifyWeights(i, got);
      if (!status.ok()) {
        if (found.error.empty()) found.error = MessageOf(status);
        if (found.problem.empty()) found.problem = ProblemOf(status);
        found.whole = false;
        continue;
      }
      FillPattern(expected.first(bytes), StepOfTiles(store.committed()), i, state);
      if (std::memcmp(got.data(), expected.first(bytes).data(), got.size()) == 0) continue;
      found.problem = fmt::format("the {} of tile {} pass verification and are not of step {}",
                                  state ? "state" : "weights", i, found.step);
      return;
    }
  }
}

}  // namespace

uint64_t CrashSeed() {
  static const uint64_t seed = [] {
    const char* const given = std::getenv("FOREBAY_CRASH_SEED");
    return given == nullptr || *given == '\0' ? std::random_device()()
                                              : std::strtoull(given, nullptr, 10);
  }();
  return seed;
}

std::string RepeatCommand() {
  const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
  return fmt::format("FOREBAY_CRASH_SEED={} {} --gtest_filter={}.{}", CrashSeed(),
                     std::filesystem::read_symlink("/proc/self/exe").string(),
                     test->test_suite_name(), test->name());
}

void CountCrashPoints(int64_t num_points, int64_t num_states) {
  point_count->Add(num_points, num_states);
}

Image LoadImage(const std::string& directory) {
  Image image;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.is_directory()) continue;
    image[NameOf(entry.path())] = *ReadWholeFile(entry.path(), 1 << 24);
  }
  return image;
}

std::string DigestOf(const Image& image) {
  Xxh3_128 hash;
  for (const auto& [name, contents] : image) {
    hash.Update(name);
    hash.UpdateInt(static_cast<int64_t>(contents.size()));
    hash.Update(contents);
  }
  return hash.Hex();
}

std::vector<std::string> FoldersIn(const std::string& directory, int num_folders) {
  std::vector<std::string> folders;
  for (int i = 0; i < num_folders; ++i) {
    folders.push_back(JoinPath(directory, std::to_string(i)));
  }
  return folders;
}

std::filesystem::path FolderInRam() {
  return ::access("/dev/shm", W_OK) == 0 ? std::filesystem::path("/dev/shm")
                                         : std::filesystem::temp_directory_path();
}

ImageFolder::ImageFolder(int num_folders) : folders_(FoldersIn(folder_.path(), num_folders)) {}

void ImageFolder::Put(const Image& image) {
  constexpr size_t kBlockBytes = 4096;
  for (const auto& [name, contents] : image) {
    std::string& old = image_[name];
    UniqueFd& file = files_[name];
    struct stat info = {};
    // Opening a store may have replaced the file: nobody sees the old one any more.
    if (!file.valid() || ::fstat(file.get(), &info) != 0 || info.st_nlink == 0) {
      old.clear();
      const std::string path = folder_.Path(name);
      ASSERT_TRUE(MakeDirectories(std::filesystem::path(path).parent_path()).ok());
      auto opened = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC);
      ASSERT_TRUE(opened.ok()) << opened.status();
      file = *std::move(opened);
    }
    if (old.size() != contents.size()) {
      ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(contents.size())), 0);
      old.assign(contents.size(), '\0');
    }
    for (size_t at = 0; at < contents.size(); at += kBlockBytes) {
      const auto block = std::string_view(contents).substr(at, kBlockBytes);
      if (block == std::string_view(old).substr(at, kBlockBytes)) continue;
      ASSERT_TRUE(
          PwriteAll(file.get(), std::as_bytes(std::span(block)), static_cast<int64_t>(at), name)
              .ok());
      old.replace(at, block.size(), block);
    }
  }
}

void ImageFolder::Written(std::span<const DiskEvent> events) {
  for (const DiskEvent& event : events) {
    if (!event.is_flush) Apply(image_, event, static_cast<int64_t>(event.data.size()));
  }
}

RecordedStore::RecordedStore(const std::vector<std::string>& folders)
    : script_(NewRecord()),
      engine_(Recording(script_)),
      store_(TensorStore::Open(folders, engine_.get())) {}

RecordedStore::RecordedStore(ImageFolder& folder)
    : folder_(&folder),
      script_(NewRecord()),
      engine_(Recording(script_)),
      store_(TensorStore::Open(folder.folders(), engine_.get())) {}

RecordedStore::~RecordedStore() {
  if (folder_ != nullptr) folder_->Written(script_->events());
}

void MakeStore(const std::vector<std::string>& folders, int num_slots, Layout layout) {
  Inventory inventory;
  inventory.BeginLayer("a");
  if (layout == Layout::kBf16) {
    inventory.Add("a", {3000}, 0, true);
  } else {
    inventory.Add("a", {50, 40}, 0, true);
    inventory.Add("norm", {1000}, 0, false);
  }
  inventory.BeginLayer("b");
  inventory.Add("b", {2000}, 0, true);
  const auto engine = Recording(NewRecord());
  const auto store = TensorStore::Create({.directories = folders,
                                          .layout = layout,
                                          .tile_elems = 2048,
                                          .num_slots = num_slots,
                                          .uuid = StoreUuid{1, 2, 3}},
                                         inventory, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();
}

absl::StatusOr<RepairReport> RepairStore(ImageFolder& folder, std::vector<DiskEvent>* events) {
  const auto script = NewRecord();
  const auto engine = Recording(script);
  MemoryBudget budget(0);
  absl::StatusOr<RepairReport> report =
      TensorStore::Repair(folder.folders(), engine.get(), "", &budget, {});
  folder.Written(script->events());
  if (events != nullptr) *events = script->events();
  return report;
}

Found Look(ImageFolder& folder) {
  Found found;
  RecordedStore opened(folder);
  found.on_open = opened.events();
  found.opened = opened.ok();
  if (!opened.ok()) {
    found.error = MessageOf(opened.status());
    found.problem = ProblemOf(opened.status());
    return found;
  }
  if (!opened->has_commit()) return found;
  found.step = opened->committed().step;
  LookAtTiles(*opened, found);
  return found;
}

}  // namespace forebay
