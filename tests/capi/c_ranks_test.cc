// Ranks through the C interface: threads of one process, each with a rank and layers of its own.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
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

using ::testing::ElementsAre;

// Nobody listens there now.
int32_t FreePort() {
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  EXPECT_EQ(::bind(listening, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(listening);
  return ntohs(address.sin_port);
}

forebay_ranks_options OptionsOf(int32_t rank, int32_t size, int32_t port, double timeout_s = 20) {
  return {.struct_size = sizeof(forebay_ranks_options),
          .timeout_s = timeout_s,
          .size = size,
          .rank = rank,
          .master_address = "127.0.0.1",
          .master_port = port,
          .reserved = 0};
}

Outcome Connect(const forebay_ranks_options& options, forebay_ranks** ranks) {
  return Do([&](char** m) { return forebay_ranks_connect(&options, ranks, m); });
}
Outcome Wait(forebay_ranks* ranks) {
  return Do([&](char** m) { return forebay_ranks_barrier(ranks, m); });
}
Outcome Sum(forebay_ranks* ranks, std::vector<float>& values) {
  return Do([&](char** m) { return forebay_ranks_sum(ranks, values.data(), values.size(), m); });
}

// Calls body(ranks, rank) on a thread for each rank, which are connected.
void OnRanks(int32_t size, const std::function<void(forebay_ranks*, int32_t)>& body) {
  const int32_t port = FreePort();
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      forebay_ranks* ranks = nullptr;
      EXPECT_THAT(Connect(OptionsOf(rank, size, port), &ranks), IsOk());
      if (ranks != nullptr) body(ranks, rank);
      forebay_ranks_destroy(ranks);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// ---- Ranks alone -------------------------------------------------------------------------------

TEST(CRanks, WithoutALauncherThereIsOne) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    ::unsetenv(name);
  }
  forebay_ranks* ranks = nullptr;
  ASSERT_THAT(Connect({.struct_size = sizeof(forebay_ranks_options)}, &ranks), IsOk());
  EXPECT_EQ(forebay_ranks_rank(ranks), 0);
  EXPECT_EQ(forebay_ranks_size(ranks), 1);
  EXPECT_EQ(forebay_ranks_local_rank(ranks), 0);
  EXPECT_THAT(Wait(ranks), IsOk());
  std::vector<float> values = {1, -2};
  EXPECT_THAT(Sum(ranks, values), IsOk());
  EXPECT_THAT(values, ElementsAre(1, -2));
  forebay_ranks_destroy(ranks);
}

TEST(CRanks, WhatCannotBeIsAnError) {
  const auto is_usage = [](const forebay_ranks_options& options, const char* says) {
    forebay_ranks* ranks = nullptr;
    EXPECT_THAT(Connect(options, &ranks), Is(FOREBAY_USAGE, says));
    EXPECT_EQ(ranks, nullptr);
  };
  is_usage(OptionsOf(2, 2, 20000), "rank is 2 and size 2");
  is_usage(OptionsOf(-1, 2, 20000), "rank is -1");
  is_usage(OptionsOf(0, -1, 20000), "size -1");
  is_usage(OptionsOf(0, 1 << 17, 20000), "size 131072");
  is_usage(OptionsOf(0, 0, 20000), "Set all of them");
  is_usage(OptionsOf(0, 2, 0), "master_port is 0");
  is_usage(OptionsOf(0, 2, 65535), "master_port is 65535");
  is_usage(OptionsOf(0, 2, 20000, -1), "timeout_s is -1");
  is_usage(OptionsOf(0, 2, 20000, std::numeric_limits<double>::quiet_NaN()), "timeout_s is nan");
  forebay_ranks_options options = OptionsOf(0, 2, 20000);
  options.master_address = nullptr;
  is_usage(options, "master_address");
  options = OptionsOf(0, 2, 20000);
  options.struct_size = 1;
  is_usage(options, "struct_size");
  EXPECT_THAT(Do([](char** m) { return forebay_ranks_connect(nullptr, nullptr, m); }),
              Is(FOREBAY_USAGE, "ranks"));
  EXPECT_THAT(Wait(nullptr), Is(FOREBAY_USAGE, "ranks"));
  EXPECT_EQ(forebay_ranks_rank(nullptr), -1);
  EXPECT_EQ(forebay_ranks_size(nullptr), -1);
  EXPECT_EQ(forebay_ranks_local_rank(nullptr), -1);
  forebay_ranks_destroy(nullptr);
}

TEST(CRanks, AddUp) {
  OnRanks(3, [](forebay_ranks* ranks, int32_t rank) {
    EXPECT_EQ(forebay_ranks_rank(ranks), rank);
    EXPECT_EQ(forebay_ranks_size(ranks), 3);
    std::vector<float> values = {1.0f * static_cast<float>(rank), 10, 0.5f};
    EXPECT_THAT(Sum(ranks, values), IsOk());
    EXPECT_THAT(values, ElementsAre(3, 30, 1.5f));
    EXPECT_THAT(Wait(ranks), IsOk());
    values.clear();
    EXPECT_THAT(Sum(ranks, values), IsOk());
  });
}

TEST(CRanks, AddUpAndGatherParts) {
  OnRanks(2, [](forebay_ranks* ranks, int32_t rank) {
    const std::vector<int64_t> offsets = {0, 1, 3};
    std::vector<float> values = {1, 2, 4};
    const auto sum = [&](const int64_t* parts) {
      return Do([&](char** m) { return forebay_ranks_sum_parts(ranks, values.data(), parts, m); });
    };
    EXPECT_THAT(sum(offsets.data()), IsOk());
    EXPECT_EQ(values, rank == 0 ? std::vector<float>({2, 2, 4}) : std::vector<float>({1, 4, 8}));
    std::string bytes = rank == 0 ? "a--" : "-bc";
    EXPECT_THAT(Do([&](char** m) {
                  return forebay_ranks_gather_parts(ranks, bytes.data(), offsets.data(), m);
                }),
                IsOk());
    EXPECT_EQ(bytes, "abc");
    const std::vector<int64_t> falling = {0, 2, 1}, late = {1, 1, 3};
    EXPECT_THAT(sum(falling.data()), Is(FOREBAY_USAGE, "offsets of parts begin at 0"));
    EXPECT_THAT(sum(late.data()), Is(FOREBAY_USAGE, "offsets of parts begin at 0"));
    EXPECT_THAT(sum(nullptr), Is(FOREBAY_USAGE, "offsets"));
  });
}

TEST(CRanks, OneThatDoesNotComeIsNamed) {
  const int32_t port = FreePort();
  forebay_ranks* ranks = nullptr;
  EXPECT_THAT(Connect(OptionsOf(0, 2, port, 0.5), &ranks),
              Is(FOREBAY_ENVIRONMENT, "timeout_s): 1."));
  EXPECT_THAT(Connect(OptionsOf(1, 2, port, 0.5), &ranks), Is(FOREBAY_ENVIRONMENT, "timeout_s)"));
  EXPECT_EQ(ranks, nullptr);
}

TEST(CRanks, CallsThatDifferNameBoth) {
  OnRanks(2, [](forebay_ranks* ranks, int32_t rank) {
    std::vector<float> values(5);
    const Outcome outcome = rank == 0 ? Wait(ranks) : Sum(ranks, values);
    EXPECT_THAT(outcome, Is(FOREBAY_ENVIRONMENT, "barrier"));
    EXPECT_THAT(outcome, Is(FOREBAY_ENVIRONMENT, "all-reduce of 5 fp32 values"));
    EXPECT_EQ(Wait(ranks).code, FOREBAY_ENVIRONMENT);  // they do not go on
  });
}

TEST(CRanks, OneThatAbortsEndsWhatIsUnderWayOnAll) {
  OnRanks(3, [](forebay_ranks* ranks, int32_t rank) {
    EXPECT_THAT(Wait(ranks), IsOk());
    if (rank == 1) {
      // Its own call waits, and nobody comes to that.
      std::thread call([&] { EXPECT_NE(Wait(ranks).code, FOREBAY_OK); });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      forebay_ranks_abort(ranks);
      call.join();
      return;
    }
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::vector<float> values(3);
    const Outcome outcome = rank == 0 ? Wait(ranks) : Sum(ranks, values);
    EXPECT_THAT(outcome, Is(FOREBAY_INTERRUPTED, "rank 1 of 3"));
    EXPECT_THAT(outcome, Is(FOREBAY_INTERRUPTED, "told to stop"));
  });
  forebay_ranks_abort(nullptr);
}

TEST(CRanks, OneThatLeavesIsNamed) {
  OnRanks(2, [](forebay_ranks* ranks, int32_t rank) {
    EXPECT_THAT(Wait(ranks), IsOk());
    if (rank == 1) return;
    EXPECT_THAT(Wait(ranks), Is(FOREBAY_ENVIRONMENT, "rank 1 of 2"));
  });
}

// ---- Their layers ------------------------------------------------------------------------------

class CRanksLayers : public ::testing::TestWithParam<int32_t> {
 protected:
  Settings SettingsOf(forebay_ranks* ranks) const {
    Settings settings;
    settings.ranks = ranks;
    settings.zero_stage = GetParam();
    return settings;
  }
  const TemporaryFolder folder_;
  const std::string store_ = folder_.Path("store");
};

// With the same gradients on each their mean is what one process has.
TEST_P(CRanksLayers, HaveTheBitsOfOneProcess) {
  for (const int32_t in_backward : {0, 1}) {
    const Settings alone = {.update_in_backward = in_backward};
    const std::vector<float> expected = AllAfter(alone, 5, 2.0);
    const std::string store = store_ + std::to_string(in_backward);
    OnRanks(2, [&](forebay_ranks* ranks, int32_t) {
      Settings settings = SettingsOf(ranks);
      settings.update_in_backward = in_backward;
      {
        Layers layers(store, settings);
        ASSERT_THAT(layers.planned(), IsOk());
        EXPECT_EQ(forebay_layers_exists(layers), 0);
        layers.Create();
        for (const int step : {1, 2, 3}) layers.Step(step, 2.0);
        EXPECT_THAT(layers.Commit(), IsOk());
        layers.Step(4, 2.0);  // is lost
      }
      Layers layers(store, settings);
      EXPECT_EQ(forebay_layers_exists(layers), 1);
      ASSERT_THAT(layers.Open(), IsOk());
      EXPECT_EQ(forebay_layers_committed_step(layers), 3);
      for (const int step : {4, 5}) layers.Step(step, 2.0);
      EXPECT_EQ(layers.All(), expected);
    });
  }
}

TEST_P(CRanksLayers, KeepTheirRanks) {
  const int32_t port = FreePort();
  OnRanks(2, [&](forebay_ranks* connected, int32_t rank) {
    // Others, which end before the layers.
    forebay_ranks* ranks = nullptr;
    ASSERT_THAT(Connect(OptionsOf(rank, 2, port), &ranks), IsOk());
    Layers layers(store_, SettingsOf(ranks));
    forebay_ranks_destroy(ranks);
    layers.Create();
    layers.Step(1);
    EXPECT_THAT(layers.Commit(), IsOk());
    EXPECT_THAT(Wait(connected), IsOk());
  });
}

// The other rank has the reason, and what is committed stands.
TEST_P(CRanksLayers, DamageOnOneRankEndsTheOthersWithItsReason) {
  OnRanks(2, [&](forebay_ranks* ranks, int32_t) {
    Layers layers(store_, SettingsOf(ranks));
    layers.Create();
    layers.Step(1);
    EXPECT_THAT(layers.Commit(), IsOk());
  });
  const std::string damaged = store_ + "/rank-1-of-2/weights.fbs";
  std::filesystem::copy(store_, folder_.Path("whole"), std::filesystem::copy_options::recursive);
  for (const bool is_short : {false, true}) {
    if (is_short) {
      std::filesystem::resize_file(damaged, 4096);
    } else {
      const std::string noise(std::filesystem::file_size(damaged), 'x');
      std::ofstream(damaged) << noise;
    }
    std::array<Outcome, 2> ends;
    OnRanks(2, [&](forebay_ranks* ranks, int32_t rank) {
      Layers layers(store_, SettingsOf(ranks));
      Outcome& end = ends[static_cast<size_t>(rank)];
      end = layers.Open();
      if (end.code != FOREBAY_OK) return;
      EXPECT_THAT(layers.Begin(), IsOk());
      EXPECT_THAT(layers.Expect({0, 1, 2, 3}), IsOk());
      for (int32_t layer = 0; layer < kNumLayers && end.code == FOREBAY_OK; ++layer) {
        forebay_lease* lease = nullptr;
        end = layers.Acquire(layer, &lease);
        forebay_lease_release(lease);
      }
      // A rank that has whole layers waits for no other before the step ends.
      if (end.code == FOREBAY_OK) end = Wait(ranks);
    });
    EXPECT_NE(ends[1].code, FOREBAY_OK);
    EXPECT_NE(ends[1].code, FOREBAY_ENVIRONMENT) << ends[1].message;
    EXPECT_NE(ends[0].code, FOREBAY_OK);
    EXPECT_THAT(ends[0].message, ::testing::HasSubstr("rank 1"));
    EXPECT_THAT(ends[0].message, ::testing::HasSubstr("weights.fbs"));
  }
  OnRanks(2, [&](forebay_ranks* ranks, int32_t) {
    Layers layers(folder_.Path("whole"), SettingsOf(ranks));
    EXPECT_THAT(layers.Open(), IsOk());
    EXPECT_EQ(forebay_layers_committed_step(layers), 1);
  });
}

TEST_P(CRanksLayers, OtherSettingsOfAStepAreRefusedOnAll) {
  OnRanks(2, [&](forebay_ranks* ranks, int32_t rank) {
    Layers layers(store_, SettingsOf(ranks));
    layers.Create();
    EXPECT_THAT(layers.Begin(rank == 0 ? 1.0 : 2.0), IsOk());
    ++layers.Count();
    layers.Gradients(1);
    EXPECT_THAT(layers.Finish(), IsOk());
    EXPECT_THAT(layers.Update(), Is(FOREBAY_USAGE, "rank 1"));
    EXPECT_EQ(forebay_layers_step(layers), 0);
    forebay_layers_abandon(layers);
    layers.Step(1);  // they go on
    EXPECT_EQ(forebay_layers_step(layers), 1);
  });
}

TEST_P(CRanksLayers, OtherOptionsAreRefusedBeforeThereIsAStore) {
  OnRanks(2, [&](forebay_ranks* ranks, int32_t rank) {
    Settings settings = SettingsOf(ranks);
    if (rank == 1) settings.weight_dtype = FOREBAY_F32;
    {
      Layers layers(store_, settings);
      EXPECT_EQ(forebay_layers_exists(layers), -1);
      EXPECT_THAT(layers.Open(), Is(FOREBAY_USAGE, "weights"));
      EXPECT_THAT(Do([&](char** m) { return forebay_layers_create(layers, m); }),
                  Is(FOREBAY_USAGE, "weights"));
    }
    Layers layers(store_, SettingsOf(ranks));
    EXPECT_EQ(forebay_layers_exists(layers), 0);
    EXPECT_THAT(layers.Open(), Is(FOREBAY_BAD_INPUT, "no store"));
    layers.Create();
    EXPECT_THAT(Do([&](char** m) { return forebay_layers_create(layers, m); }),
                Is(FOREBAY_USAGE, "already"));
  });
}

// A store that only one rank cannot open, or make.
TEST_P(CRanksLayers, WhatOneRankCannotDoNoneDoes) {
  OnRanks(2, [&](forebay_ranks* ranks, int32_t) {
    Layers layers(store_, SettingsOf(ranks));
    layers.Create();
  });
  for (const char* name : {"/rank-1-of-2/manifest.json", "/rank-1-of-2/copy/manifest.json"}) {
    std::filesystem::resize_file(store_ + name, 40);
  }
  const std::string blocked = folder_.Path("blocked");
  std::filesystem::create_directory(blocked);
  std::ofstream(blocked + "/rank-1-of-2") << "a file";
  OnRanks(2, [&](forebay_ranks* ranks, int32_t rank) {
    const std::string who = rank == 0 ? "rank 1" : "";
    {
      Layers layers(store_, SettingsOf(ranks));
      EXPECT_THAT(layers.Open(), Is(FOREBAY_CORRUPT, who));
    }
    // They cannot go on behind it: a rank that is damaged has told the others.
    EXPECT_NE(Wait(ranks).code, FOREBAY_OK);
  });
  OnRanks(2, [&](forebay_ranks* ranks, int32_t) {
    Layers layers(blocked, SettingsOf(ranks));
    const Outcome outcome = Do([&](char** m) { return forebay_layers_create(layers, m); });
    EXPECT_NE(outcome.code, FOREBAY_OK);
    EXPECT_THAT(outcome.message, ::testing::HasSubstr("rank-1-of-2"));
  });
}

TEST_P(CRanksLayers, ARankThatGoesCannotBeToldOfAStore) {
  OnRanks(2, [&](forebay_ranks* ranks, int32_t rank) {
    if (rank == 1) return;
    Layers layers(store_, SettingsOf(ranks));
    EXPECT_EQ(forebay_layers_exists(layers), -1);
    EXPECT_THAT(layers.Open(), Is(FOREBAY_ENVIRONMENT, "rank 1"));
  });
}

TEST_P(CRanksLayers, StageAndRanksAreChecked) {
  OnRanks(2, [&](forebay_ranks* ranks, int32_t) {
    Settings settings = SettingsOf(ranks);
    for (const int32_t stage : {-1, 4}) {
      settings.zero_stage = stage;
      EXPECT_THAT(Layers(store_, settings).planned(), Is(FOREBAY_USAGE, "zero_stage"));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, CRanksLayers, ::testing::Values(0, 1, 3));

}  // namespace
}  // namespace forebay
