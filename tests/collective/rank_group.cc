#include "forebay/tests/collective/rank_group.h"

#include <unistd.h>

#include <thread>
#include <utility>

#include "fmt/format.h"
#include "forebay/collective/launch.h"
#include "forebay/collective/nccl/nccl_transport.h"
#include "forebay/collective/sockets/socket_transport.h"
#include "forebay/collective/transport.h"

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

namespace {

// At ports of their own, so that no other test program meets these ranks.
std::vector<std::unique_ptr<Transport>> ConnectBySockets(const RankGroupOptions& options) {
  const Launch launch = {.transport = RankTransport::kSockets,
                         .size = options.num_ranks,
                         .master_address = "localhost",
                         .first_port = 20000 + ::getpid() % 1000 * kNumRankPorts,
                         .job = fmt::format("test {}", ::getpid())};
  std::vector<std::unique_ptr<Transport>> transports(static_cast<size_t>(options.num_ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < options.num_ranks; ++r) {
    threads.emplace_back([&, r] {
      Launch own = launch;
      own.rank = r;
      transports[static_cast<size_t>(r)] = ConnectSockets(own, options.timeout_s).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return transports;
}

// All at the same time, as NCCL wants it.
std::vector<std::unique_ptr<DeviceTransport>> ConnectDevices(
    const RankGroupOptions& options, const std::vector<std::unique_ptr<Transport>>& transports) {
  std::vector<std::unique_ptr<DeviceTransport>> devices(transports.size());
  if (!options.with_nccl) return devices;
  std::vector<std::thread> threads;
  for (size_t r = 0; r < transports.size(); ++r) {
    threads.emplace_back([&, r] {
      devices[r] = ConnectNccl(*transports[r], DeviceOfTests(), options.timeout_s).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return devices;
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> ConnectGroup(const RankGroupOptions& options) {
  const CommunicatorOptions communicator = {.timeout_s = options.timeout_s,
                                            .scratch_bytes = kTestScratchBytes,
                                            .device = &DeviceOfTests()};
  const uint64_t seed = options.transport == TransportOfTests::kSlowThreads ? 11 : 0;
  auto transports = options.transport == TransportOfTests::kSockets
                        ? ConnectBySockets(options)
                        : CreateThreadRanks({options.num_ranks, seed, options.faults});
  auto device_transports = ConnectDevices(options, transports);
  std::vector<std::unique_ptr<Communicator>> group;
  for (size_t r = 0; r < transports.size(); ++r) {
    group.push_back(Communicator::Create(std::move(transports[r]), std::move(device_transports[r]),
                                         communicator)
                        .value());
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
