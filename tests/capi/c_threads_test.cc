// One object of the C interface, used by several threads at a time: what comes out has the bits of
// one thread, and calls that cannot be made are told so and disturb nobody. For TSan above all.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "forebay/capi/c.h"
#include "forebay/tests/capi/c_layers_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::Each;

// Calls `body` on a thread of its own, again and again until the object ends.
class Meanwhile {
 public:
  explicit Meanwhile(std::function<void()> body)
      : thread_([this, body = std::move(body)] {
          do {
            body();
            ++num_calls_;
          } while (!is_over_);
        }) {}
  ~Meanwhile() {
    is_over_ = true;
    thread_.join();
    EXPECT_GT(num_calls_, 0);
  }

 private:
  std::atomic<bool> is_over_ = false;
  std::atomic<int> num_calls_ = 0;
  std::thread thread_;  // last: it uses the others
};

void RunAll(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::thread> threads;
  for (const auto& body : bodies) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
}

// A text that the library gives has to be JSON, an object or an array.
template <typename Call>
void ExpectJson(const Call& call) {
  char* json = nullptr;
  EXPECT_THAT(Do([&](char** m) { return call(&json, m); }), IsOk());
  ASSERT_NE(json, nullptr);
  EXPECT_TRUE(*json == '{' || *json == '[') << json;
  forebay_free(json);
}

// ---- Layers ------------------------------------------------------------------------------------

// Whatever may be asked of layers at any time.
void AskLayers(forebay_layers* layers) {
  ExpectJson([&](char** json, char** m) { return forebay_layers_stats_json(layers, json, m); });
  ExpectJson([&](char** json, char** m) { return forebay_layers_plan_json(layers, json, m); });
  ExpectJson([&](char** json, char** m) { return forebay_layers_user_json(layers, json, m); });
  EXPECT_EQ(forebay_layers_exists(layers), 1);
  EXPECT_GE(forebay_layers_committed_step(layers), 0);
  EXPECT_GE(forebay_layers_step(layers), 0);
  int64_t num_updates = -1;
  EXPECT_THAT(Do([&](char** m) { return forebay_layers_updates_of(layers, 0, &num_updates, m); }),
              IsOk());
  EXPECT_GE(num_updates, 0);
  std::vector<float> values(static_cast<size_t>(kElems[0]));
  const Outcome read = Do([&](char** m) {
    return forebay_layers_read(layers, 0, FOREBAY_MASTER, 0, kElems[0], values.data(), m);
  });
  EXPECT_THAT(read, ::testing::AnyOf(IsOk(), Is(FOREBAY_USAGE, "is not committed")));
}

void MisuseLayers(forebay_layers* layers) {
  const auto refused = [](const Outcome& outcome) { EXPECT_THAT(outcome, Is(FOREBAY_USAGE, "")); };
  const float value = 0;
  forebay_lease* lease = nullptr;
  refused(Do([&](char** m) { return forebay_layers_create(layers, m); }));
  refused(Do([&](char** m) { return forebay_layers_open(layers, m); }));
  refused(Do([&](char** m) { return forebay_layers_fill(layers, 0, FOREBAY_F32, &value, 4, m); }));
  refused(Do([&](char** m) { return forebay_layers_start(layers, nullptr, 0, m); }));
  refused(Do([&](char** m) { return forebay_layers_acquire(layers, 99, &lease, m); }));
  refused(Do(
      [&](char** m) { return forebay_layers_add_gradient(layers, 0, FOREBAY_F32, &value, 4, m); }));
  refused(Do([&](char** m) { return forebay_layers_close_layer(layers, -1, m); }));
  refused(Do([&](char** m) { return forebay_layers_begin_step(layers, nullptr, m); }));
  refused(Do([&](char** m) { return forebay_layers_update(layers, "[]", 2, 0, m); }));
  refused(Do([&](char** m) { return forebay_layers_commit(layers, "x", 1, m); }));
}

// Several threads have a pass: each acquires layers when it is their turn, and holds on to them
// while the next thread acquires the next. What another cancels is announced again.
class SharedPass {
 public:
  explicit SharedPass(Layers* layers) : layers_(layers) {}

  void Read(int32_t layer) {
    forebay_lease* lease = nullptr;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return next_ == layer; });
      std::vector<int32_t> rest;
      for (int32_t of_rest = layer; of_rest < kNumLayers; ++of_rest) rest.push_back(of_rest);
      if (layer == 0) {
        EXPECT_THAT(layers_->Expect(rest), IsOk());
      }
      Outcome outcome;
      while ((outcome = layers_->Acquire(layer, &lease)).code == FOREBAY_USAGE) {
        EXPECT_THAT(outcome, Is(FOREBAY_USAGE, "none is left"));
        EXPECT_THAT(layers_->Expect(rest), IsOk());
      }
      EXPECT_THAT(outcome, IsOk());
      ++next_;
      changed_.notify_all();
    }
    size_t num_bytes = 0;
    EXPECT_NE(forebay_lease_bytes(lease, &num_bytes), nullptr);
    EXPECT_NE(forebay_lease_data(lease, 2 * layer + 1), nullptr);
    forebay_lease_release(lease);
  }

 private:
  Layers* const layers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t next_ = 0;
};

void StepOfSeveralThreads(Layers& layers, int step) {
  ASSERT_THAT(layers.Begin(), IsOk());
  ++layers.Count();
  {
    SharedPass pass(&layers);
    std::atomic<bool> cancels = true;
    const Meanwhile canceller([&] {
      if (cancels) forebay_layers_cancel_expected(layers);
      ::usleep(200);
    });
    RunAll({[&] {
              for (int32_t layer = 0; layer < kNumLayers; layer += 2) pass.Read(layer);
            },
            [&] {
              for (int32_t layer = 1; layer < kNumLayers; layer += 2) pass.Read(layer);
            }});
    cancels = false;
  }
  for (int32_t layer = kNumLayers - 1; layer >= 0; --layer) {
    const auto add = [&](int32_t tensor) {
      if (tensor == 3 && step % 3 == 0) return;
      EXPECT_THAT(layers.Add(tensor, GradientOf(tensor, step)), IsOk());
    };
    RunAll({[&] { add(2 * layer); }, [&] { add(2 * layer + 1); }});
    ASSERT_THAT(layers.Close(layer), IsOk());
  }
  ASSERT_THAT(layers.Finish(), IsOk());
  ASSERT_THAT(layers.Update(), IsOk());
}

TEST(CThreads, ShareLayersAndComputeTheBitsOfOne) {
  constexpr int kNumSteps = 6;
  for (const int32_t tier : {FOREBAY_TIER_NVME, FOREBAY_TIER_RAM}) {
    const TemporaryFolder folder;
    Layers layers(folder.Path("store"), {.tier = tier, .commit_every = 2});
    layers.Create();
    {
      const Meanwhile asking([&] { AskLayers(layers); });
      const Meanwhile misusing([&] { MisuseLayers(layers); });
      for (int step = 1; step <= kNumSteps; ++step) StepOfSeveralThreads(layers, step);
    }
    EXPECT_EQ(layers.All(), AllAfter({}, kNumSteps));
    EXPECT_EQ(layers.Count(), kNumSteps);
  }
}

// ---- Tensors -----------------------------------------------------------------------------------

class Tensors {
 public:
  explicit Tensors(const std::string& folder) {
    const char* const folders[] = {folder.c_str()};
    forebay_tensors_options options = {};
    options.struct_size = sizeof(options);
    options.folders = folders;
    options.num_folders = 1;
    options.ram_bytes = 8 << 20;
    options.tile_elems = 4096;
    forebay_inventory* const inventory = NewInventory(kNumLayers);
    EXPECT_THAT(
        Do([&](char** m) { return forebay_tensors_create(&options, inventory, &tensors_, m); }),
        IsOk());
    forebay_inventory_destroy(inventory);
  }
  ~Tensors() { forebay_tensors_destroy(tensors_); }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;
  operator forebay_tensors*() const { return tensors_; }  // NOLINT

  // value = value / 2 + step, of all elements: of many rounds each bit depends on every one before.
  void Change(int32_t tensor, int32_t plane, int step) {
    const forebay_lease_request request = {tensor, plane, FOREBAY_WRITE, 0};
    forebay_tensor_lease* lease = nullptr;
    ASSERT_THAT(
        Do([&](char** m) { return forebay_tensors_acquire(tensors_, &request, 1, &lease, m); }),
        IsOk());
    size_t num_bytes = 0;
    auto* const values = static_cast<float*>(forebay_tensor_lease_data(lease, &num_bytes));
    for (size_t i = 0; i < num_bytes / sizeof(float); ++i) {
      values[i] = values[i] / 2 + static_cast<float>(step) + 0.001f * static_cast<float>(i);
    }
    EXPECT_THAT(Do([&](char** m) { return forebay_tensor_lease_release(lease, m); }), IsOk());
  }
  std::vector<float> All() {
    EXPECT_THAT(Do([&](char** m) { return forebay_tensors_commit(tensors_, 100, "", 0, m); }),
                IsOk());
    std::vector<float> all;
    for (int32_t tensor = 0; tensor < kNumTensors; ++tensor) {
      for (const int32_t plane : {FOREBAY_MASTER, FOREBAY_M, FOREBAY_V}) {
        std::vector<float> values(static_cast<size_t>(kElems[tensor % 2]));
        EXPECT_THAT(Do([&](char** m) {
                      return forebay_tensors_read(tensors_, tensor, plane, 0,
                                                  static_cast<int64_t>(values.size()),
                                                  values.data(), m);
                    }),
                    IsOk());
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return all;
  }

 private:
  forebay_tensors* tensors_ = nullptr;
};

void ChangePlane(Tensors& tensors, int32_t plane) {
  for (int step = 1; step <= 8; ++step) {
    for (int32_t tensor = 0; tensor < kNumTensors; ++tensor) tensors.Change(tensor, plane, step);
  }
}

void AskAndMisuseTensors(forebay_tensors* tensors) {
  ExpectJson([&](char** json, char** m) { return forebay_tensors_stats_json(tensors, json, m); });
  ExpectJson(
      [&](char** json, char** m) { return forebay_tensors_inventory_json(tensors, json, m); });
  ExpectJson([&](char** json, char** m) { return forebay_tensors_user_json(tensors, json, m); });
  EXPECT_EQ(forebay_tensors_committed_step(tensors), 1);
  std::vector<float> values(static_cast<size_t>(kElems[0]));
  EXPECT_THAT(Do([&](char** m) {
                return forebay_tensors_read(tensors, 0, FOREBAY_M, 0, kElems[0], values.data(), m);
              }),
              IsOk());
  EXPECT_THAT(values, Each(0));  // what is committed, whatever is written meanwhile
  EXPECT_THAT(Do([&](char** m) { return forebay_tensors_expect(tensors, 2, FOREBAY_V, m); }),
              IsOk());
  forebay_tensor_lease* lease = nullptr;
  const forebay_lease_request requests[] = {{99, FOREBAY_M, FOREBAY_WRITE, 0},
                                            {0, 99, FOREBAY_WRITE, 0},
                                            {0, FOREBAY_M, 99, 0},
                                            {kRaw, FOREBAY_M, FOREBAY_READ, 0}};
  for (const forebay_lease_request& request : requests) {
    EXPECT_THAT(
        Do([&](char** m) { return forebay_tensors_acquire(tensors, &request, 1, &lease, m); }),
        Is(FOREBAY_USAGE, ""));
  }
  EXPECT_THAT(Do([&](char** m) { return forebay_tensors_commit(tensors, 1, "x", 1, m); }),
              Is(FOREBAY_USAGE, ""));
}

TEST(CThreads, ShareTensorsAndComputeTheBitsOfOne) {
  const TemporaryFolder folder;
  Tensors serial(folder.Path("serial"));
  for (const int32_t plane : {FOREBAY_MASTER, FOREBAY_M, FOREBAY_V}) ChangePlane(serial, plane);
  Tensors tensors(folder.Path("store"));
  ASSERT_THAT(Do([&](char** m) { return forebay_tensors_commit(tensors, 1, "", 0, m); }), IsOk());
  {
    const Meanwhile asking([&] { AskAndMisuseTensors(tensors); });
    RunAll({[&] { ChangePlane(tensors, FOREBAY_MASTER); }, [&] { ChangePlane(tensors, FOREBAY_M); },
            [&] { ChangePlane(tensors, FOREBAY_V); }});
  }
  EXPECT_EQ(tensors.All(), serial.All());
}

// ---- The disk engine, its memory, and inventories ----------------------------------------------

void WriteAndReadAgain(forebay_io* io, forebay_memory* memory, const std::string& path) {
  constexpr size_t kBytes = 20'000;
  const auto run = [&](int32_t is_write, void* data) {
    const forebay_io_request request = {.struct_size = sizeof(request),
                                        .is_write = is_write,
                                        .path = path.data(),
                                        .path_length = path.size(),
                                        .data = data,
                                        .num_bytes = kBytes};
    uint64_t ticket = 0;
    EXPECT_THAT(Do([&](char** m) { return forebay_io_submit(io, &request, &ticket, m); }), IsOk());
    EXPECT_THAT(Do([&](char** m) { return forebay_io_wait(io, ticket, m); }), IsOk());
    EXPECT_THAT(Do([&](char** m) { return forebay_io_wait(io, ticket, m); }),
                Is(FOREBAY_USAGE, "no request has the ticket"));
  };
  for (char round = 1; round <= 10; ++round) {
    std::vector<char> written(kBytes, round);
    run(1, written.data());
    void* block = nullptr;
    ASSERT_EQ(forebay_memory_allocate(memory, kBytes, &block, nullptr), FOREBAY_OK);
    EXPECT_EQ(forebay_memory_contains(memory, block, kBytes), 1);
    run(0, block);
    EXPECT_TRUE(std::ranges::equal(written, std::span(static_cast<char*>(block), kBytes)));
    EXPECT_EQ(forebay_memory_free(memory, block), 1);
  }
}

TEST(CThreads, ShareADiskEngineAndItsMemory) {
  const TemporaryFolder folder;
  forebay_io_options options = {};
  options.struct_size = sizeof(options);
  forebay_io* io = nullptr;
  ASSERT_THAT(Do([&](char** m) { return forebay_io_create(&options, &io, m); }), IsOk());
  forebay_memory* const memory = forebay_memory_create();
  {
    const Meanwhile asking([&] {
      ExpectJson([&](char** json, char** m) { return forebay_io_stats_json(io, json, m); });
      EXPECT_THAT(Do([&](char** m) { return forebay_io_submit(io, nullptr, nullptr, m); }),
                  Is(FOREBAY_USAGE, "is NULL"));
      EXPECT_THAT(Do([&](char** m) { return forebay_io_wait(io, 1'000'000, m); }),
                  Is(FOREBAY_USAGE, "no request has the ticket"));
      EXPECT_EQ(forebay_memory_free(memory, &options), 0);
      char* note = nullptr;
      EXPECT_THAT(Do([&](char** m) { return forebay_memory_note(memory, &note, m); }), IsOk());
      forebay_free(note);
    });
    RunAll({[&] { WriteAndReadAgain(io, memory, folder.Path("first")); },
            [&] { WriteAndReadAgain(io, memory, folder.Path("second")); },
            [&] { WriteAndReadAgain(io, memory, folder.Path("third")); }});
  }
  forebay_memory_destroy(memory);
  forebay_io_destroy(io);
}

TEST(CThreads, ShareAnInventoryAndAPoolOfKernels) {
  constexpr int kNumEach = 200;
  forebay_inventory* const inventory = forebay_inventory_create();
  ASSERT_EQ(forebay_inventory_begin_layer(inventory, "layer", 5, nullptr), FOREBAY_OK);
  std::vector<int32_t> indexes(2 * kNumEach);
  const auto add = [&](int first) {
    const int64_t shape = 10;
    for (int i = first; i < first + kNumEach; ++i) {
      const std::string name = std::to_string(i);
      EXPECT_EQ(forebay_inventory_add(inventory, name.data(), name.size(), &shape, 1, 0,
                                      &indexes[static_cast<size_t>(i)], nullptr),
                FOREBAY_OK);
    }
  };
  RunAll({[&] { add(0); }, [&] { add(kNumEach); }});
  forebay_inventory_destroy(inventory);
  std::ranges::sort(indexes);
  for (int32_t i = 0; i < 2 * kNumEach; ++i) EXPECT_EQ(indexes[static_cast<size_t>(i)], i);

  forebay_kernels* kernels = nullptr;
  ASSERT_EQ(forebay_kernels_create(2, &kernels, nullptr), FOREBAY_OK);
  const std::vector<float> values(200'000, 0.5f);
  const auto sum = [&] {
    for (int i = 0; i < 20; ++i) {
      double squares = 0;
      EXPECT_EQ(
          forebay_kernels_sum_of_squares(kernels, FOREBAY_F32, values.data(),
                                         static_cast<int64_t>(values.size()), &squares, nullptr),
          FOREBAY_OK);
      EXPECT_EQ(squares, 50'000);
    }
  };
  RunAll({sum, sum, sum});
  forebay_kernels_destroy(kernels);
}

}  // namespace
}  // namespace forebay
