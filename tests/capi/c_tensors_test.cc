// Sessions of tensors, and snapshots of layers, through the C interface.
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/json.h"
#include "forebay/capi/c.h"
#include "forebay/capi/dlpack.h"
#include "forebay/tests/capi/c_layers_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// forebay_tensors over the inventory of c_layers_fixture.h.
class Tensors {
 public:
  explicit Tensors(const std::string& folder) : folder_(folder) {
    folders_[0] = folder_.c_str();
    options_.struct_size = sizeof(options_);
    options_.folders = folders_;
    options_.num_folders = 1;
    options_.ram_bytes = 8 << 20;
    options_.weight_dtype = FOREBAY_BF16;
    options_.tile_elems = 4096;
  }
  ~Tensors() { forebay_tensors_destroy(tensors_); }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;
  operator forebay_tensors*() const { return tensors_; }  // NOLINT

  forebay_tensors_options& options() { return options_; }
  Outcome Create() {
    forebay_inventory* const inventory = NewInventory(kNumLayers);
    const Outcome outcome =
        Do([&](char** m) { return forebay_tensors_create(&options_, inventory, &tensors_, m); });
    forebay_inventory_destroy(inventory);
    return outcome;
  }
  Outcome Open() {
    return Do([&](char** m) { return forebay_tensors_open(&options_, &tensors_, m); });
  }
  Outcome Acquire(int32_t tensor, int32_t plane, int32_t access, forebay_tensor_lease** lease) {
    const forebay_lease_request request = {tensor, plane, access, 0};
    return Do([&](char** m) { return forebay_tensors_acquire(tensors_, &request, 1, lease, m); });
  }
  Outcome Read(int32_t tensor, int32_t plane, std::vector<float>& values) {
    return Do([&](char** m) {
      return forebay_tensors_read(tensors_, tensor, plane, 0, static_cast<int64_t>(values.size()),
                                  values.data(), m);
    });
  }
  Outcome Commit(int64_t step, const std::string& user = "") {
    return Do([&](char** m) {
      return forebay_tensors_commit(tensors_, step, user.data(), user.size(), m);
    });
  }
  Outcome Abort() {
    return Do([&](char** m) { return forebay_tensors_abort(tensors_, m); });
  }

 private:
  const std::string folder_;
  const char* folders_[1];
  forebay_tensors_options options_ = {};
  forebay_tensors* tensors_ = nullptr;
};

Outcome Release(forebay_tensor_lease* lease) {
  return Do([&](char** m) { return forebay_tensor_lease_release(lease, m); });
}

void Set(Tensors& tensors, int32_t tensor, int32_t plane, float value) {
  forebay_tensor_lease* lease = nullptr;
  ASSERT_THAT(tensors.Acquire(tensor, plane, FOREBAY_WRITE, &lease), IsOk());
  size_t num_bytes = 0;
  auto* const values = static_cast<float*>(forebay_tensor_lease_data(lease, &num_bytes));
  std::fill_n(values, num_bytes / sizeof(float), value);
  ASSERT_THAT(Release(lease), IsOk());
}

std::string TextOf(Tensors& tensors,
                   int32_t (*call)(forebay_tensors* tensors, char** json, char** message)) {
  char* text = nullptr;
  EXPECT_THAT(Do([&](char** m) { return call(tensors, &text, m); }), IsOk());
  std::string copy = text;
  forebay_free(text);
  return copy;
}

TEST(CTensors, WhatIsReleasedAndCommittedComesBack) {
  const TemporaryFolder folder;
  {
    Tensors tensors(folder.Path("store"));
    ASSERT_THAT(tensors.Create(), IsOk());
    EXPECT_EQ(forebay_tensors_committed_step(tensors), -1);
    Set(tensors, 0, FOREBAY_MASTER, 1.0009765625f);
    Set(tensors, 1, FOREBAY_V, 3);
    forebay_tensor_lease* raw = nullptr;
    ASSERT_THAT(tensors.Acquire(kRaw, FOREBAY_RAW, FOREBAY_OVERWRITE, &raw), IsOk());
    size_t num_bytes = 0;
    std::memcpy(forebay_tensor_lease_data(raw, &num_bytes), "8 bytes.", 8);
    EXPECT_EQ(num_bytes, 8u);
    ASSERT_THAT(Release(raw), IsOk());
    ASSERT_THAT(tensors.Commit(7, R"({"rows": 12})"), IsOk());
    Set(tensors, 0, FOREBAY_MASTER, 9);  // and is not committed
  }
  Tensors tensors(folder.Path("store"));
  ASSERT_THAT(tensors.Open(), IsOk());
  EXPECT_EQ(forebay_tensors_committed_step(tensors), 7);
  EXPECT_EQ(TextOf(tensors, forebay_tensors_user_json), R"({"rows":12})");
  std::vector<float> weight(static_cast<size_t>(kElems[0]));
  std::vector<float> v(static_cast<size_t>(kElems[1]));
  EXPECT_THAT(tensors.Read(0, FOREBAY_MASTER, weight), IsOk());
  EXPECT_THAT(weight, Each(1.0009765625f));
  EXPECT_THAT(tensors.Read(1, FOREBAY_V, v), IsOk());
  EXPECT_THAT(v, Each(3));
  char raw[8];
  EXPECT_THAT(
      Do([&](char** m) { return forebay_tensors_read(tensors, kRaw, FOREBAY_RAW, 0, 8, raw, m); }),
      IsOk());
  EXPECT_EQ(std::string(raw, 8), "8 bytes.");
  uint16_t rounded = 0;
  EXPECT_THAT(Do([&](char** m) {
                return forebay_tensors_read(tensors, 0, FOREBAY_WEIGHT, 17, 1, &rounded, m);
              }),
              IsOk());
  EXPECT_EQ(rounded, 0x3f80);  // 1.0 in bf16
  const std::string inventory = TextOf(tensors, forebay_tensors_inventory_json);
  EXPECT_THAT(inventory, HasSubstr(R"({"name":"bias0","layer":0,"raw":false,"shape":[77]})"));
  EXPECT_THAT(TextOf(tensors, forebay_tensors_stats_json), HasSubstr("\"read_bytes\""));
}

TEST(CTensors, AbortAndDiscardForget) {
  const TemporaryFolder folder;
  Tensors tensors(folder.Path("store"));
  ASSERT_THAT(tensors.Create(), IsOk());
  Set(tensors, 0, FOREBAY_M, 1);
  ASSERT_THAT(tensors.Commit(1), IsOk());
  Set(tensors, 0, FOREBAY_M, 2);
  std::vector<float> m(static_cast<size_t>(kElems[0]));
  EXPECT_THAT(tensors.Read(0, FOREBAY_M, m), IsOk());
  EXPECT_THAT(m, Each(1));  // the committed step, while the next is written
  EXPECT_THAT(tensors.Abort(), IsOk());
  forebay_tensor_lease* lease = nullptr;
  ASSERT_THAT(tensors.Acquire(0, FOREBAY_M, FOREBAY_WRITE, &lease), IsOk());
  EXPECT_EQ(*static_cast<float*>(forebay_tensor_lease_data(lease, nullptr)), 1);
  *static_cast<float*>(forebay_tensor_lease_data(lease, nullptr)) = 5;
  forebay_tensor_lease_discard(lease);
  ASSERT_THAT(tensors.Commit(2), IsOk());
  EXPECT_THAT(tensors.Read(0, FOREBAY_M, m), IsOk());
  EXPECT_THAT(m, Each(1));
}

TEST(CTensors, TensorsOfDLPackKeepWhatIsReadAndMustEndBeforeWhatIsWritten) {
  const TemporaryFolder folder;
  DLManagedTensor* kept = nullptr;
  {
    Tensors tensors(folder.Path("store"));
    ASSERT_THAT(tensors.Create(), IsOk());
    forebay_tensor_lease* lease = nullptr;
    ASSERT_THAT(tensors.Acquire(0, FOREBAY_MASTER, FOREBAY_WRITE, &lease), IsOk());
    auto* written = static_cast<DLManagedTensor*>(forebay_tensor_lease_dlpack(lease));
    static_cast<float*>(written->dl_tensor.data)[3] = 4;
    EXPECT_THAT(Release(lease), Is(FOREBAY_USAGE, "a DLPack tensor of it is still used"));
    written->deleter(written);
    EXPECT_THAT(Release(lease), IsOk());
    ASSERT_THAT(tensors.Acquire(0, FOREBAY_MASTER, FOREBAY_READ, &lease), IsOk());
    kept = static_cast<DLManagedTensor*>(forebay_tensor_lease_dlpack(lease));
    EXPECT_THAT(Release(lease), IsOk());
  }
  EXPECT_EQ(kept->dl_tensor.ndim, 2);
  EXPECT_EQ(kept->dl_tensor.shape[0], kElems[0] / 10);
  EXPECT_EQ(static_cast<float*>(kept->dl_tensor.data)[3], 4);
  kept->deleter(kept);
}

// A refused release ends nothing: a caller who heard USAGE discards the lease.
TEST(CTensors, ALeaseForWritingOutlivesItsTensorsUntilItIsDiscarded) {
  const TemporaryFolder folder;
  forebay_tensor_lease* lease = nullptr;
  {
    Tensors tensors(folder.Path("store"));
    ASSERT_THAT(tensors.Create(), IsOk());
    ASSERT_THAT(tensors.Acquire(0, FOREBAY_MASTER, FOREBAY_WRITE, &lease), IsOk());
  }
  for (int times = 0; times < 2; ++times) {
    EXPECT_THAT(Release(lease), Is(FOREBAY_USAGE, "were destroyed"));
    static_cast<float*>(forebay_tensor_lease_data(lease, nullptr))[0] = 1;
  }
  forebay_tensor_lease_discard(lease);
}

TEST(CTensors, SeveralPlanesComeInOneCallOrNone) {
  const TemporaryFolder folder;
  Tensors tensors(folder.Path("store"));
  ASSERT_THAT(tensors.Create(), IsOk());
  forebay_lease_request requests[] = {{0, FOREBAY_MASTER, FOREBAY_WRITE, 0},
                                      {0, FOREBAY_M, FOREBAY_WRITE, 0},
                                      {0, FOREBAY_M, FOREBAY_WRITE, 0}};
  forebay_tensor_lease* leases[3] = {};
  EXPECT_THAT(
      Do([&](char** m) { return forebay_tensors_acquire(tensors, requests, 3, leases, m); }),
      Is(FOREBAY_USAGE, "weight0"));
  EXPECT_EQ(leases[0], nullptr);
  requests[2].plane = FOREBAY_V;
  EXPECT_THAT(
      Do([&](char** m) { return forebay_tensors_acquire(tensors, requests, 3, leases, m); }),
      IsOk());
  EXPECT_THAT(tensors.Commit(1), Is(FOREBAY_USAGE, "3 are out"));
  for (forebay_tensor_lease* const lease : leases) EXPECT_THAT(Release(lease), IsOk());
  EXPECT_THAT(tensors.Commit(1), IsOk());
}

TEST(CTensors, MistakesAreErrors) {
  const TemporaryFolder folder;
  Tensors tensors(folder.Path("store"));
  EXPECT_THAT(tensors.Open(), Is(FOREBAY_BAD_INPUT, "store"));
  forebay_tensor_lease* lease = nullptr;
  EXPECT_THAT(tensors.Acquire(0, 0, 0, &lease), Is(FOREBAY_USAGE, "tensors is NULL"));
  for (const auto& [member, text] :
       {std::pair<int32_t forebay_tensors_options::*, const char*>{
            &forebay_tensors_options::durability, "durability is 3"},
        {&forebay_tensors_options::engine, "engine is 9"},
        {&forebay_tensors_options::weight_dtype, "weight_dtype is 9"}}) {
    const int32_t before = std::exchange(tensors.options().*member,
                                         member == &forebay_tensors_options::durability ? 3 : 9);
    EXPECT_THAT(tensors.Create(), Is(FOREBAY_USAGE, text));
    tensors.options().*member = before;
  }
  tensors.options().num_folders = 0;
  EXPECT_THAT(tensors.Create(), Is(FOREBAY_USAGE, "no folder"));
  tensors.options().num_folders = 1;
  tensors.options().ram_bytes = 100;
  EXPECT_THAT(tensors.Create(), Is(FOREBAY_DOES_NOT_FIT, ""));
  tensors.options().ram_bytes = 8 << 20;
  ASSERT_THAT(tensors.Create(), IsOk());
  EXPECT_THAT(tensors.Acquire(kNumTensors + 1, 0, 0, &lease),
              Is(FOREBAY_USAGE, "there is no tensor"));
  EXPECT_THAT(tensors.Acquire(0, 5, 0, &lease), Is(FOREBAY_USAGE, "plane is 5"));
  EXPECT_THAT(tensors.Acquire(0, 0, 3, &lease), Is(FOREBAY_USAGE, "access is 3"));
  EXPECT_THAT(tensors.Acquire(0, FOREBAY_WEIGHT, FOREBAY_WRITE, &lease), Is(FOREBAY_USAGE, ""));
  EXPECT_THAT(tensors.Acquire(0, FOREBAY_RAW, FOREBAY_READ, &lease), Is(FOREBAY_USAGE, ""));
  std::vector<float> values(static_cast<size_t>(kElems[0]) + 1);
  EXPECT_THAT(tensors.Read(0, FOREBAY_MASTER, values), Is(FOREBAY_USAGE, ""));
  EXPECT_THAT(tensors.Commit(1, "[1]"), Is(FOREBAY_USAGE, "has to be an object"));
  Tensors second(folder.Path("store"));
  EXPECT_NE(second.Create().code, FOREBAY_OK);
  EXPECT_EQ(forebay_tensor_lease_data(nullptr, nullptr), nullptr);
  EXPECT_EQ(forebay_tensor_lease_dlpack(nullptr), nullptr);
  EXPECT_EQ(forebay_tensors_committed_step(nullptr), -1);
  forebay_tensor_lease_discard(nullptr);
  EXPECT_THAT(Release(nullptr), IsOk());
}

TEST(CTensors, ThreadsWorkSideBySide) {
  const TemporaryFolder folder;
  Tensors tensors(folder.Path("store"));
  ASSERT_THAT(tensors.Create(), IsOk());
  std::vector<std::thread> threads;
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    threads.emplace_back([&tensors, layer] {
      for (int round = 1; round <= 20; ++round) {
        Set(tensors, 2 * layer, FOREBAY_M, static_cast<float>(round));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_THAT(tensors.Commit(1), IsOk());
  for (int32_t layer = 0; layer < kNumLayers; ++layer) {
    std::vector<float> m(static_cast<size_t>(kElems[0]));
    EXPECT_THAT(tensors.Read(2 * layer, FOREBAY_M, m), IsOk());
    EXPECT_THAT(m, Each(20));
  }
}

// ---- Snapshots of layers
// -------------------------------------------------------------------------

std::vector<float> MasterIn(forebay_snapshot* snapshot, int32_t tensor) {
  std::vector<float> values(static_cast<size_t>(kElems[tensor % 2]));
  EXPECT_THAT(Do([&](char** m) {
                return forebay_snapshot_read(snapshot, tensor, FOREBAY_MASTER, 0,
                                             static_cast<int64_t>(values.size()), values.data(), m);
              }),
              IsOk());
  return values;
}

TEST(CSnapshot, IsReadBesideTheNextStepAndHoldsUpTheOneBehindIt) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {});
  layers.Create();
  layers.Step(1);
  ASSERT_THAT(layers.Commit(), IsOk());
  std::vector<float> expected(static_cast<size_t>(kElems[0]));
  ASSERT_THAT(layers.Read(0, FOREBAY_MASTER, expected), IsOk());
  forebay_snapshot* snapshot = nullptr;
  ASSERT_THAT(Do([&](char** m) { return forebay_snapshot_create(layers, &snapshot, m); }), IsOk());
  EXPECT_EQ(forebay_snapshot_step(snapshot), 1);
  std::thread reader([&] {
    for (int i = 0; i < 20; ++i) EXPECT_EQ(MasterIn(snapshot, 0), expected);
  });
  layers.Step(2);
  ASSERT_THAT(layers.Commit(), IsOk());
  reader.join();
  EXPECT_EQ(MasterIn(snapshot, 0), expected);
  int64_t count = 0;
  EXPECT_THAT(Do([&](char** m) {
                return forebay_snapshot_read(snapshot, kRaw, FOREBAY_RAW, 0, 8, &count, m);
              }),
              IsOk());
  EXPECT_EQ(count, 1);
  EXPECT_THAT(Do([&](char** m) {
                return forebay_snapshot_read(snapshot, 0, FOREBAY_RAW, 0, 8, &count, m);
              }),
              Is(FOREBAY_USAGE, "has no plane"));
  // The next write would go over what is read.
  ASSERT_THAT(layers.Begin(0), IsOk());
  layers.Gradients(3);
  ASSERT_THAT(layers.Finish(), IsOk());
  Outcome refused = layers.Update();
  if (refused.code == FOREBAY_OK) refused = layers.Commit();
  EXPECT_THAT(refused, Is(FOREBAY_USAGE, "still being read (a snapshot)"));
  EXPECT_EQ(MasterIn(snapshot, 0), expected);
  forebay_snapshot_destroy(snapshot);
}

TEST(CSnapshot, OneCopyHasNone) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {.durability = FOREBAY_DURABILITY_NONE});
  layers.Create();
  forebay_snapshot* snapshot = nullptr;
  EXPECT_THAT(Do([&](char** m) { return forebay_snapshot_create(layers, &snapshot, m); }),
              Is(FOREBAY_USAGE, "has one copy"));
}

}  // namespace
}  // namespace forebay
