#include "forebay/train/start/copied_state.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/rank_commits.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/rank_parts.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {
namespace {

using PartStores = std::vector<std::unique_ptr<TensorStore>>;

absl::StatusOr<PartStores> OpenParts(const std::string& out, int num_parts, StoreAccess access,
                                     Engine* engine) {
  PartStores stores;
  for (int part = 0; part < num_parts; ++part) {
    FOREBAY_ASSIGN_OR_RETURN(stores.emplace_back(),
                             OpenRunStore(RunFolderOfRank(out, part), engine, access));
    FOREBAY_RETURN_IF_ERROR(CheckHasCommit(*stores.back()));
  }
  return stores;
}

absl::StatusOr<bool> AreAtOneStep(const std::string& out, int num_parts, Engine* engine) {
  FOREBAY_ASSIGN_OR_RETURN(const PartStores stores,
                           OpenParts(out, num_parts, StoreAccess::kReadOnly, engine));
  return std::ranges::all_of(stores, [&](const auto& store) {
    return store->committed().step == stores.front()->committed().step;
  });
}

// A step that some ranks have published and others have only prepared is published by all.
absl::Status BringToOneStep(const std::string& out, int num_parts, Engine* engine) {
  for (int part = 0; part < num_parts; ++part) {
    // RunState::Open names it.
    if (!IsRunFolder(RunFolderOfRank(out, part))) return absl::OkStatus();
  }
  FOREBAY_ASSIGN_OR_RETURN(const bool are_at_one, AreAtOneStep(out, num_parts, engine));
  if (are_at_one) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const PartStores stores,
                           OpenParts(out, num_parts, StoreAccess::kReadWrite, engine));
  std::vector<CommitStanding> standings;
  for (const auto& store : stores) standings.push_back(StandingOf(*store));
  FOREBAY_ASSIGN_OR_RETURN(const size_t newest, NewestRank(standings));
  const Json trainer = stores[newest]->committed().trainer;
  for (const auto& store : stores) {
    FOREBAY_RETURN_IF_ERROR(BringToStep(standings[newest], trainer, *store));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CopiedState> OpenStateToCopy(const PreparedRun& run) {
  CopiedState copied;
  FOREBAY_ASSIGN_OR_RETURN(copied.run_json, ReadRunJson(run.options.from));
  FOREBAY_RETURN_IF_ERROR(Annotate(CheckIsKept(run.options.from, copied.run_json), "--from"));
  const RankPart part = PartOf(copied.run_json);
  const std::string from = FolderOfAllRanks(run.options.from, part.number);
  if (copied.run_json["state"] != kRunReady || !copied.run_json["fingerprint"].is_object()) {
    return UsageError(fmt::format(
        "--from: the run in '{}' has no step that could be gone on from. Name one that was trained",
        from));
  }
  copied.engine = CreateThreadsEngine({});
  if (run.options.rank == 0 && part.of > 1 && !run.options.dry_run) {
    FOREBAY_RETURN_IF_ERROR(BringToOneStep(from, part.of, copied.engine.get()));
  }
  if (run.ranks != nullptr) FOREBAY_RETURN_IF_ERROR(run.ranks->Barrier());
  FOREBAY_ASSIGN_OR_RETURN(RunState state, RunState::Open(from, copied.engine.get()));
  if (state.layout() != run.options.layout) {
    return UsageError(
        fmt::format("--from: the state of the run in '{}' has layout {}, and this "
                    "one would have {}. Leave out --layout and --precision",
                    from, NameOf(state.layout()), NameOf(run.options.layout)));
  }
  copied.state = std::make_unique<RunState>(std::move(state));
  return copied;
}

}  // namespace forebay
