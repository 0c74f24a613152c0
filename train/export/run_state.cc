#include "forebay/train/export/run_state.h"

#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/model/decoder_config.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/rank_parts.h"
#include "forebay/train/files/run_files.h"

namespace forebay {
namespace {

absl::StatusOr<std::unique_ptr<TensorStore>> OpenPart(const std::string& folder,
                                                      const RankPart& part, Engine* engine) {
  if (!IsRunFolder(folder)) {
    return BadInputError(
        fmt::format("'{}' is not there, or is no run folder: it has part {} of the {} that this "
                    "run's state is divided into. Put it back, or mount its disk there",
                    folder, part.number, part.of));
  }
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(folder));
  if (const RankPart its = PartOf(json); its != part) {
    return CorruptError(fmt::format(
        "'{}' has part {} of {} of a run's state, and part {} of {} was expected. Put back the "
        "folders that belong together",
        folder, its.number, its.of, part.number, part.of));
  }
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                           OpenRunStore(folder, engine, StoreAccess::kReadOnly));
  FOREBAY_RETURN_IF_ERROR(CheckHasCommit(*store));
  return store;
}

// Whether what two folders have was committed together.
absl::Status CheckIsOfOneRun(const std::string& first_folder, const TensorStore& first,
                             const std::string& folder, const TensorStore& store, int num_parts) {
  const CommitInfo& expected = first.committed();
  const CommitInfo& its = store.committed();
  if (its.step != expected.step) {
    return CorruptError(fmt::format(
        "the state in '{}' is of step {}, that in '{}' of step {}. Where a crash has left them so, "
        "'forebay train --resume' with {} ranks brings them to one step; else put back the folders "
        "that belong together",
        first_folder, expected.step, folder, its.step, num_parts));
  }
  const Json history = HistoryOf(expected.trainer), its_history = HistoryOf(its.trainer);
  if (its_history == history) return absl::OkStatus();
  return CorruptError(
      fmt::format("the parts of the state in '{}' and '{}' do not belong together: step {} is {} "
                  "in the one and "
                  "{} in the other. Put back the folders that belong together",
                  first_folder, folder, its.step, history.dump(), its_history.dump()));
}

// One store has whole layers.
std::shared_ptr<const InventoryParts> PartsOfStore(const TensorStore& store) {
  return std::make_shared<InventoryParts>(store.inventory(), 1);
}

}  // namespace

absl::StatusOr<RunState> RunState::Open(const std::string& run_directory, Engine* engine) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadRunJson(run_directory));
  const RankPart own = PartOf(json);
  if (own.of == 1) {
    FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<TensorStore> store,
                             OpenPart(run_directory, own, engine));
    std::shared_ptr<const InventoryParts> whole = PartsOfStore(*store);
    std::vector<std::unique_ptr<TensorStore>> stores;
    stores.push_back(std::move(store));
    return RunState(DividedState(std::move(whole), std::move(stores)));
  }
  const std::string out = FolderOfAllRanks(run_directory, own.number);
  std::vector<std::unique_ptr<TensorStore>> stores;
  for (int number = 0; number < own.of; ++number) {
    const std::string folder = RunFolderOfRank(out, number);
    FOREBAY_ASSIGN_OR_RETURN(stores.emplace_back(), OpenPart(folder, {number, own.of}, engine));
    FOREBAY_RETURN_IF_ERROR(CheckIsOfOneRun(out, *stores.front(), folder, *stores.back(), own.of));
  }
  const std::string files = RunPaths(run_directory).files;
  FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig config, ReadDecoderConfig(files));
  std::shared_ptr<const InventoryParts> parts = PartsOf(config, own);
  for (int number = 0; number < own.of; ++number) {
    FOREBAY_RETURN_IF_ERROR(CheckWeightsAreOf(parts->Of(number), stores[number]->inventory(),
                                              JoinPath(files, kConfigName)));
  }
  return RunState(DividedState(std::move(parts), std::move(stores)));
}

absl::Status RunState::ReadMasters(const TensorSpec& tensor, int64_t first_elem,
                                   std::span<float> out) const {
  return state_.ReadPieces(
      tensor, first_elem, out,
      [](TensorStore& store, const TensorSpec& own, int64_t first, auto values) {
        return store.ReadTensor(own, TensorPlane::kMaster, first, values);
      });
}

absl::Status RunState::ReadW16(const TensorSpec& tensor, int64_t first_elem,
                               std::span<uint16_t> out) const {
  return state_.ReadPieces(tensor, first_elem, out,
                           [](TensorStore& store, const TensorSpec& own, int64_t first,
                              auto values) { return store.ReadTensorW16(own, first, values); });
}

absl::StatusOr<std::string> RunState::Digest(const DigestProgress& progress) const {
  std::vector<TensorStore*> stores;
  for (int part = 0; part < state_.num_parts(); ++part) stores.push_back(&state_.store(part));
  return StateDigest(inventory(), stores, progress);
}

}  // namespace forebay
