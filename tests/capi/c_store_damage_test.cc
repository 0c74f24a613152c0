// A store that cannot be read is never taken for none: the table of what may befall each file of a
// trained store, and what a program finds that goes on with it, or that begins in its folders.
//
// This program's open and pread fail as a test says, for one path.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/capi/c.h"
#include "forebay/tests/capi/c_layers_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

struct Fault {
  std::string path;  // "": none
  int open_error = 0;
  int read_error = 0;
  int num_met = 0;
};
Fault fault;

bool IsAt(int fd) {
  if (fault.path.empty() || fault.read_error == 0) return false;
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error);
  return !error && path == fault.path;
}

int OpenOrFail(int directory, const char* path, int flags, mode_t mode) {
  using Open = int (*)(int, const char*, int, ...);
  static const Open next = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, "openat64"));
  if (fault.open_error != 0 && fault.path == path) {
    ++fault.num_met;
    errno = fault.open_error;
    return -1;
  }
  return next(directory, path, flags, mode);
}

mode_t ModeOf(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {
int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenOrFail(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = ModeOf(flags, arguments);
  va_end(arguments);
  return OpenOrFail(AT_FDCWD, path, flags, mode);
}
ssize_t pread64(int fd, void* data, size_t size, off64_t offset) {
  using Pread = ssize_t (*)(int, void*, size_t, off64_t);
  static const Pread next = reinterpret_cast<Pread>(::dlsym(RTLD_NEXT, "pread64"));
  if (!IsAt(fd)) return next(fd, data, size, offset);
  ++fault.num_met;
  errno = fault.read_error;
  return -1;
}
ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  return pread64(fd, data, size, offset);
}
}

namespace forebay {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A fault of one file. `apply` damages its path; restoring the saved file undoes it.
struct Damage {
  const char* name;
  std::function<void(const std::string& path)> apply;
};

const std::vector<Damage>& Damages() {
  static const std::vector<Damage> damages = {
      {"absent", [](const std::string& path) { fs::remove(path); }},
      {"empty", [](const std::string& path) { fs::resize_file(path, 0); }},
      {"zero",
       [](const std::string& path) {
         const auto size = fs::file_size(path);
         fs::resize_file(path, 0);
         fs::resize_file(path, size);
       }},
      {"cut", [](const std::string& path) { fs::resize_file(path, fs::file_size(path) / 2); }},
      {"dangling link",
       [](const std::string& path) {
         fs::remove(path);
         fs::create_symlink("/nowhere/at all", path);
       }},
      {"folder",
       [](const std::string& path) {
         fs::remove(path);
         fs::create_directory(path);
       }},
      {"open EIO",
       [](const std::string& path) {
         fault = {path, EIO};
       }},
      {"open EACCES",
       [](const std::string& path) {
         fault = {path, EACCES};
       }},
      {"open EMFILE",
       [](const std::string& path) {
         fault = {path, EMFILE};
       }},
      {"open ESTALE",
       [](const std::string& path) {
         fault = {path, ESTALE};
       }},
      {"open ENOMEM",
       [](const std::string& path) {
         fault = {path, ENOMEM};
       }},
      {"read EIO",
       [](const std::string& path) {
         fault = {path, 0, EIO};
       }},
  };
  return damages;
}

// For several folders one errno per system call stands for the others.
std::vector<Damage> DamagesOf(size_t num_folders) {
  std::vector<Damage> damages = Damages();
  if (num_folders == 1) return damages;
  std::erase_if(damages, [](const Damage& damage) {
    const std::string_view name = damage.name;
    return name.starts_with("open") && name != "open EACCES";
  });
  return damages;
}

constexpr int kSteps = 3;

// A trained store in `num_folders` folders, at kSteps, and a copy of it that damage is undone from.
class TrainedStore {
 public:
  explicit TrainedStore(size_t num_folders, int32_t durability = FOREBAY_DURABILITY_STEP) {
    settings_.shares.assign(num_folders, 1);
    settings_.durability = durability;
    settings_.engine = FOREBAY_ENGINE_THREADS;  // whose reads are those of this program
    for (size_t i = 0; i < num_folders; ++i) {
      folders_.push_back(folder_.Path("store") + (i == 0 ? "" : std::to_string(i)));
    }
    Layers layers(folders_[0], settings_);
    layers.Create();
    for (int step = 1; step <= kSteps; ++step) layers.Step(step);
    all_ = layers.All();
  }
  void Keep() { fs::copy(folder_.path(), kept_.Path("kept"), fs::copy_options::recursive); }

  const std::vector<std::string>& folders() const { return folders_; }
  const Settings& settings() const { return settings_; }
  const std::vector<float>& all() const { return all_; }

  // Every file of the store except its lock, which holds nothing: by folder, then name.
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const std::string& folder : folders_) {
      for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        const bool is_lock = entry.path().filename() == "lock";
        if (entry.is_regular_file() && !is_lock) files.push_back(entry.path());
      }
    }
    std::ranges::sort(files);
    return files;
  }
  void PutBack(const std::vector<std::string>& files) {
    fault = {};
    for (const std::string& file : files) {
      fs::remove_all(file);
      fs::copy_file(KeptOf(file), file);
    }
  }
  // The whole store as it was.
  void PutBackAll() {
    fault = {};
    for (const std::string& folder : folders_) {
      fs::remove_all(folder);
      fs::copy(KeptOf(folder), folder, fs::copy_options::recursive);
    }
  }
  // With what was damaged put back, the store is what it was.
  void ExpectWhole(const std::vector<std::string>& damaged, const std::string& what) {
    PutBack(damaged);
    Layers layers(folders_[0], settings_);
    ASSERT_THAT(layers.planned(), IsOk()) << what;
    EXPECT_EQ(forebay_layers_exists(layers), 1) << what;
    ASSERT_THAT(layers.Open(), IsOk()) << what;
    EXPECT_EQ(forebay_layers_committed_step(layers), kSteps) << what;
    EXPECT_EQ(layers.All(), all_) << what;
  }

 private:
  std::string KeptOf(const std::string& path) const {
    return kept_.Path("kept") + path.substr(folder_.path().size());
  }
  const TemporaryFolder folder_;
  const TemporaryFolder kept_;
  Settings settings_;
  std::vector<std::string> folders_;
  std::vector<float> all_;
};

// Goes on with what is there, as a program does that serves the first start too.
// `newest`: the newest step that may be found.
void Resume(const TrainedStore& store, const std::string& what, int64_t newest = kSteps) {
  Layers layers(store.folders()[0], store.settings());
  if (layers.planned().code != FOREBAY_OK) return;  // it says so
  if (forebay_layers_exists(layers) == 0) {
    ADD_FAILURE() << what << ": a trained store is taken for none";
    return;
  }
  const Outcome opened = layers.Open();
  if (opened.code != FOREBAY_OK) {
    EXPECT_NE(opened.message, "") << what;
    return;
  }
  EXPECT_GE(forebay_layers_committed_step(layers), kSteps) << what;
  EXPECT_LE(forebay_layers_committed_step(layers), newest) << what;
}

// Begins in the same folders, without a look.
void Begin(const TrainedStore& store, const std::string& what) {
  Layers layers(store.folders()[0], store.settings());
  if (layers.planned().code != FOREBAY_OK) return;
  const Outcome created = Do([&](char** m) { return forebay_layers_create(layers, m); });
  EXPECT_NE(created.code, FOREBAY_OK) << what << ": a store is made over a trained one";
}

// The sets of files that are damaged together.
std::vector<std::vector<std::string>> Sets(const TrainedStore& store) {
  std::vector<std::vector<std::string>> sets;
  std::vector<std::string> all_commits;
  for (const std::string& file : store.Files()) sets.push_back({file});
  for (const std::string& folder : store.folders()) {
    for (const std::string name : {"commit.fbs", "manifest.json", "seals.fbs"}) {
      sets.push_back({folder + "/" + name, folder + "/copy/" + name});
    }
    all_commits.push_back(folder + "/commit.fbs");
    all_commits.push_back(folder + "/copy/commit.fbs");
    sets.push_back({folder + "/commit.fbs", folder + "/copy/commit.fbs", folder + "/manifest.json",
                    folder + "/copy/manifest.json"});
  }
  if (store.folders().size() > 1) sets.push_back(all_commits);
  return sets;
}

using StoreDamage = ::testing::TestWithParam<std::tuple<int, bool>>;

TEST_P(StoreDamage, NeverStartsOverAndDeletesNothing) {
  const auto [num_folders, resumes] = GetParam();
  TrainedStore store(static_cast<size_t>(num_folders));
  store.Keep();
  for (const std::vector<std::string>& set : Sets(store)) {
    for (const Damage& damage : DamagesOf(store.folders().size())) {
      std::string what = std::string(damage.name) + ":";
      for (const std::string& file : set) what += " " + file.substr(file.rfind("/store") + 1);
      SCOPED_TRACE(what);
      for (const std::string& file : set) damage.apply(file);
      if (resumes) {
        Resume(store, what);
      } else {
        Begin(store, what);
      }
      ASSERT_NO_FATAL_FAILURE(store.ExpectWhole(set, what));
      store.PutBackAll();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, StoreDamage,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Bool()));

// A step and its commit, as far as they go.
void StepAndCommit(Layers& layers, int step) {
  ASSERT_THAT(layers.Begin(), IsOk());
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    forebay_lease* lease = nullptr;
    if (layers.Acquire(layer, &lease).code != FOREBAY_OK) return;
    forebay_lease_release(lease);
  }
  for (int32_t layer = kNumLayers - 1; layer >= 0; --layer) {
    for (const int32_t tensor : {2 * layer + 1, 2 * layer}) {
      if (layers.Add(tensor, GradientOf(tensor, step)).code != FOREBAY_OK) return;
    }
    if (layers.Close(layer).code != FOREBAY_OK) return;
  }
  if (layers.Finish().code != FOREBAY_OK || layers.Update().code != FOREBAY_OK) return;
  layers.Commit();
}

// Damage that comes while a run is at work, and before its commit.
TEST(StoreDamageAtCommit, LeavesThisStepOrTheNextAndDeletesNothing) {
  for (const size_t num_folders : {size_t{1}, size_t{2}}) {
    TrainedStore store(num_folders);
    store.Keep();
    const std::vector<std::string> files = store.Files();
    for (const std::string& file : files) {
      for (const Damage& damage : DamagesOf(num_folders)) {
        const std::string what = std::string(damage.name) + ": " + file;
        SCOPED_TRACE(what);
        {
          Layers layers(store.folders()[0], store.settings());
          ASSERT_THAT(layers.Open(), IsOk());
          damage.apply(file);
          StepAndCommit(layers, kSteps + 1);
        }
        fault = {};
        for (const std::string& name : files) {
          EXPECT_TRUE(name == file || fs::exists(name)) << name;
        }
        Resume(store, what, kSteps + 1);
        Begin(store, what);
        store.PutBackAll();
      }
    }
  }
}

// This program's faults are what the library meets.
TEST(StoreDamageTest, FaultsAreMetAndNamed) {
  TrainedStore store(1);
  store.Keep();
  const std::string path = store.folders()[0] + "/commit.fbs";
  for (const Fault& at : {Fault{path, EIO}, Fault{path, 0, EIO}}) {
    Layers layers(store.folders()[0], store.settings());
    fault = at;
    const Outcome opened = layers.Open();
    EXPECT_GT(fault.num_met, 0);
    fault = {};
    // A copy that can be opened and not read is as good as a damaged one.
    EXPECT_EQ(opened.code, at.open_error != 0 ? FOREBAY_STORAGE : FOREBAY_OK);
  }
}

// All descriptors of a process in use.
TEST(StoreDamageTest, ALackOfDescriptorsIsToldAndPasses) {
  TrainedStore store(1);
  store.Keep();
  Layers layers(store.folders()[0], store.settings());
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::open("/dev/null", O_RDONLY);
  ::close(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const int32_t exists = forebay_layers_exists(layers);
  const Outcome opened = layers.Open();
  const Outcome created = Do([&](char** m) { return forebay_layers_create(layers, m); });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(exists, -1);
  EXPECT_EQ(opened.code, FOREBAY_STORAGE);
  EXPECT_THAT(opened.message, HasSubstr("EMFILE"));
  EXPECT_NE(created.code, FOREBAY_OK);
  store.ExpectWhole({}, "after a lack of descriptors");
}

// The disk of a folder is not mounted: what is under the mount point is an empty folder.
TEST(StoreDamageTest, OneOfTwoFoldersThatIsEmptyIsToldAndStaysEmpty) {
  TrainedStore store(2);
  store.Keep();
  for (const std::string& folder : store.folders()) {
    fs::remove_all(folder);
    fs::create_directory(folder);
    Resume(store, folder);
    Begin(store, folder);
    EXPECT_TRUE(fs::is_empty(folder)) << folder;
    store.PutBackAll();
  }
}

// Only what carries the mark of a creation is removed by the next one.
TEST(StoreDamageTest, ACreationThatWasKilledIsReplacedAndNothingElse) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("store");
  {
    const Layers layers(path, {});
    ASSERT_THAT(Do([&](char** m) { return forebay_layers_create(layers, m); }), IsOk());
    fs::copy(path, folder.Path("half"), fs::copy_options::recursive);
  }
  fs::remove_all(path);
  fs::copy(folder.Path("half"), path, fs::copy_options::recursive);
  ASSERT_TRUE(fs::exists(path + "/creating"));
  {
    Layers layers(path, {});
    EXPECT_EQ(forebay_layers_exists(layers), 0);
    layers.Create();
    EXPECT_FALSE(fs::exists(path + "/creating"));
    layers.Step(1);
  }
  fs::remove_all(path);
  fs::copy(folder.Path("half"), path, fs::copy_options::recursive);
  fs::remove(path + "/creating");
  Layers layers(path, {});
  EXPECT_EQ(forebay_layers_exists(layers), 1);
  EXPECT_THAT(layers.Open(), Is(FOREBAY_CORRUPT, "commit records"));
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_create(layers, m); }),
              Is(FOREBAY_USAGE, "already holds a store"));
}

// A commit that the mark hides: unreadable is not empty, and a record in either copy counts.
TEST(StoreDamageTest, AMarkAloneDeletesNothing) {
  TrainedStore store(1);
  const std::string& path = store.folders()[0];
  std::ofstream(path + "/creating") << "";
  store.Keep();
  const std::string commits[] = {path + "/commit.fbs", path + "/copy/commit.fbs"};
  for (const Damage& damage : Damages()) {
    for (const std::string& commit : commits) damage.apply(commit);
    Begin(store, damage.name);
    ASSERT_NO_FATAL_FAILURE(store.ExpectWhole({commits[0], commits[1]}, damage.name));
    store.PutBackAll();
  }
}

}  // namespace
}  // namespace forebay
