// Publishing the gradients of a step, and finding them again after a crash (docs/formats.md,
// "intent.fbs").
#include <memory>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/swap/records/gradient_seals.h"
#include "forebay/swap/records/intent_record.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {
namespace {

std::array<uint8_t, 16> DigestOf(std::span<const std::byte> table) {
  Xxh3_128 hash;
  hash.Update(table);
  return hash.Digest();
}

}  // namespace

int64_t TensorStore::IntentBytes(const TileMap& tiles) {
  return kIntentRecordBytes + GradientSeals::TableBytes(tiles);
}

absl::Status TensorStore::Impl::EnsureIntentFile() {
  if (intent_file >= 0) return absl::OkStatus();
  const std::string path = JoinPath(directories.front(), kIntentName);
  FOREBAY_ASSIGN_OR_RETURN(const bool is_there, ProbePath(path));
  FOREBAY_ASSIGN_OR_RETURN(DirectFile file, OpenDirectFile(path, {.create = !is_there,
                                                                  .size_bytes = IntentBytes(tiles),
                                                                  .reserve = reserve_space,
                                                                  .direct = engine->direct()}));
  return AddFile(std::move(file), path, intent_file);
}

// Its own, and those of the gradients.
std::vector<int> TensorStore::Impl::IntentFiles() const {
  std::vector<int> numbers = {intent_file};
  for (const Stripe& stripe : stripes) {
    if (stripe.scratch_file >= 0) numbers.push_back(stripe.scratch_file);
  }
  return numbers;
}

absl::Status TensorStore::PublishIntent(const StepIntent& intent, std::span<std::byte> table) {
  Impl& impl = *impl_;
  FOREBAY_CHECK(impl.intent_file >= 0 && impl.has_commit && impl.manifest.num_slots > 1);
  FOREBAY_CHECK(static_cast<int64_t>(table.size()) == GradientSeals::TableBytes(impl.tiles));
  IntentRecord record;
  FOREBAY_ASSIGN_OR_RETURN(record.trainer, TrainerText(intent.trainer));
  record.uuid = impl.manifest.uuid;
  record.step = intent.step;
  record.commit_hash = impl.record_hash;
  record.gradient_elem_bytes = intent.gradient_elem_bytes;
  record.table_digest = DigestOf(table);
  const auto block = std::make_unique<RecordBlock>();
  EncodeIntentRecord(record, block->bytes);

  // In any order: the record stands for nothing but the table whose digest it has, and the table
  // for nothing but the gradients that it fits.
  IoOp of_record;
  IoOp of_table;
  impl.Start(of_record, IoKind::kWrite, IoClass::kDemand, impl.intent_file, 0, block->bytes);
  impl.Start(of_table, IoKind::kWrite, IoClass::kDemand, impl.intent_file, kIntentRecordBytes,
             table);
  absl::Status status = impl.engine->Wait(of_record);
  status.Update(impl.engine->Wait(of_table));
  if (status.ok()) {
    status = impl.Flush(impl.IntentFiles());
  }
  return Annotate(status, fmt::format("keeping the gradients of step {} in {} failed", intent.step,
                                      impl.Where()));
}

absl::StatusOr<std::optional<StepIntent>> TensorStore::FindIntent(std::span<std::byte> table) {
  Impl& impl = *impl_;
  FOREBAY_CHECK(impl.intent_file >= 0 && impl.has_commit);
  FOREBAY_CHECK(static_cast<int64_t>(table.size()) == GradientSeals::TableBytes(impl.tiles));
  const auto block = std::make_unique<RecordBlock>();
  FOREBAY_RETURN_IF_ERROR(impl.RunOp(IoKind::kRead, impl.intent_file, 0, block->bytes));
  const std::optional<IntentRecord> record = DecodeIntentRecord(block->bytes);
  if (!record.has_value() || record->uuid != impl.manifest.uuid ||
      record->commit_hash != impl.record_hash) {
    return std::nullopt;
  }
  FOREBAY_RETURN_IF_ERROR(impl.RunOp(IoKind::kRead, impl.intent_file, kIntentRecordBytes, table));
  if (DigestOf(table) != record->table_digest) return std::nullopt;
  absl::StatusOr<Json> trainer = ParseJson(record->trainer, kIntentName);
  if (!trainer.ok()) return std::nullopt;
  // The update that is made of it may write over what the gradients could be computed again from
  // (Generation::kPrevious), and the process before may have been killed with all of this in no
  // more than a cache.
  FOREBAY_RETURN_IF_ERROR(impl.Flush(impl.IntentFiles()));
  return StepIntent{record->step, record->gradient_elem_bytes, *std::move(trainer)};
}

}  // namespace forebay
