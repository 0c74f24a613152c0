#include <dlfcn.h>

#include <string>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/device/cublaslt.h"
#include "forebay/device/open_library.h"

namespace forebay {
namespace {

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

// The name of a function that the library lacks; nullptr: it has all.
const char* FindAll(void* library, CublasLt& table) {
#define FOREBAY_FIND(name) \
  if (!Find(library, "cublasLt" #name, table.name)) return "cublasLt" #name
  FOREBAY_FIND(GetVersion);
  FOREBAY_FIND(Create);
  FOREBAY_FIND(Destroy);
  FOREBAY_FIND(MatmulDescCreate);
  FOREBAY_FIND(MatmulDescDestroy);
  FOREBAY_FIND(MatmulDescSetAttribute);
  FOREBAY_FIND(MatrixLayoutCreate);
  FOREBAY_FIND(MatrixLayoutDestroy);
  FOREBAY_FIND(MatmulPreferenceCreate);
  FOREBAY_FIND(MatmulPreferenceDestroy);
  FOREBAY_FIND(MatmulPreferenceSetAttribute);
  FOREBAY_FIND(MatmulAlgoGetHeuristic);
  FOREBAY_FIND(MatmulAlgoCheck);
  FOREBAY_FIND(Matmul);
#undef FOREBAY_FIND
  return nullptr;
}

absl::StatusOr<CublasLt> Load() {
  CublasLt table = {};
  const absl::StatusOr<void*> library =
      OpenLibrary({.variable = "FOREBAY_CUBLASLT",
                   .names = {"libcublasLt.so.13", "libcublasLt.so.12"},
                   .pip_folders = {"nvidia/cu13/lib", "nvidia/cublas/lib"}},
                  [&](void* opened) { return FindAll(opened, table); });
  if (library.ok()) return table;
  return EnvironmentError(fmt::format(
      "cuBLASLt was not found, which computes matrix products on a GPU ({}). Install it "
      "with 'pip install nvidia-cublas' or the CUDA Toolkit, or name the library in the "
      "environment variable FOREBAY_CUBLASLT",
      MessageOf(library.status())));
}

}  // namespace

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  // Never closed: a GPU's library does not survive that.
  static const auto* const loaded = new absl::StatusOr<CublasLt>(Load());
  FOREBAY_RETURN_IF_ERROR(loaded->status());
  return &**loaded;
}

absl::StatusOr<std::string> CublasLtFile() {
  FOREBAY_ASSIGN_OR_RETURN(const CublasLt* const library, LoadCublasLt());
  Dl_info info = {};
  if (::dladdr(reinterpret_cast<void*>(library->Create), &info) == 0) return "an unnamed file";
  return info.dli_fname;
}

}  // namespace forebay
