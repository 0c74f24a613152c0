#include "forebay/device/open_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/device/library_folders.h"

namespace forebay {
namespace {

class Opening {
 public:
  Opening(const LibrarySearch& search, absl::FunctionRef<const char*(void* library)> missing)
      : search_(search), missing_(missing) {}

  // All of these give the library, or nullptr. A path, or a name that the loader looks for:
  void* TryNamed(const char* name) {
    tried_.emplace_back(name);
    return Try(name);
  }

  void* TryFolders(const LibraryFolders& folders) {
    for (const std::string& packages : folders.packages) {
      for (const char* const folder : search_.pip_folders) {
        if (void* const library = TryIn(fmt::format("{}/{}", packages, folder))) return library;
      }
    }
    for (const std::string& folder : folders.libraries) {
      if (void* const library = TryIn(folder)) return library;
    }
    return nullptr;
  }

  absl::Status Failure() const {
    return EnvironmentError(
        fmt::format("tried {}; the last: {}", fmt::join(tried_, ", "), last_error_));
  }

 private:
  void* Try(const std::string& path) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      last_error_ = ::dlerror();
      return nullptr;
    }
    const char* const lacks = missing_(library);
    if (lacks == nullptr) return library;
    last_error_ = fmt::format("{} has no {}", path, lacks);
    ::dlclose(library);
    return nullptr;
  }

  void* TryIn(const std::string& folder) {
    tried_.push_back(folder);
    for (const char* const name : search_.names) {
      const std::string path = fmt::format("{}/{}", folder, name);
      if (::access(path.c_str(), F_OK) != 0) continue;
      if (void* const library = Try(path)) return library;
    }
    return nullptr;
  }

  const LibrarySearch& search_;
  const absl::FunctionRef<const char*(void* library)> missing_;
  std::vector<std::string> tried_;
  std::string last_error_;
};

}  // namespace

absl::StatusOr<void*> OpenLibrary(const LibrarySearch& search,
                                  absl::FunctionRef<const char*(void* library)> missing) {
  Opening opening(search, missing);
  const char* const named = std::getenv(search.variable);
  if (named != nullptr && *named != 0) {
    if (void* const library = opening.TryNamed(named)) return library;
    return opening.Failure();
  }
  for (const char* const name : search.names) {
    if (void* const library = opening.TryNamed(name)) return library;
  }
  for (const auto& folders :
       {&FoldersOfEnvironment, &FoldersOfProgram, &FoldersOfPython, &FoldersOfSystem}) {
    if (void* const library = opening.TryFolders(folders())) return library;
  }
  return opening.Failure();
}

}  // namespace forebay
