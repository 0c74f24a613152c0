#include "forebay/tests/train/ranks/rank_runs.h"

#include <fstream>
#include <memory>
#include <thread>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/train/export/run_state.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/rank_parts.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/start/resolve_options.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

absl::Status TrainRank(TrainOptions options, const RankRuns& runs, Communicator* ranks) {
  const int rank = ranks->rank();
  options.out = RunFolderOfRank(options.out, rank);
  if (runs.change) runs.change(rank, options);
  TrainEnvironment environment = runs.world ? runs.world(rank) : TrainEnvironment{};
  environment.ranks = ranks;
  environment.local_rank = rank;
  SilentObserver observer;
  const auto stop = [&] { return runs.stop && runs.stop(rank); };
  return Train(ResolvedFrom(options, "test"), stop, observer, environment);
}

}  // namespace

std::vector<absl::Status> TrainRanks(const TrainOptions& options, const RankRuns& runs) {
  std::vector<std::unique_ptr<Transport>> transports = CreateThreadRanks(runs.ranks);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (std::unique_ptr<Transport>& transport : transports) {
    auto rank = Communicator::Create(std::move(transport), nullptr, {.timeout_s = runs.timeout_s});
    FOREBAY_CHECK(rank.ok());
    ranks.push_back(*std::move(rank));
  }
  // One that hangs is killed by whoever started it, when another has ended.
  Communicator* hangs = nullptr;
  for (const ThreadFault& fault : runs.ranks.faults) {
    if (fault.kind == ThreadFaultKind::kHangs) hangs = ranks[fault.rank].get();
  }
  std::vector<absl::Status> statuses(ranks.size());
  std::vector<CollectiveTraffic> traffic(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] = TrainRank(options, runs, ranks[rank].get());
      traffic[rank] = ranks[rank]->traffic();
      if (hangs != nullptr) hangs->Abort(EnvironmentError("killed"));
      if (ranks[rank].get() != hangs) ranks[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (runs.traffic != nullptr) *runs.traffic = traffic;
  return statuses;
}

std::string DigestOfRanks(const std::string& out, int num_ranks) {
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
  std::string digest;
  const auto json = ReadRunJson(out);
  EXPECT_TRUE(json.ok()) << json.status();
  if (json.ok() && PartOf(*json).of > 1) {
    EXPECT_EQ(PartOf(*json).of, num_ranks);
    const auto state = RunState::Open(out, engine.get());
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? state->Digest().value_or("") : "";
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto store =
        OpenRunStore(RunFolderOfRank(out, rank), engine.get(), StoreAccess::kReadOnly);
    EXPECT_TRUE(store.ok()) << store.status();
    if (!store.ok()) return "";
    const auto of_rank = StateDigest(**store);
    EXPECT_TRUE(of_rank.ok()) << of_rank.status();
    if (!of_rank.ok()) return "";
    if (rank == 0) digest = *of_rank;
    EXPECT_EQ(*of_rank, digest) << "rank " << rank;
    if (*of_rank != digest) return "";
  }
  return digest;
}

void ExpectEndByALostDisk(const TrainOptions& options) {
  BreakingDisk disk;
  RankRuns runs;
  runs.world = [&](int rank) { return rank == 1 ? OnDisk(&disk) : TrainEnvironment{}; };
  runs.stop = [&](int rank) {
    if (rank == 1 && !StepsInMetrics(RunFolderOfRank(options.out, 1)).empty()) disk.broken = true;
    return false;
  };
  const std::vector<absl::Status> statuses = TrainRanks(options, runs);
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
    EXPECT_THAT(MessageOf(status), testing::HasSubstr("EIO"));
  }
  EXPECT_THAT(MessageOf(statuses[0]), testing::HasSubstr("rank 1 of 2 on thread1"));
}

std::vector<double> FieldOf(const std::string& run_folder, const char* name) {
  std::vector<double> values;
  std::ifstream file(RunPaths(run_folder).metrics);
  for (std::string line; std::getline(file, line);) {
    const Json field = Json::parse(line).value(name, Json());
    values.push_back(field.is_number() ? field.get<double>() : -1);
  }
  return values;
}

std::vector<double> LossesOf(const std::string& run_folder) {
  return FieldOf(run_folder, "loss");
}

}  // namespace forebay
