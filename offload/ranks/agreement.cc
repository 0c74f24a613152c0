#include "forebay/offload/ranks/agreement.h"

#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/collective/gather_values.h"

namespace forebay {

absl::Status AgreeOnSettings(const Json& own, Communicator& ranks) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> records, ranks.GatherRecords(own.dump()));
  std::vector<Json> settings;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    FOREBAY_ASSIGN_OR_RETURN(settings.emplace_back(),
                             ParseJson(records[rank], fmt::format("settings of rank {}", rank)));
  }
  for (size_t rank = 1; rank < settings.size(); ++rank) {
    for (const auto& [name, value] : settings.front().items()) {
      const Json other = settings[rank].value(name, Json());
      if (other == value) continue;
      return UsageError(fmt::format(
          "the ranks of this run do not agree: {} is {} on rank 0 ({}), and {} on rank {} ({}). "
          "Start all of them with the same options and files, and say what each would choose for "
          "itself",
          name, value.dump(), ranks.host(0), other.dump(), rank,
          ranks.host(static_cast<int>(rank))));
    }
  }
  return absl::OkStatus();
}

absl::Status AgreeThatAllCan(const absl::Status& own, Communicator& ranks) {
  const Json mine = {{"exit_code", static_cast<int>(own.ok() ? ExitCode::kOk : ExitCodeOf(own))},
                     {"message", MessageOf(own)}};
  const absl::StatusOr<std::vector<std::string>> records = ranks.GatherRecords(mine.dump());
  if (!own.ok()) return own;
  FOREBAY_RETURN_IF_ERROR(records.status());
  for (size_t rank = 0; rank < records->size(); ++rank) {
    FOREBAY_ASSIGN_OR_RETURN(const Json its,
                             ParseJson((*records)[rank], fmt::format("what rank {} can do", rank)));
    const auto code = static_cast<ExitCode>(its.value("exit_code", 0));
    if (code == ExitCode::kOk) continue;
    return ErrorOf(code, fmt::format("rank {} ({}): {}", rank, ranks.host(static_cast<int>(rank)),
                                     its.value("message", "")));
  }
  return absl::OkStatus();
}

std::string UpdateTimesOf(const Placement& placement) {
  std::string digits;
  for (const UpdateTime time : placement.update_times) {
    digits.push_back(static_cast<char>('0' + static_cast<int>(time)));
  }
  return digits;
}

absl::StatusOr<NewestCommit> FindNewestCommit(TensorStore& store, Communicator& ranks) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<CommitStanding> standings,
                           GatherValues(ranks, StandingOf(store)));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                           ranks.GatherRecords(store.committed().trainer.dump()));
  NewestCommit newest;
  FOREBAY_ASSIGN_OR_RETURN(newest.rank, NewestRank(standings));
  newest.standing = standings[newest.rank];
  FOREBAY_ASSIGN_OR_RETURN(
      newest.trainer, ParseJson(words[newest.rank], fmt::format("commit of rank {}", newest.rank)));
  return newest;
}

}  // namespace forebay
