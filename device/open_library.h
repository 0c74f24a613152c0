// Shared libraries of NVIDIA's that are opened when they are needed, so that forebay runs where
// they are not. Asked in turn: the loader, and the folders of library_folders.h.
#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace forebay {

struct LibrarySearch {
  const char* variable;            // of the environment: names the file, and nothing else is tried
  std::vector<const char*> names;  // in the order in which they are tried
  std::vector<const char*> pip_folders;  // below a folder of Python packages
};

// `missing`: the name of a function that an opened library lacks; nullptr: it has all. Never
// closed: a GPU's library does not survive that. EnvironmentError: what was tried, and why the last
// was not it.
absl::StatusOr<void*> OpenLibrary(const LibrarySearch& search,
                                  absl::FunctionRef<const char*(void* library)> missing);

}  // namespace forebay
