// A store that begins with the state of another one, of whatever number of ranks. The rest of the
// class is in embedded_run.cc.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/offload/embedded/embedded_run.h"

namespace forebay {
namespace {

using PartStores = std::vector<std::unique_ptr<TensorStore>>;

absl::StatusOr<PartStores> OpenAllParts(const std::vector<std::string>& folders, int num_ranks,
                                        Engine* engine) {
  PartStores stores;
  for (int rank = 0; rank < num_ranks; ++rank) {
    FOREBAY_ASSIGN_OR_RETURN(stores.emplace_back(),
                             TensorStore::Open(FoldersOfRank(folders, rank, num_ranks), engine, "",
                                               StoreAccess::kReadOnly));
    const TensorStore& first = *stores.front();
    const TensorStore& store = *stores.back();
    if (store.uuid() != first.uuid()) {
      return CorruptError(fmt::format(
          "the stores in '{}' and '{}' do not belong together. Put back those of one run",
          first.directory(), store.directory()));
    }
    if (store.committed().step == first.committed().step) continue;
    return CorruptError(fmt::format(
        "the store in '{}' is at step {}, and that in '{}' at step {}. Where a crash has left them "
        "so, {} ranks that go on with them bring them to one step",
        first.directory(), first.committed().step, store.directory(), store.committed().step,
        num_ranks));
  }
  return stores;
}

}  // namespace

absl::StatusOr<EmbeddedRun::StateToCopy> EmbeddedRun::OpenStateToCopy(
    const std::vector<std::string>& folders) const {
  StateToCopy from;
  FOREBAY_ASSIGN_OR_RETURN(const int num_ranks, NumRanksOfStores(folders));
  from.engine = CreateThreadsEngine({});
  FOREBAY_ASSIGN_OR_RETURN(PartStores stores, OpenAllParts(folders, num_ranks, from.engine.get()));
  // Raw tensors are each rank's own. Ranks that were not there before take those of the first.
  const int rank = options_.ranks == nullptr ? 0 : options_.ranks->rank();
  from.part_of_raw = rank < num_ranks ? rank : 0;
  auto parts = std::make_shared<const InventoryParts>(inventory_, num_ranks);
  if (num_ranks > 1 && HasTensorsOf(*stores.front(), inventory_)) {
    // Each has everything.
    std::swap(stores.front(), stores[static_cast<size_t>(from.part_of_raw)]);
    stores.resize(1);
    from.part_of_raw = 0;
    parts = std::make_shared<const InventoryParts>(inventory_, 1);
  }
  for (int part = 0; part < parts->num_parts(); ++part) {
    const bool has_everything = parts->num_parts() == 1;
    FOREBAY_RETURN_IF_ERROR(CheckStoreHas(*stores[static_cast<size_t>(part)],
                                          has_everything ? inventory_ : parts->Of(part)));
  }
  from.state = std::make_unique<DividedState>(std::move(parts), std::move(stores));
  return from;
}

absl::Status EmbeddedRun::CreateFrom(const std::vector<std::string>& folders) {
  FOREBAY_RETURN_IF_ERROR(CheckCanBegin("create_from"));
  FOREBAY_RETURN_IF_ERROR(AgreeOnOptions());
  absl::StatusOr<StateToCopy> from = OpenStateToCopy(folders);
  FOREBAY_RETURN_IF_ERROR(AllCan(from.status()));
  FOREBAY_RETURN_IF_ERROR(BeginCreate());
  absl::StatusOr<std::unique_ptr<TensorStore>> store = FinishCopy(*from);
  filler_.reset();
  FOREBAY_RETURN_IF_ERROR(FinishCreation(store));
  return Begin(*std::move(store));
}

absl::StatusOr<std::unique_ptr<TensorStore>> EmbeddedRun::FinishCopy(const StateToCopy& from) {
  const int rank = options_.ranks == nullptr ? 0 : options_.ranks->rank();
  filler_->FillTilesBy(
      CopyOf(from.state.get(), &own_inventory(), parts_.get(), rank, &plan_.tiles));
  TensorStore& raw = from.state->store(from.part_of_raw);
  for (int tensor = 0; tensor < static_cast<int>(inventory_.tensors().size()); ++tensor) {
    if (!inventory_.tensors()[tensor].raw) continue;
    FOREBAY_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, filler_->BytesOf(tensor));
    FOREBAY_RETURN_IF_ERROR(raw.ReadRaw(raw.inventory().tensors()[tensor], 0, bytes));
  }
  return filler_->Finish(raw.committed());
}

}  // namespace forebay
