#include "forebay/base/output_folder.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/shared_file.h"

namespace forebay {

absl::Status CheckWritable(const std::string& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error).lexically_normal();
  while (!error && at.has_relative_path() && !std::filesystem::exists(at, error) && !error) {
    std::error_code ignored;
    if (std::filesystem::is_symlink(at, ignored)) {
      return UsageError(
          fmt::format("'{}' is a symbolic link that leads nowhere: there is no '{}'. Make that "
                      "folder, or remove the link",
                      at.string(), std::filesystem::read_symlink(at, ignored).string()));
    }
    at = at.parent_path();
  }
  if (error) return StorageError(fmt::format("looking for '{}' failed", path), error.value());
  if (!IsDirectory(at.string())) {
    return UsageError(fmt::format("'{}' cannot be made: '{}' is not a folder", path, at.string()));
  }
  if (::access(at.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  const int refusal = errno;
  return StorageError(
      fmt::format("nothing can be written to '{}' ({}). Choose another folder, or "
                  "change the permissions of that one",
                  at.string(), ErrnoText(refusal)));
}

absl::Status MakeOwnDirectory(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_symlink(path, error)) {
    return UsageError(
        fmt::format("'{}' is a symbolic link; forebay does not write through links it did not "
                    "make. Remove it or choose another path",
                    path));
  }
  return MakeSharedDirectories(path);
}

}  // namespace forebay
