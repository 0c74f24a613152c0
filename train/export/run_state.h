// All of a run's committed state: the store of a run, or where ranks divide it those of all ranks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/swap/tiles/inventory_parts.h"
#include "forebay/train/export/weights_source.h"

namespace forebay {

// Used by one thread.
class RunState final : public WeightsSource {
 public:
  // Opens them to read, with the folder of any rank of the run. BadInputError names the folder of a
  // rank that is not there; CorruptError where their steps differ, or a part is another's or of
  // another run; the errors of OpenRunStore. `engine` must outlive it.
  static absl::StatusOr<RunState> Open(const std::string& run_directory, Engine* engine);

  const Inventory& inventory() const override { return parts_->whole(); }
  Layout layout() const override { return stores_.front()->tiles().layout(); }
  const StoreUuid& uuid() const override { return stores_.front()->uuid(); }
  int64_t step() const override { return stores_.front()->committed().step; }
  absl::Status ReadMasters(const TensorSpec& tensor, int64_t first_elem,
                           std::span<float> out) const override;
  absl::Status ReadW16(const TensorSpec& tensor, int64_t first_elem,
                       std::span<uint16_t> out) const override;
  // The stored bytes of a plane that belong to so many elements of a tensor, as
  // TensorStore::ReadTilePlane has them. Requires: its requirements; of `first_elem` too, of
  // scales.
  absl::Status ReadPlane(const TensorSpec& tensor, TilePlane kind, int64_t first_elem,
                         int64_t num_elems, std::span<std::byte> out) const;
  // The commit of the first part; those of all parts are of one step of one run.
  const CommitInfo& committed() const { return stores_.front()->committed(); }
  // As StateDigest (run_folder.h) of a store with the same state.
  absl::StatusOr<std::string> Digest() const;

 private:
  template <typename T, typename Read>
  absl::Status ReadPieces(const TensorSpec& tensor, int64_t first_elem, std::span<T> out,
                          const Read& read) const;
  RunState(std::shared_ptr<const InventoryParts> parts,
           std::vector<std::unique_ptr<TensorStore>> stores)
      : parts_(std::move(parts)), stores_(std::move(stores)) {}

  std::shared_ptr<const InventoryParts> parts_;       // one part: a store with the whole
  std::vector<std::unique_ptr<TensorStore>> stores_;  // by part
};

}  // namespace forebay
