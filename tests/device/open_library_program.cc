// Opens the library twin, and prints its file; or why it was not found, with exit code 1.
#include <dlfcn.h>

#include <cstdio>

#include "forebay/base/errors.h"
#include "forebay/device/open_library.h"

int main() {
  void* function = nullptr;
  const absl::StatusOr<void*> library =
      forebay::OpenLibrary({.variable = "FOREBAY_LIBRARY_TWIN",
                            .names = {"libforebay_twin.so.13", "libforebay_twin.so.12"},
                            .pip_folders = {"nvidia/cu13/lib", "nvidia/twin/lib"}},
                           [&](void* opened) {
                             function = ::dlsym(opened, "forebay_library_twin");
                             return function == nullptr ? "forebay_library_twin" : nullptr;
                           });
  if (!library.ok()) {
    std::puts(forebay::MessageOf(library.status()).c_str());
    return 1;
  }
  Dl_info info = {};
  ::dladdr(function, &info);
  std::puts(info.dli_fname);
}
