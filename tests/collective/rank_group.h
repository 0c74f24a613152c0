// Several ranks as threads of a test, each with a communicator of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/collective/communicator.h"
#include "forebay/collective/threads/thread_transport.h"

namespace forebay {

// A GPU where one is emulated, else the host's twin.
Device& DeviceOfTests();

// Pieces of a few hundred bytes, so that small vectors have many.
inline constexpr int64_t kTestScratchBytes = 6000;

enum class TransportOfTests { kThreads, kSlowThreads, kSockets };
std::string NameOf(TransportOfTests transport);

struct RankGroupOptions {
  TransportOfTests transport = TransportOfTests::kThreads;
  int num_ranks = 2;
  double timeout_s = 60;
  std::vector<ThreadFault> faults;  // of kThreads and kSlowThreads
  bool with_nccl = false;           // for device memory
};

// Connected with each other: [num_ranks].
std::vector<std::unique_ptr<Communicator>> ConnectGroup(const RankGroupOptions& options);

// Calls run(communicator) on a thread for each rank, and returns when all have returned. Each
// communicator ends with its thread.
void RunOnRanks(const RankGroupOptions& options, const std::function<void(Communicator&)>& run);

}  // namespace forebay
