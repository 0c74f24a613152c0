#include "forebay/aio/folding_engine.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "forebay/base/check.h"

namespace forebay {

int64_t FoldedBytes(const FoldOptions& options, int64_t size_bytes) {
  FOREBAY_CHECK(size_bytes <= options.together_bytes);
  const auto share_bytes = static_cast<int64_t>(static_cast<__int128>(options.size_bytes) *
                                                size_bytes / options.together_bytes);
  return std::min(size_bytes, share_bytes / kIoAlignBytes * kIoAlignBytes);
}

int64_t FoldedOffset(int64_t offset_bytes, int64_t length_bytes, int64_t folded_bytes) {
  FOREBAY_CHECK(length_bytes <= folded_bytes);
  // A range that would reach over the end is moved back instead of being cut in two, so that there
  // are as many transfers, of the same lengths, as without folding.
  return std::min(offset_bytes % folded_bytes, folded_bytes - length_bytes);
}

size_t FoldingEngine::FoldOf(const std::string& path) const {
  const auto fold = std::ranges::find_if(folds_, [&](const FoldOptions& options) {
    return options.folder.empty() || path.starts_with(options.folder + "/");
  });
  FOREBAY_CHECK(fold != folds_.end());
  return static_cast<size_t>(fold - folds_.begin());
}

int FoldingEngine::AddFile(UniqueFd fd, std::string path) {
  struct stat info = {};
  FOREBAY_CHECK(::fstat(fd.get(), &info) == 0);  // of an open descriptor
  const size_t fold = FoldOf(path);
  const FoldOptions& options = folds_[fold];
  const std::lock_guard lock(mutex_);
  File file;
  const bool is_unfolded =
      !options.unfolded_name.empty() && path.ends_with("/" + options.unfolded_name);
  if (info.st_size < options.least_bytes || is_unfolded) {
    file.inner_file = inner_->AddFile(std::move(fd), std::move(path));
  } else {
    file.inner_file = options.file;
    file.fd = std::move(fd);
    file.first_byte = used_bytes_[fold];
    file.folded_bytes = FoldedBytes(options, info.st_size);
    used_bytes_[fold] += file.folded_bytes;
    FOREBAY_CHECK(file.folded_bytes > 0 && used_bytes_[fold] <= options.size_bytes);
  }
  files_.push_back(std::move(file));
  return static_cast<int>(files_.size()) - 1;
}

FoldingEngine::Place FoldingEngine::PlaceOf(int number) const {
  const std::lock_guard lock(mutex_);
  const File& file = files_.at(static_cast<size_t>(number));
  return {file.inner_file, file.first_byte, file.folded_bytes};
}

void FoldingEngine::RemoveFile(int number) {
  const Place place = PlaceOf(number);
  if (place.folded_bytes == 0) inner_->RemoveFile(place.inner_file);
  const std::lock_guard lock(mutex_);
  files_[static_cast<size_t>(number)] = File();
}

void FoldingEngine::Submit(IoOp& op) {
  const Place place = PlaceOf(op.file);
  op.file = place.inner_file;
  if (op.kind != IoKind::kFlush && place.folded_bytes > 0) {
    op.offset_bytes =
        place.first_byte +
        FoldedOffset(op.offset_bytes, static_cast<int64_t>(op.buffer.size()), place.folded_bytes);
  }
  inner_->Submit(op);
}

absl::Status FoldingEngine::Flush(int file) {
  return inner_->Flush(PlaceOf(file).inner_file);
}

}  // namespace forebay
