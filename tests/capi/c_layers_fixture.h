// Layers through the C interface as a test drives them.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "forebay/capi/c.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {

// The code and message of a call: call([&](char** message) { return forebay_...(..., message); }).
struct Outcome {
  int32_t code = FOREBAY_OK;
  std::string message;
};
template <typename Call>
Outcome Do(const Call& call) {
  char* message = nullptr;
  Outcome outcome;
  outcome.code = call(&message);
  if (message != nullptr) outcome.message = message;
  EXPECT_EQ(outcome.code == FOREBAY_OK, message == nullptr);
  forebay_free(message);
  return outcome;
}
MATCHER_P2(Is, code, text, "") {
  return arg.code == code && arg.message.find(text) != std::string::npos;
}
MATCHER(IsOk, "") {
  return arg.code == FOREBAY_OK;
}
inline void PrintTo(const Outcome& outcome, std::ostream* stream) {
  *stream << outcome.code << ": " << outcome.message;
}

constexpr int kNumLayers = 4;
constexpr int64_t kElems[] = {5000, 77};
constexpr int kNumTensors = 2 * kNumLayers;  // and a raw one behind them
constexpr int32_t kRaw = kNumTensors;

struct Settings {
  int32_t tier = FOREBAY_TIER_NVME;
  int32_t pass = FOREBAY_PASS_FORWARD_BACKWARD;
  int32_t update_in_backward = 0;
  int32_t durability = FOREBAY_DURABILITY_STEP;
  int32_t weight_dtype = FOREBAY_BF16;
  int num_layers = kNumLayers;
  int64_t commit_every = 0;
  std::vector<double> shares = {1};  // of as many folders, named 0, 1 and so on
  int32_t engine = FOREBAY_ENGINE_AUTO;
  int32_t device = FOREBAY_HOST;
  int32_t device_index = 0;
  forebay_ranks* ranks = nullptr;
  int32_t zero_stage = 0;
};

inline forebay_inventory* NewInventory(int num_layers) {
  forebay_inventory* const inventory = forebay_inventory_create();
  const auto name = [](const std::string& text, int layer) { return text + std::to_string(layer); };
  for (int layer = 0; layer < num_layers; ++layer) {
    std::string text = name("layer", layer);
    forebay_inventory_begin_layer(inventory, text.data(), text.size(), nullptr);
    const int64_t shape[] = {kElems[0] / 10, 10};
    text = name("weight", layer);
    EXPECT_EQ(
        forebay_inventory_add(inventory, text.data(), text.size(), shape, 2, 0, nullptr, nullptr),
        FOREBAY_OK);
    text = name("bias", layer);
    EXPECT_EQ(forebay_inventory_add(inventory, text.data(), text.size(), &kElems[1], 1, 1, nullptr,
                                    nullptr),
              FOREBAY_OK);
  }
  forebay_inventory_begin_raw_layer(inventory, "buffers", 7, nullptr);
  EXPECT_EQ(forebay_inventory_add_raw(inventory, "count", 5, 8, nullptr, nullptr), FOREBAY_OK);
  return inventory;
}

// Every step of Layers adds it.
inline std::vector<float> GradientOf(int32_t tensor, int step, float scale = 1) {
  std::vector<float> gradient(static_cast<size_t>(kElems[tensor % 2]));
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] =
        scale * 0.01f * static_cast<float>(static_cast<int>(i * 31 + tensor + step) % 17 - 8);
  }
  return gradient;
}

class Layers {
 public:
  Layers(const std::string& folder, const Settings& settings) : settings_(settings) {
    forebay_inventory* const inventory = NewInventory(settings.num_layers);
    std::vector<std::string> paths;
    for (size_t i = 0; i < settings.shares.size(); ++i) {
      paths.push_back(i == 0 ? folder : folder + std::to_string(i));
    }
    std::vector<const char*> folders;
    for (const std::string& path : paths) folders.push_back(path.c_str());
    forebay_layers_options options = {};
    options.struct_size = sizeof(options);
    options.folders = folders.data();
    options.num_folders = folders.size();
    options.folder_weights = settings.shares.data();
    options.commit_every = settings.commit_every;
    options.ram_bytes = 64 << 20;
    options.weight_dtype = settings.weight_dtype;
    options.gradient_dtype = FOREBAY_F32;
    options.weights_tier = options.state_tier = settings.tier;
    options.pass = settings.pass;
    options.durability = settings.durability;
    options.update_in_backward = settings.update_in_backward;
    options.num_threads = 2;
    options.tile_elems = 4096;
    options.engine = settings.engine;
    options.device = settings.device;
    options.device_index = settings.device_index;
    options.ranks = settings.ranks;
    options.zero_stage = settings.zero_stage;
    planned_ = Do(
        [&](char** message) { return forebay_layers_new(&options, inventory, &layers_, message); });
    forebay_inventory_destroy(inventory);
  }
  ~Layers() { forebay_layers_destroy(layers_); }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;
  operator forebay_layers*() const { return layers_; }  // NOLINT
  const Outcome& planned() const { return planned_; }

  void Create() {
    EXPECT_THAT(Do([&](char** m) { return forebay_layers_create(layers_, m); }), IsOk());
    for (int32_t tensor = 0; tensor < 2 * settings_.num_layers; ++tensor) {
      std::vector<float> values(static_cast<size_t>(kElems[tensor % 2]));
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<float>(static_cast<int>(i * 37 + tensor * 11) % 101 - 50) * 0.01f;
      }
      EXPECT_THAT(Fill(tensor, values), IsOk());
    }
    EXPECT_THAT(Do([&](char** m) { return forebay_layers_start(layers_, nullptr, 0, m); }), IsOk());
  }
  Outcome Fill(int32_t tensor, const std::vector<float>& values) {
    return Do([&](char** m) {
      return forebay_layers_fill(layers_, tensor, FOREBAY_F32, values.data(), values.size() * 4, m);
    });
  }
  Outcome Open() {
    return Do([&](char** m) { return forebay_layers_open(layers_, m); });
  }

  Outcome Begin(double loss_scale = 0) {
    const forebay_group groups[] = {
        {.lr = 1e-2, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8},
        {.lr = 3e-2, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6}};
    forebay_step_options options = {};
    options.struct_size = sizeof(options);
    options.groups = groups;
    options.num_groups = 2;
    options.loss_scale = loss_scale;
    return Do([&](char** m) { return forebay_layers_begin_step(layers_, &options, m); });
  }
  Outcome Expect(const std::vector<int32_t>& order) {
    return Do(
        [&](char** m) { return forebay_layers_expect(layers_, order.data(), order.size(), m); });
  }
  Outcome Acquire(int32_t layer, forebay_lease** lease) {
    return Do([&](char** m) { return forebay_layers_acquire(layers_, layer, lease, m); });
  }
  Outcome Add(int32_t tensor, const std::vector<float>& gradient) {
    return Do([&](char** m) {
      return forebay_layers_add_gradient(layers_, tensor, FOREBAY_F32, gradient.data(),
                                         gradient.size() * 4, m);
    });
  }
  Outcome Close(int32_t layer) {
    return Do([&](char** m) { return forebay_layers_close_layer(layers_, layer, m); });
  }
  Outcome Finish(forebay_step_gradients* gradients = nullptr) {
    forebay_step_gradients mine = {};
    if (gradients == nullptr) gradients = &mine;
    gradients->struct_size = sizeof(*gradients);
    return Do([&](char** m) { return forebay_layers_finish_backward(layers_, gradients, m); });
  }
  Outcome Update(int32_t commit_now = 0, const std::string& user = "") {
    return Do([&](char** m) {
      return forebay_layers_update(layers_, user.data(), user.size(), commit_now, m);
    });
  }
  Outcome Skip() {
    return Do([&](char** m) { return forebay_layers_skip(layers_, nullptr, 0, 0, m); });
  }
  Outcome Commit(const char* user = nullptr) {
    return Do([&](char** m) {
      return forebay_layers_commit(layers_, user, user == nullptr ? 0 : std::strlen(user), m);
    });
  }
  Outcome CommitOnceApplied(const std::string& user) {
    return Do([&](char** m) {
      return forebay_layers_commit_once_applied(layers_, user.data(), user.size(), m);
    });
  }
  Outcome Read(int32_t tensor, int32_t plane, std::vector<float>& values) {
    return Do([&](char** m) {
      return forebay_layers_read(layers_, tensor, plane, 0, static_cast<int64_t>(values.size()),
                                 values.data(), m);
    });
  }

  // Reads all weights and gives gradients that depend on none of them: so that both kinds of pass
  // have the same. Every third step leaves the bias of layer 1 alone.
  void Gradients(int step, float scale = 1) {
    std::vector<int32_t> order;
    for (int32_t layer = 0; layer < settings_.num_layers; ++layer) order.push_back(layer);
    EXPECT_THAT(Expect(order), IsOk());
    for (const int32_t layer : order) {
      forebay_lease* lease = nullptr;
      ASSERT_THAT(Acquire(layer, &lease), IsOk());
      EXPECT_NE(forebay_lease_data(lease, 2 * layer), nullptr);
      EXPECT_EQ(forebay_lease_data(lease, (2 * layer + 2) % kNumTensors), nullptr);
      forebay_lease_release(lease);
    }
    std::ranges::reverse(order);
    for (const int32_t layer : order) {
      for (const int32_t tensor : {2 * layer + 1, 2 * layer}) {
        if (tensor == 3 && step % 3 == 0) continue;
        ASSERT_THAT(Add(tensor, GradientOf(tensor, step, scale)), IsOk());
      }
      ASSERT_THAT(Close(layer), IsOk());
    }
  }
  // The raw tensor.
  int64_t& Count() {
    void* raw = nullptr;
    EXPECT_THAT(Do([&](char** m) {
                  return forebay_layers_raw(layers_, 2 * settings_.num_layers, &raw, nullptr, m);
                }),
                IsOk());
    return *static_cast<int64_t*>(raw);
  }
  std::string User() {
    char* json = nullptr;
    EXPECT_THAT(Do([&](char** m) { return forebay_layers_user_json(layers_, &json, m); }), IsOk());
    std::string user = json == nullptr ? "" : json;
    forebay_free(json);
    return user;
  }
  void Step(int step, double loss_scale = 0) {
    ASSERT_THAT(Begin(loss_scale), IsOk());
    ++Count();
    Gradients(step, loss_scale == 0 ? 1 : static_cast<float>(loss_scale));
    ASSERT_THAT(Finish(), IsOk());
    ASSERT_THAT(Update(), IsOk());
  }

  // Commits, and gives all masters and moments.
  std::vector<float> All() {
    EXPECT_THAT(Commit(), IsOk());
    std::vector<float> all;
    for (int32_t tensor = 0; tensor < 2 * settings_.num_layers; ++tensor) {
      for (const int32_t plane : {FOREBAY_MASTER, FOREBAY_M, FOREBAY_V}) {
        std::vector<float> values(static_cast<size_t>(kElems[tensor % 2]));
        EXPECT_THAT(Read(tensor, plane, values), IsOk());
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    return all;
  }

 private:
  const Settings settings_;
  forebay_layers* layers_ = nullptr;
  Outcome planned_;
};

inline std::vector<float> AllAfter(const Settings& settings, int num_steps, double loss_scale = 0) {
  const TemporaryFolder folder;
  std::vector<float> all;
  Layers layers(folder.Path("store"), settings);
  EXPECT_THAT(layers.planned(), IsOk());
  layers.Create();
  for (int step = 1; step <= num_steps; ++step) layers.Step(step, loss_scale);
  return layers.All();
}

}  // namespace forebay
