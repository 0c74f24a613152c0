// Layers that are lent on a CUDA device through the C interface: the same bits as in RAM, streams
// of the caller that are ordered by forebay_lease_ready alone, and mistakes. On the emulated GPU
// that is a race report where an order is missing; elsewhere it needs a GPU.
#include <unistd.h>

#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/capi/c.h"
#include "forebay/capi/dlpack.h"
#include "forebay/device/device.h"
#include "forebay/tests/capi/c_layers_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

const Settings kOnDevice = {.device = FOREBAY_CUDA};

void* NativeOf(Stream& stream) {
  void* native = nullptr;
  EXPECT_TRUE(stream
                  .Launch([&](void* each) {
                    native = each;
                    return absl::OkStatus();
                  })
                  .ok());
  return native;
}

Outcome Ready(forebay_lease* lease, void* stream) {
  return Do([&](char** m) { return forebay_lease_ready(lease, stream, m); });
}

// A caller with a stream of its own.
class DeviceCaller {
 public:
  ~DeviceCaller() {
    if (stream_ != nullptr) {
      EXPECT_TRUE(stream_->Await().ok());
    }
  }
  absl::Status TakeDevice() {
    FOREBAY_ASSIGN_OR_RETURN(device_, CreateCudaDevice(0));
    stream_ = MakeStream();
    return absl::OkStatus();
  }
  std::unique_ptr<Stream> MakeStream() {
    auto stream = device_->CreateStream();
    EXPECT_TRUE(stream.ok()) << stream.status();
    return *std::move(stream);
  }

  // Has `stream` copy the layer to `to`, behind forebay_lease_ready.
  void Read(forebay_lease* lease, Stream& stream, std::vector<std::byte>& to) {
    size_t num_bytes = 0;
    const void* const bytes = forebay_lease_bytes(lease, &num_bytes);
    to.resize(num_bytes);
    ASSERT_THAT(Ready(lease, NativeOf(stream)), IsOk());
    ASSERT_TRUE(stream.CopyToHost(to, bytes).ok());
  }

  // The weights that a pass over all layers sees, there and back: read while others arrive.
  std::vector<std::vector<std::byte>> Pass(Layers& layers, bool on_device) {
    std::vector<int32_t> order = {0, 1, 2, 3, 3, 2, 1, 0};
    std::vector<std::vector<std::byte>> seen(order.size());
    EXPECT_THAT(layers.Expect(order), IsOk());
    for (size_t i = 0; i < order.size(); ++i) {
      forebay_lease* lease = nullptr;
      EXPECT_THAT(layers.Acquire(order[i], &lease), IsOk());
      if (lease == nullptr) return seen;
      if (on_device) {
        Read(lease, *stream_, seen[i]);
      } else {
        size_t num_bytes = 0;
        const auto* const bytes =
            static_cast<const std::byte*>(forebay_lease_bytes(lease, &num_bytes));
        seen[i].assign(bytes, bytes + num_bytes);
      }
      forebay_lease_release(lease);
    }
    if (on_device) {
      EXPECT_TRUE(stream_->Await().ok());
    }
    return seen;
  }

  // Gradients of all tensors: of RAM, or of memory on the device that stream_ has written. Those of
  // the small ones come in parts, of which several fit what gradients pass through.
  void AddGradients(Layers& layers, int step, bool on_device) {
    for (int32_t tensor = kNumTensors - 1; tensor >= 0; --tensor) {
      const int num_parts = tensor % 2 == 0 ? 1 : 5;
      for (int part = 0; part < num_parts; ++part) {
        std::vector<float> gradient(static_cast<size_t>(kElems[tensor % 2]));
        for (size_t i = 0; i < gradient.size(); ++i) {
          const auto drawn = static_cast<int>(i * 31) + tensor + step + 5 * part;
          gradient[i] = 0.01f * static_cast<float>(drawn % 17 - 8);
        }
        ASSERT_THAT(
            on_device ? AddFromDevice(layers, tensor, gradient) : layers.Add(tensor, gradient),
            IsOk());
      }
      if (tensor % 2 == 0) {
        ASSERT_THAT(layers.Close(tensor / 2), IsOk());
      }
    }
    ASSERT_TRUE(stream_->Await().ok());
    written_.clear();
    gradients_.clear();
  }
  // And has work of the same stream write to the memory as soon as the call returns.
  Outcome AddFromDevice(Layers& layers, int32_t tensor, std::vector<float> gradient) {
    const size_t num_bytes = gradient.size() * sizeof(float);
    auto memory = device_->Allocate(static_cast<int64_t>(num_bytes));
    EXPECT_TRUE(memory.ok());
    void* const address = memory->address();
    gradients_.push_back(*std::move(memory));
    const auto write = [&](std::vector<float> values) {
      written_.push_back(std::move(values));
      const auto bytes = std::as_bytes(std::span(written_.back()));
      EXPECT_TRUE(stream_->CopyToDevice(address, bytes).ok());
    };
    write(gradient);
    Outcome outcome = Do([&](char** m) {
      return forebay_layers_add_device_gradient(layers, tensor, FOREBAY_F32, address, num_bytes,
                                                NativeOf(*stream_), m);
    });
    write(std::vector<float>(gradient.size(), std::numeric_limits<float>::quiet_NaN()));
    return outcome;
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<DeviceBuffer> gradients_;
  std::vector<std::vector<float>> written_;  // what stream_ copies to them
};

class CDeviceLayers : public testing::Test, protected DeviceCaller {
 protected:
  void SetUp() override {
    const absl::Status status = TakeDevice();
    if (!status.ok()) GTEST_SKIP() << MessageOf(status);
  }
};

TEST_F(CDeviceLayers, ATrainingSeesAndGivesTheBitsOfOneInRam) {
  std::vector<std::vector<std::vector<std::byte>>> seen[2];
  std::vector<float> all[2];
  for (const bool on_device : {false, true}) {
    const TemporaryFolder folder;
    Layers layers(folder.Path("store"), on_device ? kOnDevice : Settings{});
    ASSERT_THAT(layers.planned(), IsOk());
    layers.Create();
    for (int step = 1; step <= 4; ++step) {
      ASSERT_THAT(layers.Begin(), IsOk());
      seen[on_device].push_back(Pass(layers, on_device));
      AddGradients(layers, step, on_device);
      ASSERT_THAT(layers.Finish(), IsOk());
      ASSERT_THAT(layers.Update(), IsOk());
    }
    all[on_device] = layers.All();
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(all[0], all[1]);
  EXPECT_NE(seen[1][0], seen[1][1]);
}

// Two ranks with the same gradients: their mean is what one has.
TEST_F(CDeviceLayers, RanksSeeAndGiveTheBitsOfOneInRam) {
  constexpr int kSteps = 3;
  using Seen = std::vector<std::vector<std::vector<std::byte>>>;  // by step and use
  std::vector<float> alone;
  Seen seen_alone;
  {
    const TemporaryFolder folder;
    Layers layers(folder.Path("store"), Settings{});
    layers.Create();
    for (int step = 1; step <= kSteps; ++step) {
      ASSERT_THAT(layers.Begin(), IsOk());
      seen_alone.push_back(Pass(layers, /*on_device=*/false));
      AddGradients(layers, step, /*on_device=*/false);
      ASSERT_THAT(layers.Finish(), IsOk());
      ASSERT_THAT(layers.Update(), IsOk());
    }
    alone = layers.All();
  }
  for (const int32_t zero_stage : {0, 1, 3}) {
    const TemporaryFolder folder;
    std::vector<float> all[2];
    Seen seen[2];
    const auto run = [&](int32_t rank) {
      DeviceCaller caller;
      ASSERT_EQ(caller.TakeDevice(), absl::OkStatus());
      forebay_ranks_options options = {};
      options.struct_size = sizeof(options);
      options.timeout_s = 60;
      options.size = 2;
      options.rank = rank;
      options.master_address = "127.0.0.1";
      options.master_port = 20000 + static_cast<int32_t>(::getpid() % 20000);
      forebay_ranks* ranks = nullptr;
      ASSERT_THAT(Do([&](char** m) { return forebay_ranks_connect(&options, &ranks, m); }), IsOk());
      Settings settings = kOnDevice;
      settings.ranks = ranks;
      settings.zero_stage = zero_stage;
      Layers layers(folder.Path("store"), settings);
      ASSERT_THAT(layers.planned(), IsOk());
      layers.Create();
      for (int step = 1; step <= kSteps; ++step) {
        ASSERT_THAT(layers.Begin(), IsOk());
        seen[rank].push_back(caller.Pass(layers, /*on_device=*/true));
        caller.AddGradients(layers, step, /*on_device=*/true);
        ASSERT_THAT(layers.Finish(), IsOk());
        ASSERT_THAT(layers.Update(), IsOk());
      }
      all[rank] = layers.All();
      forebay_ranks_destroy(ranks);
    };
    std::thread other(run, 1);
    run(0);
    other.join();
    for (const int rank : {0, 1}) {
      EXPECT_TRUE(seen[rank] == seen_alone) << zero_stage;
      EXPECT_TRUE(all[rank] == alone) << zero_stage;
    }
  }
}

// The last gradient of an abandoned step may still be on its way.
TEST_F(CDeviceLayers, AStepThatIsAbandonedLeavesNothingOfItsGradients) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), kOnDevice);
  ASSERT_THAT(layers.planned(), IsOk());
  layers.Create();
  std::vector<float> all[2];
  for (const bool abandons : {true, false}) {
    ASSERT_THAT(layers.Begin(), IsOk());
    Pass(layers, /*on_device=*/true);
    if (abandons) {
      const std::vector<float> gradient(static_cast<size_t>(kElems[(kNumTensors - 1) % 2]), 1.0f);
      ASSERT_THAT(AddFromDevice(layers, kNumTensors - 1, gradient), IsOk());
      forebay_layers_abandon(layers);
      all[0] = layers.All();
      continue;
    }
    ASSERT_THAT(layers.Finish(), IsOk());
    ASSERT_THAT(layers.Update(), IsOk());
    all[1] = layers.All();
  }
  EXPECT_EQ(all[0], all[1]) << "the second step had no gradient";
  // The last one of a session that ends in the middle of a step.
  ASSERT_THAT(layers.Begin(), IsOk());
  const std::vector<float> gradient(static_cast<size_t>(kElems[0]), 1.0f);
  ASSERT_THAT(AddFromDevice(layers, 0, gradient), IsOk());
}

TEST_F(CDeviceLayers, AllStreamsThatWereNamedAreWaitedFor) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), kOnDevice);
  layers.Create();
  const auto second = MakeStream();
  std::vector<int32_t> order;
  for (int i = 0; i < 12; ++i) order.push_back(i % kNumLayers);
  ASSERT_THAT(layers.Expect(order), IsOk());
  std::vector<std::vector<std::byte>> seen(2 * order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    forebay_lease* lease = nullptr;
    ASSERT_THAT(layers.Acquire(order[i], &lease), IsOk());
    Read(lease, *stream_, seen[2 * i]);
    Read(lease, *second, seen[2 * i + 1]);
    forebay_lease_release(lease);
  }
  ASSERT_TRUE(stream_->Await().ok());
  ASSERT_TRUE(second->Await().ok());
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(seen[2 * i], seen[2 * static_cast<size_t>(order[i])]) << i;
    EXPECT_EQ(seen[2 * i + 1], seen[2 * i]) << i;
  }
}

TEST_F(CDeviceLayers, ATensorOfTheLeaseSaysWhereItIsAndKeepsItsPlace) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), kOnDevice);
  layers.Create();
  ASSERT_THAT(layers.Expect({0, 1, 2, 3}), IsOk());
  forebay_lease* lease = nullptr;
  ASSERT_THAT(layers.Acquire(0, &lease), IsOk());
  ASSERT_THAT(Ready(lease, NativeOf(*stream_)), IsOk());
  auto* const tensor = static_cast<DLManagedTensor*>(forebay_lease_dlpack(lease, 0));
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->dl_tensor.device.device_type, 2);
  EXPECT_EQ(tensor->dl_tensor.device.device_id, 0);
  EXPECT_EQ(tensor->dl_tensor.data, forebay_lease_data(lease, 0));
  forebay_lease_release(lease);
  for (const int32_t layer : {1, 2, 3}) {  // through the places that are left
    ASSERT_THAT(layers.Acquire(layer, &lease), IsOk());
    forebay_lease_release(lease);
  }
  std::vector<std::byte> kept(static_cast<size_t>(kElems[0] * 2));
  ASSERT_TRUE(stream_->CopyToHost(kept, tensor->dl_tensor.data).ok());
  tensor->deleter(tensor);  // its end is that of the lease, behind the copy
  ASSERT_THAT(layers.Expect({0}), IsOk());
  ASSERT_THAT(layers.Acquire(0, &lease), IsOk());
  std::vector<std::byte> again;
  Read(lease, *stream_, again);
  forebay_lease_release(lease);
  ASSERT_TRUE(stream_->Await().ok());
  EXPECT_EQ(std::memcmp(kept.data(), again.data(), kept.size()), 0);
}

TEST_F(CDeviceLayers, PlanAndStatisticsSayItsMemory) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), kOnDevice);
  char* json = nullptr;
  ASSERT_EQ(forebay_layers_plan_json(layers, &json, nullptr), FOREBAY_OK);
  const std::string plan = json;
  forebay_free(json);
  EXPECT_THAT(plan, HasSubstr("\"device_bytes\":65536"));  // 4 places of 2 tiles of 4096, bf16
  EXPECT_THAT(plan, HasSubstr("a gradient on its way from the GPU"));
  layers.Create();
  ASSERT_THAT(layers.Expect({2}), IsOk());
  forebay_lease* lease = nullptr;
  ASSERT_THAT(layers.Acquire(2, &lease), IsOk());
  ASSERT_EQ(forebay_layers_stats_json(layers, &json, nullptr), FOREBAY_OK);
  EXPECT_THAT(std::string(json), HasSubstr("\"leased_layers\":[2]"));
  EXPECT_THAT(std::string(json), HasSubstr("CUDA device 0"));
  forebay_free(json);
  forebay_lease_release(lease);
}

TEST_F(CDeviceLayers, MistakesAreErrorsThatChangeNothing) {
  const TemporaryFolder folder;
  EXPECT_THAT(Layers(folder.Path("a"), {.device = 2}).planned(), Is(FOREBAY_USAGE, "device is 2"));
  EXPECT_THAT(Layers(folder.Path("a"), {.device_index = 1}).planned(),
              Is(FOREBAY_USAGE, "device_index is 1"));
  EXPECT_THAT(Layers(folder.Path("a"), {.device = FOREBAY_CUDA, .device_index = 99}).planned(),
              Is(FOREBAY_ENVIRONMENT, "no CUDA device 99"));
  EXPECT_THAT(Layers(folder.Path("a"), {.pass = FOREBAY_PASS_UPDATE_ONLY, .device = FOREBAY_CUDA})
                  .planned(),
              Is(FOREBAY_USAGE, "lends no weights"));

  Layers layers(folder.Path("store"), kOnDevice);
  forebay_lease* lease = nullptr;
  EXPECT_THAT(layers.Acquire(0, &lease), Is(FOREBAY_USAGE, "there is no store"));
  layers.Create();
  EXPECT_THAT(layers.Acquire(0, &lease), Is(FOREBAY_USAGE, "none was announced"));
  EXPECT_THAT(layers.Expect({kNumLayers}), Is(FOREBAY_USAGE, "there is no layer"));
  ASSERT_THAT(layers.Expect({0, 0, 1}), IsOk());
  EXPECT_THAT(layers.Begin(), Is(FOREBAY_USAGE, "3 layers are announced"));
  EXPECT_THAT(layers.Commit(), Is(FOREBAY_USAGE, "3 layers are announced"));
  EXPECT_THAT(layers.Acquire(1, &lease), Is(FOREBAY_USAGE, "0 was announced"));
  ASSERT_THAT(layers.Acquire(0, &lease), IsOk());
  forebay_lease* second = nullptr;
  EXPECT_THAT(layers.Acquire(0, &second),
              Is(FOREBAY_USAGE, "layer 0 is acquired while it is lent"));
  forebay_lease_release(lease);
  ASSERT_THAT(layers.Acquire(0, &lease), IsOk());
  forebay_lease_release(lease);
  forebay_layers_cancel_expected(layers);  // layer 1 is on the device already
  EXPECT_THAT(Ready(nullptr, nullptr), Is(FOREBAY_USAGE, "lease is NULL"));

  const auto gradient = [&](int32_t tensor, const void* data, size_t num_bytes) {
    return Do([&](char** m) {
      return forebay_layers_add_device_gradient(layers, tensor, FOREBAY_F32, data, num_bytes,
                                                NativeOf(*stream_), m);
    });
  };
  const auto memory = device_->Allocate(100'000);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(stream_->Fill(memory->address(), std::byte{0}, 100'000).ok());
  EXPECT_THAT(gradient(0, memory->address(), 20'000),
              Is(FOREBAY_USAGE, "the gradient of a tensor"));
  ASSERT_THAT(layers.Begin(), IsOk());
  EXPECT_THAT(gradient(0, nullptr, 20'000), Is(FOREBAY_USAGE, "data is NULL"));
  EXPECT_THAT(gradient(0, memory->address(), 100'000), Is(FOREBAY_USAGE, "100000 bytes"));
  EXPECT_EQ(gradient(0, memory->address(), 16).code, FOREBAY_USAGE);
  EXPECT_EQ(gradient(99, memory->address(), 16).code, FOREBAY_USAGE);
  EXPECT_THAT(gradient(0, memory->address(), 20'000), IsOk());
  forebay_layers_abandon(layers);
  layers.Step(1);
  EXPECT_EQ(forebay_layers_step(layers), 1);
}

TEST(CDeviceGradient, OfLayersInRamIsAMistake) {
  const TemporaryFolder folder;
  Layers layers(folder.Path("store"), {});
  layers.Create();
  ASSERT_THAT(layers.Begin(), IsOk());
  EXPECT_THAT(Do([&](char** m) {
                return forebay_layers_add_device_gradient(layers, 0, FOREBAY_F32, nullptr, 0,
                                                          nullptr, m);
              }),
              Is(FOREBAY_USAGE, "lent in RAM"));
  forebay_lease* lease = nullptr;
  ASSERT_THAT(layers.Expect({0}), IsOk());
  ASSERT_THAT(layers.Acquire(0, &lease), IsOk());
  EXPECT_THAT(Ready(lease, nullptr), IsOk());
  forebay_lease_release(lease);
}

TEST(CDeviceGradient, WithoutAGpuTheMachineIsNamed) {
  if (CreateCudaDevice(0).ok())
    GTEST_SKIP() << "this machine has a GPU, and the test is about one without";
  const TemporaryFolder folder;
  EXPECT_EQ(Layers(folder.Path("store"), kOnDevice).planned().code, FOREBAY_ENVIRONMENT);
}

}  // namespace
}  // namespace forebay
