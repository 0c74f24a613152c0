// Writing over the space that a new store has reserved and that its first commit leaves as it is.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {
namespace {

// All from the same zeros. The engine cuts them as the disk likes it; several keep it busy while
// one of them ends.
constexpr size_t kWritesInFlight = 4;

}  // namespace

std::vector<TensorStore::Impl::FileRange> TensorStore::Impl::SpareSpace() const {
  std::vector<FileRange> ranges;
  const auto add = [&](int file, int64_t first_byte, int64_t end_byte) {
    if (file >= 0 && end_byte > first_byte) ranges.push_back({file, first_byte, end_byte});
  };
  for (size_t i = 0; i < stripes.size(); ++i) {
    const auto stripe = static_cast<int>(i);
    // The first commit writes slot A.
    const int64_t weights_bytes = tiles.weight_area_bytes(stripe);
    const int64_t state_bytes = tiles.state_area_bytes(stripe);
    const int64_t tables_bytes = TileSeals::TableBytes(tiles, stripe);
    add(stripes[i].weights_file, weights_bytes, manifest.num_slots * weights_bytes);
    add(stripes[i].state_file, state_bytes, manifest.num_slots * state_bytes);
    for (const int file : stripes[i].seals_files) {
      add(file, tables_bytes, manifest.num_slots * tables_bytes);
    }
    for (const int file : stripes[i].commit_files) {
      add(file, kSpareBlockOffsetBytes, kCommitFileBytes);
    }
    add(stripes[i].scratch_file, 0, scratch_bytes[i]);
  }
  return ranges;
}

absl::Status TensorStore::Impl::TakeWrittenSpace() {
  if (space != FileSpace::kOnceWritten) return absl::OkStatus();
  // What the page cache still holds has no place on the disk yet.
  FOREBAY_RETURN_IF_ERROR(Flush(files));
  space_note = fmt::format(
      "a file system of {} reserves no space (no fallocate), so the store's files were written in "
      "full. What is exported to it has none: should others fill the disk, the run ends there, and "
      "resumes once there is room",
      Where());
  return absl::OkStatus();
}

absl::Status TensorStore::WriteSpareSpace(std::span<std::byte> scratch,
                                          const std::function<bool()>& stop,
                                          const std::function<void(double)>& progress) {
  FOREBAY_CHECK(!impl_->has_commit && !scratch.empty());
  // There what is written once is written elsewhere the next time, and nothing is gained.
  if (impl_->space == FileSpace::kNever) return absl::OkStatus();
  std::memset(scratch.data(), 0, scratch.size());
  const std::vector<Impl::FileRange> ranges = impl_->SpareSpace();
  int64_t all_bytes = 0;
  for (const Impl::FileRange& range : ranges) all_bytes += range.end_byte - range.first_byte;
  std::array<IoOp, kWritesInFlight> ops;
  size_t num_started = 0;
  int64_t started_bytes = 0;
  absl::Status status;
  for (const Impl::FileRange& range : ranges) {
    for (int64_t at = range.first_byte; at < range.end_byte && status.ok();
         at += std::ssize(scratch)) {
      IoOp& op = ops[num_started % kWritesInFlight];
      status = stop && stop() ? InterruptedError("stopped on request") : impl_->engine->Wait(op);
      if (!status.ok()) break;
      const int64_t bytes = std::min<int64_t>(range.end_byte - at, std::ssize(scratch));
      impl_->Start(op, IoKind::kWrite, IoClass::kWriteBack, range.file, at, scratch.first(bytes));
      ++num_started;
      started_bytes += bytes;
      if (progress) progress(static_cast<double>(started_bytes) / static_cast<double>(all_bytes));
    }
  }
  for (IoOp& op : ops) status.Update(impl_->engine->Wait(op));
  return status.ok() ? impl_->TakeWrittenSpace() : status;
}

}  // namespace forebay
