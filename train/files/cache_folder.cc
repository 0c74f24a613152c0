#include "forebay/train/files/cache_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

// The reason why `folder` is not ours alone; "" when it is. Made when it is missing.
std::string DefectOf(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return fmt::format("cannot be made ({})", ErrnoText(errno));
  }
  struct stat info = {};
  if (::lstat(folder.c_str(), &info) != 0) {
    return fmt::format("cannot be looked at ({})", ErrnoText(errno));
  }
  if (S_ISLNK(info.st_mode)) return "is a symbolic link";
  if (!S_ISDIR(info.st_mode)) return "is not a folder";
  if (info.st_uid != ::geteuid()) return fmt::format("belongs to another user ({})", info.st_uid);
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "can be written by other users";
  return "";
}

}  // namespace

absl::StatusOr<std::string> CacheFolder(const std::string& name, const std::string& shared) {
  // The XDG specification has relative paths ignored.
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return JoinPath(cache, "forebay/" + name);
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return JoinPath(home, ".cache/forebay/" + name);
  const std::string own = JoinPath(shared, fmt::format("forebay-{}", ::geteuid()));
  const std::string named = JoinPath(own, name);
  for (const std::string& folder : {own, named}) {
    const std::string defect = DefectOf(folder);
    if (defect.empty()) continue;
    return EnvironmentError(
        fmt::format("without HOME and XDG_CACHE_HOME the cache is '{}', but '{}' {}. Set "
                    "XDG_CACHE_HOME to a folder of your own",
                    named, folder, defect));
  }
  return named;
}

}  // namespace forebay
