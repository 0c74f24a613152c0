#include "forebay/train/run/held_space.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/engine_probe.h"
#include "forebay/base/errors.h"
#include "forebay/base/file_space.h"
#include "forebay/base/format.h"

namespace forebay {

absl::StatusOr<HeldSpace> HeldSpace::Take(const std::string& folder, int64_t bytes) {
  HeldSpace space;
  if (bytes == 0) return space;
  bytes = std::min(bytes, MostBytesOfAFile());
  FOREBAY_ASSIGN_OR_RETURN(ScratchFile file, OpenScratchFile(folder, /*direct=*/false));
  space.fd_ = std::move(file.fd);
  const int error = ReserveFileSpace(space.fd_.get(), bytes);
  if (error == 0) space.bytes_ = bytes;
  if (error == 0 || error == EOPNOTSUPP) return space;
  const std::string failed = fmt::format("keeping {} in '{}'", FormatBytes(bytes), folder);
  if (error != ENOSPC && error != EDQUOT) return StorageError(failed + " failed", error);
  return DoesNotFitError(fmt::format(
      "{} for the exported model is not possible: less is free there ({}). Free space, or export "
      "less (--export=none, --set=keep)",
      failed, ErrnoText(error)));
}

void HeldSpace::ShrinkTo(int64_t bytes) {
  // Space that cannot be given back is given back at the end.
  if (bytes < bytes_ && ::ftruncate(fd_.get(), bytes) == 0) bytes_ = bytes;
}

void HeldSpace::GrowTo(int64_t bytes) {
  bytes = std::min(bytes, MostBytesOfAFile());
  if (bytes <= bytes_ || !fd_.valid()) return;
  if (ReserveFileSpace(fd_.get(), bytes) == 0) {
    bytes_ = bytes;
  } else if (::ftruncate(fd_.get(), bytes_) != 0) {  // what it took before there was no more
    return;
  }
}

}  // namespace forebay
