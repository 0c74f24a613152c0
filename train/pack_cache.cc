#include "forebay/train/pack_cache.h"

#include <unistd.h>

#include <cstdlib>

#include "fmt/format.h"
#include "forebay/base/file.h"

namespace forebay {

std::string PackCacheDirectory() {
  // The XDG specification has relative paths ignored.
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return JoinPath(cache, "forebay/packed");
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return JoinPath(home, ".cache/forebay/packed");
  // Of this user alone: the folders in /tmp are shared.
  return fmt::format("/tmp/forebay-{}/packed", ::getuid());
}

}  // namespace forebay
