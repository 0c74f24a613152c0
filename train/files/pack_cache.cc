#include "forebay/train/files/pack_cache.h"

#include <utility>

#include "forebay/base/errors.h"
#include "forebay/data/packed_file.h"
#include "forebay/train/files/cache_folder.h"

namespace forebay {

absl::StatusOr<PackResult> PackedInCache(PackRequest request, const std::function<bool()>& stop) {
  if (!PackedRowTokens(request.data).has_value()) {
    FOREBAY_ASSIGN_OR_RETURN(request.cache, CacheFolder("packed"));
  }
  return PackedPathFor(request, stop);
}

}  // namespace forebay
