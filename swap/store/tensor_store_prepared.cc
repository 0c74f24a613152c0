// A step that was prepared and not published: the other slot holds it, but for its record.
#include <memory>
#include <optional>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {

std::optional<DecodedCopy> TensorStore::Impl::PreparedRecord() {
  FOREBAY_CHECK(has_commit && AllTilesAre(TileProgress::kCommitted));
  if (manifest.num_slots == 1) return std::nullopt;
  std::optional<DecodedCopy> found = RecordOfTables(working_slot());
  const bool follows = found.has_value() && found->record.sequence == record.sequence + 1 &&
                       found->record.previous_hash == record_hash && IsOfThisStore(found->record);
  return follows ? found : std::nullopt;
}

std::optional<CommitInfo> TensorStore::Prepared() {
  const std::optional<DecodedCopy> found = impl_->PreparedRecord();
  if (!found.has_value()) return std::nullopt;
  absl::StatusOr<Json> trainer = ParseJson(found->record.trainer, "a prepared commit");
  if (!trainer.ok()) return std::nullopt;  // no commit that this program has written
  return CommitInfo{found->record.step, *std::move(trainer)};
}

absl::Status TensorStore::PublishPrepared() {
  FOREBAY_RETURN_IF_ERROR(impl_->CheckTakesCommits());
  const std::optional<DecodedCopy> found = impl_->PreparedRecord();
  FOREBAY_CHECK(found.has_value());
  const auto block = std::make_unique<RecordBlock>();
  EncodeCommitRecord(found->record, block->bytes);
  impl_->failure = impl_->WriteCopies(block->bytes);
  if (impl_->failure.ok()) impl_->failure = impl_->RecoverCommit();
  return impl_->failure;
}

int64_t TensorStore::StepOfTiles() const {
  FOREBAY_CHECK(impl_->has_commit);
  return impl_->RecordInForce().step;
}

}  // namespace forebay
