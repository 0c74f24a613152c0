// Layers through the C interface: steps that have the same bits wherever the state lies, and calls
// that cannot be made, which change nothing.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/capi/c.h"
#include "forebay/capi/dlpack.h"
#include "forebay/tests/capi/c_layers_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void FlipByte(const std::string& path, long offset) {
  std::FILE* const file = std::fopen(path.c_str(), "r+b");
  ASSERT_NE(file, nullptr);
  std::fseek(file, offset, SEEK_SET);
  const int byte = std::fgetc(file);
  std::fseek(file, offset, SEEK_SET);
  std::fputc(byte ^ 1, file);
  std::fclose(file);
}

TEST(CLayers, SameBitsWhereverStateLiesAndHoweverItIsUpdated) {
  const std::vector<float> expected = AllAfter({}, 5);
  EXPECT_EQ(AllAfter({.tier = FOREBAY_TIER_RAM}, 5), expected);
  EXPECT_EQ(AllAfter({.pass = FOREBAY_PASS_UPDATE_ONLY}, 5), expected);
  EXPECT_EQ(AllAfter({.update_in_backward = 1}, 5), expected);
  EXPECT_EQ(AllAfter({.pass = FOREBAY_PASS_UPDATE_ONLY, .update_in_backward = 1}, 5), expected);
  EXPECT_EQ(AllAfter({.durability = FOREBAY_DURABILITY_NONE}, 5), expected);
  EXPECT_EQ(AllAfter({.weight_dtype = FOREBAY_F32}, 5), expected);
  EXPECT_EQ(AllAfter({}, 5, /*loss_scale=*/1024), expected);
  EXPECT_NE(AllAfter({}, 4), expected);
}

// The backward pass writes over the slot that the next commit would be of.
TEST(CLayers, UpdatesInBackwardNeedTheStepBeforeCommitted) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {.update_in_backward = 1, .commit_every = -1});
  layers.Create();
  layers.Step(1);
  ASSERT_THAT(layers.Begin(), IsOk());
  ASSERT_THAT(layers.Add(2 * kNumLayers - 1, std::vector<float>(kElems[1])), IsOk());
  const Outcome refused = layers.Close(kNumLayers - 1);
  EXPECT_EQ(refused.code, FOREBAY_USAGE);
  EXPECT_THAT(refused.message, HasSubstr("Commit each step before the next"));
  forebay_layers_abandon(layers);
  ASSERT_THAT(layers.Commit(), IsOk());
  layers.Step(2);
  ASSERT_THAT(layers.Commit(), IsOk());
  layers.Step(3);
  EXPECT_EQ(layers.All(), AllAfter({}, 3));
}

// An update in backward leaves that of the first layer; the commit comes with it, and has what
// there was when it was asked for.
TEST(CLayers, CommitsWaitForTheRestOfAnUpdate) {
  const TemporaryFolder folder;
  const Settings settings = {.update_in_backward = 1, .commit_every = -1};
  {
    Layers layers(folder.Path("store"), settings);
    layers.Create();
    layers.Step(1);
    layers.Count() = 10;  // behind the step, and of it
    ASSERT_THAT(layers.CommitOnceApplied(R"({"a":1})"), IsOk());
    ASSERT_THAT(layers.CommitOnceApplied(R"({"a":1})"), IsOk());
    EXPECT_THAT(layers.CommitOnceApplied(R"({"a":2})"),
                Is(FOREBAY_USAGE, "is to be committed already"));
    EXPECT_THAT(layers.Commit(R"({"a":2})"), Is(FOREBAY_USAGE, "is to be committed already"));
    EXPECT_EQ(forebay_layers_committed_step(layers), 0);
    layers.Step(2);
    EXPECT_EQ(forebay_layers_committed_step(layers), 1);
    EXPECT_EQ(layers.User(), R"({"a":1})");
    ASSERT_THAT(layers.CommitOnceApplied(R"({"a":2})"), IsOk());
    layers.Count() = 77;  // of no step
    EXPECT_THAT(layers.Commit(), Is(FOREBAY_USAGE, "raw tensors were changed between steps"));
    EXPECT_THAT(layers.Begin(), Is(FOREBAY_USAGE, "raw tensors were changed between steps"));
  }
  Layers layers(folder.Path("store"), settings);
  ASSERT_THAT(layers.Open(), IsOk());
  EXPECT_EQ(forebay_layers_committed_step(layers), 1);
  EXPECT_EQ(layers.Count(), 10);
  for (int step = 2; step <= 4; ++step) {
    layers.Step(step);
    ASSERT_THAT(layers.CommitOnceApplied(""), IsOk());
  }
  EXPECT_EQ(layers.All(), AllAfter({}, 4));
  ASSERT_THAT(layers.CommitOnceApplied(""), IsOk());
  EXPECT_THAT(layers.CommitOnceApplied(R"({"a":2})"), Is(FOREBAY_USAGE, "committed already"));
}

// An update that is not to be committed leaves unwritten what lies in RAM.
TEST(CLayers, ACommitOnceAppliedWritesWhatLiesInRam) {
  for (const int32_t tier : {FOREBAY_TIER_RAM, FOREBAY_TIER_NVME}) {
    for (const int32_t pass : {FOREBAY_PASS_FORWARD_BACKWARD, FOREBAY_PASS_UPDATE_ONLY}) {
      const TemporaryFolder folder;
      const Settings settings = {.tier = tier, .pass = pass, .commit_every = -1};
      {
        Layers layers(folder.Path("store"), settings);
        layers.Create();
        layers.Step(1);
        ASSERT_THAT(layers.CommitOnceApplied(R"({"a":1})"), IsOk());
        layers.Step(2);  // and is committed in it
        EXPECT_EQ(forebay_layers_committed_step(layers), 1);
        EXPECT_EQ(layers.User(), R"({"a":1})");
      }
      Layers layers(folder.Path("store"), settings);
      ASSERT_THAT(layers.Open(), IsOk());
      EXPECT_EQ(layers.All(), AllAfter({}, 1));
    }
  }
}

TEST(CLayers, ACommitThatIsGivenNothingCarriesWhatTheStepWasGiven) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {.update_in_backward = 1, .commit_every = -1});
  layers.Create();
  ASSERT_THAT(layers.Begin(), IsOk());
  layers.Gradients(1);
  ASSERT_THAT(layers.Finish(), IsOk());
  const std::string user = R"({"a":1})";
  ASSERT_THAT(
      Do([&](char** m) { return forebay_layers_update(layers, user.data(), user.size(), 0, m); }),
      IsOk());
  for (int times = 0; times < 2; ++times) {
    ASSERT_THAT(
        Do([&](char** m) { return forebay_layers_commit_once_applied(layers, nullptr, 0, m); }),
        IsOk());
  }
  layers.Step(2);
  EXPECT_EQ(forebay_layers_committed_step(layers), 1);
  EXPECT_EQ(layers.User(), user);
}

TEST(CLayers, UpdatesInBackwardAreRefusedWhereTheyCannotBe) {
  for (const int num_layers : {1, kNumLayers}) {
    const auto refused = [&](int32_t durability, int64_t commit_every) {
      const TemporaryFolder folder;
      return Layers(folder.Path("store"), {.update_in_backward = 1,
                                           .durability = durability,
                                           .num_layers = num_layers,
                                           .commit_every = commit_every})
          .planned();
    };
    EXPECT_THAT(refused(FOREBAY_DURABILITY_NONE, 0),
                Is(FOREBAY_USAGE, "durability is FOREBAY_DURABILITY_NONE"));
    EXPECT_THAT(refused(FOREBAY_DURABILITY_STEP, 2), Is(FOREBAY_USAGE, "commit_every is 2"));
  }
}

TEST(CLayers, OneLayerIsEnough) {
  const Settings one = {.num_layers = 1};
  EXPECT_EQ(AllAfter(one, 3).size(), 3u * (5000 + 77));
  EXPECT_EQ(AllAfter({.pass = FOREBAY_PASS_UPDATE_ONLY, .num_layers = 1}, 3), AllAfter(one, 3));
}

TEST(CLayers, GoesOnFromWhatIsCommitted) {
  const TemporaryFolder folder;
  const std::string store = folder.Path("store");
  {
    Layers layers(store, {});
    EXPECT_EQ(forebay_layers_exists(layers), 0);
    layers.Create();
    layers.Step(1);
    layers.Step(2);
    EXPECT_THAT(layers.Commit(R"({"rows": 64})"), IsOk());
    layers.Step(3);  // is lost
  }
  Layers layers(store, {.tier = FOREBAY_TIER_RAM});
  EXPECT_EQ(forebay_layers_exists(layers), 1);
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_create(layers, m); }),
              Is(FOREBAY_USAGE, "already"));
  ASSERT_THAT(layers.Open(), IsOk());
  EXPECT_EQ(forebay_layers_committed_step(layers), 2);
  char* user = nullptr;
  ASSERT_EQ(forebay_layers_user_json(layers, &user, nullptr), FOREBAY_OK);
  EXPECT_STREQ(user, R"({"rows":64})");
  forebay_free(user);
  void* raw = nullptr;
  ASSERT_EQ(forebay_layers_raw(layers, kRaw, &raw, nullptr, nullptr), FOREBAY_OK);
  EXPECT_EQ(*static_cast<int64_t*>(raw), 2);
  for (int step = 3; step <= 5; ++step) layers.Step(step);
  EXPECT_EQ(layers.All(), AllAfter({}, 5));
  int64_t num_updates = 0;
  EXPECT_EQ(forebay_layers_updates_of(layers, 3, &num_updates, nullptr), FOREBAY_OK);
  EXPECT_EQ(num_updates, 4);  // none in step 3
  EXPECT_EQ(forebay_layers_updates_of(layers, 2, &num_updates, nullptr), FOREBAY_OK);
  EXPECT_EQ(num_updates, 5);
}

TEST(CLayers, FoldersHaveTheirShares) {
  const Settings two = {.tier = FOREBAY_TIER_NVME, .shares = {3, 1}};
  EXPECT_EQ(AllAfter(two, 3), AllAfter({}, 3));
  const TemporaryFolder folder;
  const std::string store = folder.Path("store");
  Layers(store, two).Create();
  const auto bytes_of = [](const std::string& path) {
    return static_cast<double>(std::filesystem::file_size(path + "/state.fbs"));
  };
  EXPECT_GT(bytes_of(store), 1.5 * bytes_of(store + "1"));
  EXPECT_THAT(Layers(store, {.shares = {1, 0}}).planned(), Is(FOREBAY_USAGE, "shares 1, 0"));
}

TEST(CLayers, CommitsWhenAskedForAlone) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {.commit_every = -1});
  layers.Create();
  for (int step = 1; step <= 4; ++step) layers.Step(step);
  EXPECT_EQ(forebay_layers_committed_step(layers), 0);
  EXPECT_EQ(layers.All(), AllAfter({}, 4));
  EXPECT_EQ(forebay_layers_committed_step(layers), 4);
  EXPECT_THAT(Layers(folder.Path("other"), {.commit_every = -2}).planned(),
              Is(FOREBAY_USAGE, "commit_every"));
}

// A skipped step does not count in the formulas, nor after the store was opened again.
TEST(CLayers, SkippedStepsChangeNothing) {
  const TemporaryFolder folder;
  const std::string store = folder.Path("store");
  const auto skip = [](Layers& layers) {
    ASSERT_THAT(layers.Begin(), IsOk());
    layers.Gradients(7);
    ASSERT_THAT(layers.Finish(), IsOk());
    ASSERT_THAT(layers.Skip(), IsOk());
  };
  {
    Layers layers(store, {});
    layers.Create();
    layers.Step(1);
    skip(layers);
    layers.Step(2);
    skip(layers);
    EXPECT_THAT(layers.Commit(), IsOk());
  }
  Layers layers(store, {});
  ASSERT_THAT(layers.Open(), IsOk());
  EXPECT_EQ(forebay_layers_committed_step(layers), 4);
  for (int step = 3; step <= 5; ++step) layers.Step(step);
  EXPECT_EQ(layers.All(), AllAfter({}, 5));
}

// The caller clips, or divides by its loss scale, when it knows the norm.
TEST(CLayers, TheScaleMayBeSetBehindTheNorm) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {});
  layers.Create();
  ASSERT_THAT(layers.Begin(), IsOk());
  layers.Gradients(1, 1024);
  forebay_step_gradients gradients = {};
  ASSERT_THAT(layers.Finish(&gradients), IsOk());
  EXPECT_GT(gradients.norm, 1024 * 0.01);
  forebay_step_options options = {};
  options.struct_size = sizeof(options);
  options.loss_scale = 1024;
  ASSERT_THAT(Do([&](char** m) { return forebay_layers_set_step(layers, &options, m); }), IsOk());
  ASSERT_THAT(layers.Update(), IsOk());
  EXPECT_EQ(layers.All(), AllAfter({}, 1));
}

TEST(CLayers, GradientsThatAreNotFiniteAreNamed) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {});
  layers.Create();
  ASSERT_THAT(layers.Begin(), IsOk());
  std::vector<float> gradient(kElems[1]);
  gradient[5] = INFINITY;
  ASSERT_THAT(layers.Add(5, gradient), IsOk());
  forebay_step_gradients gradients = {};
  ASSERT_THAT(layers.Finish(&gradients), IsOk());
  EXPECT_EQ(gradients.nonfinite_layer, 2);
  EXPECT_THAT(layers.Update(), Is(FOREBAY_USAGE, "'layer2' is not finite"));
  EXPECT_THAT(layers.Skip(), IsOk());
  EXPECT_EQ(forebay_layers_step(layers), 1);
}

TEST(CLayers, LeasesAndTheirTensorsOutliveTheLayers) {
  const TemporaryFolder folder;
  forebay_lease* lease = nullptr;
  DLManagedTensor* tensor = nullptr;
  {
    Layers layers(folder.Path("store"), {.weight_dtype = FOREBAY_F32});
    layers.Create();
    EXPECT_THAT(layers.Expect({1}), IsOk());
    ASSERT_THAT(layers.Acquire(1, &lease), IsOk());
    tensor = static_cast<DLManagedTensor*>(forebay_lease_dlpack(lease, 2));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(forebay_lease_dlpack(lease, 0), nullptr);
  }
  const DLTensor& of = tensor->dl_tensor;
  EXPECT_EQ(of.ndim, 2);
  EXPECT_EQ(of.shape[0], 500);
  EXPECT_EQ(of.shape[1], 10);
  EXPECT_EQ(of.dtype.bits, 32);
  EXPECT_EQ(of.data, forebay_lease_data(lease, 2));
  forebay_lease_release(lease);
  EXPECT_EQ(static_cast<const float*>(of.data)[0], (22 - 50) * 0.01f);
  tensor->deleter(tensor);
}

// Torch ends tensors on any of its threads, while another waits for weights.
TEST(CLayers, LeasesEndOnAnyThread) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {});
  layers.Create();
  std::atomic<forebay_lease*> handed{nullptr};
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    while (!is_over) {
      if (forebay_lease* const lease = handed.exchange(nullptr)) forebay_lease_release(lease);
    }
  });
  for (int i = 0; i < 200; ++i) {
    const int32_t layer = i % kNumLayers;
    ASSERT_THAT(layers.Expect({layer}), IsOk());
    forebay_lease* lease = nullptr;
    ASSERT_THAT(layers.Acquire(layer, &lease), IsOk());
    forebay_lease_release(handed.exchange(lease));
  }
  is_over = true;
  other.join();
  forebay_lease_release(handed.exchange(nullptr));
  layers.Step(1);
}

TEST(CLayers, ARefusedCallChangesNothing) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {});
  std::vector<float> values(kElems[0]);
  std::vector<float> few(3);
  // Before there is a store.
  EXPECT_THAT(layers.Begin(), Is(FOREBAY_USAGE, "there is no store"));
  EXPECT_THAT(layers.Fill(0, values), Is(FOREBAY_USAGE, "no store is being filled"));
  EXPECT_THAT(layers.Open(), Is(FOREBAY_BAD_INPUT, "there is no store in"));
  EXPECT_THAT(layers.Expect({0}), Is(FOREBAY_USAGE, "there is no store"));
  EXPECT_EQ(forebay_layers_step(layers), -1);
  // While it is filled.
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_create(layers, m); }), IsOk());
  EXPECT_THAT(layers.Begin(), Is(FOREBAY_USAGE, "being filled"));
  EXPECT_THAT(layers.Open(), Is(FOREBAY_USAGE, "being filled"));
  EXPECT_THAT(layers.Fill(0, few), Is(FOREBAY_USAGE, "'weight0' has 20000 bytes, and 12"));
  EXPECT_THAT(layers.Fill(kNumTensors + 1, few), Is(FOREBAY_USAGE, "there is no tensor"));
  EXPECT_THAT(layers.Fill(2, values), IsOk());
  EXPECT_THAT(layers.Fill(0, values), Is(FOREBAY_USAGE, "in their order"));
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_start(layers, "[1]", 3, m); }),
              Is(FOREBAY_USAGE, "has to be an object"));
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_start(layers, "{", 1, m); }),
              Is(FOREBAY_USAGE, "user"));
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_start(layers, nullptr, 0, m); }), IsOk());
  // Between steps.
  forebay_lease* lease = nullptr;
  EXPECT_THAT(layers.Add(0, values), Is(FOREBAY_USAGE, "no step has begun"));
  EXPECT_THAT(layers.Close(0), Is(FOREBAY_USAGE, "no step has begun"));
  EXPECT_THAT(layers.Finish(), Is(FOREBAY_USAGE, "no step has begun"));
  EXPECT_THAT(layers.Update(), Is(FOREBAY_USAGE, "no step has begun"));
  EXPECT_THAT(layers.Skip(), Is(FOREBAY_USAGE, "no step has begun"));
  EXPECT_THAT(layers.Acquire(0, &lease), Is(FOREBAY_USAGE, ""));
  EXPECT_THAT(layers.Expect({0, kNumLayers}), Is(FOREBAY_USAGE, "there is no layer 4"));
  EXPECT_THAT(layers.Read(0, 3, values), Is(FOREBAY_USAGE, "plane is 3"));
  EXPECT_THAT(layers.Read(kRaw, 0, few), Is(FOREBAY_USAGE, "has no plane"));
  values.resize(kElems[0] + 1);
  EXPECT_THAT(layers.Read(0, 0, values), Is(FOREBAY_USAGE, "has 5000 elements"));
  // In a step.
  ASSERT_THAT(layers.Begin(), IsOk());
  EXPECT_THAT(layers.Begin(), Is(FOREBAY_USAGE, "under way"));
  EXPECT_THAT(layers.Commit(), Is(FOREBAY_USAGE, "under way"));
  EXPECT_THAT(layers.Add(0, few), Is(FOREBAY_USAGE, ""));
  EXPECT_THAT(layers.Add(kRaw, few), Is(FOREBAY_USAGE, ""));
  EXPECT_THAT(layers.Close(-1), Is(FOREBAY_USAGE, "no layer -1"));
  forebay_step_options bad = {.struct_size = sizeof(bad), .clip = -1};
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_set_step(layers, &bad, m); }),
              Is(FOREBAY_USAGE, "clip is -1"));
  forebay_layers_abandon(layers);
  layers.Step(1);
  EXPECT_EQ(lease, nullptr);
  EXPECT_THAT(layers.Commit(R"({"a": 1})"), IsOk());
  EXPECT_THAT(layers.Commit(R"({"a": 1})"), IsOk());
  EXPECT_THAT(layers.Commit(R"({"a": 2})"), Is(FOREBAY_USAGE, "committed already"));
}

TEST(CLayers, NothingIsNoCrash) {
  char* json = nullptr;
  void* raw = nullptr;
  forebay_inventory_destroy(nullptr);
  forebay_layers_destroy(nullptr);
  forebay_lease_release(nullptr);
  forebay_layers_abandon(nullptr);
  forebay_layers_stop(nullptr);
  forebay_layers_cancel_expected(nullptr);
  EXPECT_EQ(forebay_lease_data(nullptr, 0), nullptr);
  EXPECT_EQ(forebay_lease_dlpack(nullptr, 0), nullptr);
  EXPECT_EQ(forebay_layers_step(nullptr), -1);
  EXPECT_EQ(forebay_layers_exists(nullptr), 0);
  for (const auto& call : std::vector<std::function<int32_t(char**)>>{
           [&](char** m) { return forebay_layers_new(nullptr, nullptr, nullptr, m); },
           [&](char** m) { return forebay_layers_plan_json(nullptr, &json, m); },
           [&](char** m) { return forebay_layers_create(nullptr, m); },
           [&](char** m) { return forebay_layers_open(nullptr, m); },
           [&](char** m) { return forebay_layers_begin_step(nullptr, nullptr, m); },
           [&](char** m) { return forebay_layers_raw(nullptr, 0, &raw, nullptr, m); },
           [&](char** m) {
             return forebay_inventory_add(nullptr, "a", 1, nullptr, 0, 0, nullptr, m);
           },
           [&](char** m) { return forebay_kernels_update(nullptr, nullptr, 1, m); }}) {
    EXPECT_THAT(Do(call), Is(FOREBAY_USAGE, "is NULL"));
  }
}

TEST(CLayers, OptionsOfOtherVersions) {
  const TemporaryFolder folder;
  const std::string store = folder.Path("store");
  const char* const folders[] = {store.c_str()};
  forebay_inventory* const inventory = NewInventory(kNumLayers);
  struct Newer {
    forebay_layers_options options;
    int64_t more;
  } newer = {};
  newer.options.folders = folders;
  newer.options.num_folders = 1;
  newer.options.ram_bytes = 64 << 20;
  forebay_layers* layers = nullptr;
  const auto plan = [&](size_t size) {
    newer.options.struct_size = size;
    forebay_layers_destroy(layers);
    layers = nullptr;
    return Do([&](char** m) { return forebay_layers_new(&newer.options, inventory, &layers, m); });
  };
  EXPECT_THAT(plan(0), Is(FOREBAY_USAGE, "struct_size is 0"));
  EXPECT_THAT(plan(offsetof(forebay_layers_options, num_threads)), IsOk());
  EXPECT_THAT(plan(sizeof(newer)), IsOk());
  newer.more = 1;
  EXPECT_THAT(plan(sizeof(newer)), Is(FOREBAY_USAGE, "Install a newer forebay"));
  newer.options.ram_bytes = 4096;
  EXPECT_THAT(plan(sizeof(forebay_layers_options)), Is(FOREBAY_DOES_NOT_FIT, "needs at least"));
  newer.options.ram_bytes = -1;
  EXPECT_THAT(plan(sizeof(forebay_layers_options)), Is(FOREBAY_USAGE, "ram_bytes is -1"));
  EXPECT_EQ(layers, nullptr);
  forebay_inventory_destroy(inventory);
  EXPECT_FALSE(std::filesystem::exists(store));
}

TEST(CLayers, AStoreOfAnotherModelIsLeftAlone) {
  const TemporaryFolder folder;
  const std::string store = folder.Path("store");
  Layers(store, {}).Create();
  Layers fewer(store, {.num_layers = 3});
  EXPECT_THAT(fewer.Open(), Is(FOREBAY_USAGE, "another model"));
  Layers wider(store, {.weight_dtype = FOREBAY_F32});
  EXPECT_THAT(wider.Open(), Is(FOREBAY_USAGE, "has weights of bf16"));
  Layers same(store, {});
  EXPECT_THAT(same.Open(), IsOk());
}

TEST(CLayers, AHalfFilledStoreIsMadeAnew) {
  const TemporaryFolder folder;
  const std::string store = folder.Path("store");
  const std::string copy = folder.Path("copy");
  {
    Layers layers(store, {});
    EXPECT_THAT(Do([&](char** m) { return forebay_layers_create(layers, m); }), IsOk());
    // As a kill would leave it.
    std::filesystem::copy(store, copy, std::filesystem::copy_options::recursive);
  }
  EXPECT_FALSE(FileExists(store + "/manifest.json"));  // what was not started is taken back
  ASSERT_TRUE(FileExists(copy + "/manifest.json"));
  Layers layers(copy, {});
  EXPECT_EQ(forebay_layers_exists(layers), 0);
  layers.Create();
  layers.Step(1);
}

// A kill between the writes that try a new file, before the store has its manifest.
TEST(CLayers, ACreationThatWasKilledAtItsFirstFileCountsAsNone) {
  const TemporaryFolder folder;
  const std::string store = folder.Path("store");
  std::filesystem::create_directories(store + "/copy");
  for (const char* name : {"/commit.fbs", "/copy/commit.fbs"}) {
    std::ofstream(store + name) << std::string(4096, '\xa5') << std::string(4096, '\0');
  }
  std::ofstream(store + "/lock") << "";
  std::ofstream(store + "/creating") << "";
  Layers layers(store, {});
  EXPECT_EQ(forebay_layers_exists(layers), 0);
  layers.Create();
  layers.Step(1);
}

// Damage is no rest of a creation.
TEST(CLayers, AStoreWithoutAGoodCommitIsNotMadeAnew) {
  const TemporaryFolder folder;
  const std::string store = folder.Path("store");
  Layers(store, {}).Create();
  for (const char* name : {"/commit.fbs", "/copy/commit.fbs"}) FlipByte(store + name, 50);
  std::filesystem::resize_file(store + "/commit.fbs", 100);
  Layers layers(store, {});
  EXPECT_EQ(forebay_layers_exists(layers), 1);
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_create(layers, m); }),
              Is(FOREBAY_USAGE, "already"));
  EXPECT_NE(layers.Open().code, FOREBAY_OK);
}

TEST(CLayers, StopEndsTheFilling) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {});
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_create(layers, m); }), IsOk());
  forebay_layers_stop(layers);
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_start(layers, nullptr, 0, m); }),
              Is(FOREBAY_INTERRUPTED, "stopped"));
  layers.Create();
}

TEST(CLayers, DamageIsNoticedBeforeItIsComputedWith) {
  const TemporaryFolder folder;
  const std::string store = folder.Path("store");
  Layers(store, {}).Create();
  FlipByte(store + "/weights.fbs", 5000);
  Layers layers(store, {});
  ASSERT_THAT(layers.Open(), IsOk());
  forebay_lease* lease = nullptr;
  EXPECT_THAT(layers.Expect({0}), IsOk());
  EXPECT_THAT(layers.Acquire(0, &lease), Is(FOREBAY_CORRUPT, "weights.fbs"));
  EXPECT_EQ(lease, nullptr);
}

}  // namespace
}  // namespace forebay
