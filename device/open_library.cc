#include "forebay/device/open_library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <string>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void AddMatches(const std::string& pattern, std::vector<std::string>& paths) {
  glob_t found = {};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.insert(paths.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
}

// In the order in which they are tried.
std::vector<std::string> Candidates(const LibrarySearch& search) {
  if (const std::string named = Variable(search.variable); !named.empty()) return {named};
  std::vector<std::string> roots;
  for (const std::string& root : {Variable("VIRTUAL_ENV"), Variable("CONDA_PREFIX"),
                                  Variable("HOME") + "/.local", std::string("/usr/local")}) {
    if (!root.empty()) roots.push_back(root + "/lib/python3*/*-packages");
  }
  std::vector<std::string> paths(search.names.begin(), search.names.end());
  for (const char* const name : search.names) {
    AddMatches(fmt::format("/usr/local/cuda/lib64/{}", name), paths);
    for (const std::string& root : roots) {
      for (const char* const folder : search.pip_folders) {
        AddMatches(fmt::format("{}/{}/{}", root, folder, name), paths);
      }
    }
  }
  return paths;
}

}  // namespace

absl::StatusOr<void*> OpenLibrary(const LibrarySearch& search,
                                  absl::FunctionRef<const char*(void* library)> missing) {
  const std::vector<std::string> candidates = Candidates(search);
  std::string last_error;
  for (const std::string& path : candidates) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      last_error = ::dlerror();
      continue;
    }
    const char* const lacks = missing(library);
    if (lacks == nullptr) return library;
    last_error = fmt::format("{} has no {}", path, lacks);
    ::dlclose(library);
  }
  return EnvironmentError(
      fmt::format("tried {}; the last: {}", fmt::join(candidates, ", "), last_error));
}

}  // namespace forebay
