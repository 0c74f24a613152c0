#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/device/cublaslt.h"

namespace forebay {
namespace {

constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};

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
std::vector<std::string> Candidates() {
  if (const std::string named = Variable("FOREBAY_CUBLASLT"); !named.empty()) return {named};
  std::vector<std::string> roots;
  for (const std::string& root : {Variable("VIRTUAL_ENV"), Variable("CONDA_PREFIX"),
                                  Variable("HOME") + "/.local", std::string("/usr/local")}) {
    if (!root.empty()) roots.push_back(root + "/lib/python3*/*-packages");
  }
  std::vector<std::string> paths(std::begin(kNames), std::end(kNames));
  for (const char* const name : kNames) {
    AddMatches(fmt::format("/usr/local/cuda/lib64/{}", name), paths);
    for (const std::string& root : roots) {
      AddMatches(fmt::format("{}/nvidia/cu13/lib/{}", root, name), paths);
      AddMatches(fmt::format("{}/nvidia/cublas/lib/{}", root, name), paths);
    }
  }
  return paths;
}

template <typename Function>
bool Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

// The name of a function that the library lacks; nullptr: it has all.
const char* FindAll(void* library, CublasLt& table) {
#define FOREBAY_FIND(name) \
  if (!Find(library, "cublasLt" #name, table.name)) return "cublasLt" #name
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
  FOREBAY_FIND(Matmul);
#undef FOREBAY_FIND
  return nullptr;
}

absl::StatusOr<CublasLt> Load() {
  const std::vector<std::string> candidates = Candidates();
  std::string last_error;
  for (const std::string& path : candidates) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      last_error = ::dlerror();
      continue;
    }
    CublasLt table = {};
    const char* const missing = FindAll(library, table);
    if (missing == nullptr) return table;
    last_error = fmt::format("{} has no {}", path, missing);
    ::dlclose(library);
  }
  return EnvironmentError(fmt::format(
      "cuBLASLt was not found, which computes matrix products on a GPU (tried {}; the last: {}). "
      "Install it with 'pip install nvidia-cublas' or the CUDA Toolkit, or name the library in the "
      "environment variable FOREBAY_CUBLASLT",
      fmt::join(candidates, ", "), last_error));
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
