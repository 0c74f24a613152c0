#include "forebay/tests/collective/rank_group.h"

#include <thread>
#include <utility>

#include "forebay/base/check.h"

namespace forebay {

Device& DeviceOfTests() {
  static Device* const device = ChooseDevice().device.release();
  return *device;
}

std::string NameOf(TransportOfTests transport) {
  switch (transport) {
    case TransportOfTests::kThreads:
      return "Threads";
    case TransportOfTests::kSlowThreads:
      return "SlowThreads";
    case TransportOfTests::kSockets:
      return "Sockets";
  }
  return "";
}

std::vector<std::unique_ptr<Communicator>> ConnectGroup(const RankGroupOptions& options) {
  const CommunicatorOptions communicator = {.timeout_s = options.timeout_s,
                                            .scratch_bytes = kTestScratchBytes,
                                            .device = &DeviceOfTests()};
  const uint64_t seed = options.transport == TransportOfTests::kSlowThreads ? 11 : 0;
  auto transports =
      CreateThreadRanks({.num_ranks = options.num_ranks, .seed = seed, .faults = options.faults});
  std::vector<std::unique_ptr<Communicator>> group;
  for (auto& transport : transports) {
    group.push_back(Communicator::Create(std::move(transport), nullptr, communicator).value());
  }
  return group;
}

void RunOnRanks(const RankGroupOptions& options, const std::function<void(Communicator&)>& run) {
  std::vector<std::unique_ptr<Communicator>> group = ConnectGroup(options);
  std::vector<std::thread> threads;
  for (auto& communicator : group) {
    threads.emplace_back([&run, &communicator] {
      run(*communicator);
      communicator.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace forebay
