// Runs of the toy model on several ranks, each a thread of the test.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "forebay/collective/communicator.h"
#include "forebay/collective/threads/thread_transport.h"
#include "forebay/tests/train/faults/toy_run.h"

namespace forebay {

struct RankRuns {
  ThreadRanksOptions ranks = {.num_ranks = 2};
  double timeout_s = 60;
  // Changes what one rank is given; may be empty.
  std::function<void(int rank, TrainOptions& options)> change;
  // The same of the world around it; may be empty.
  std::function<TrainEnvironment(int rank)> world;
  // Takes what each rank sent and received; nullptr: nobody asks.
  std::vector<CollectiveTraffic>* traffic = nullptr;
  // Whether a rank is asked to stop, which it asks often; may be empty.
  std::function<bool(int rank)> stop;
};

// The status that each rank's Train returned.
std::vector<absl::Status> TrainRanks(const TrainOptions& options, const RankRuns& runs = {});

// The disk of rank 1, one of two, breaks behind its first step: both must end with that.
void ExpectEndByALostDisk(const TrainOptions& options);

// The digest that all ranks have, or where they divide the state that of all together; "" with a
// failure of the test where they differ.
std::string DigestOfRanks(const std::string& out, int num_ranks);
// The losses of a rank's metrics.jsonl.
std::vector<double> LossesOf(const std::string& run_folder);
// A field of every line; -1: none, or null.
std::vector<double> FieldOf(const std::string& run_folder, const char* name);

}  // namespace forebay
