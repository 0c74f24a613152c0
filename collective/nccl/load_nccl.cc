#include <dlfcn.h>

#include <string>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/collective/nccl/nccl.h"
#include "forebay/device/open_library.h"

namespace forebay {
namespace {

template <typename Function>
bool FindInNccl(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

// The name of a function that the library lacks; nullptr: it has all.
const char* FindAllOfNccl(void* library, Nccl& table) {
#define FOREBAY_FIND(name) \
  if (!FindInNccl(library, "nccl" #name, table.name)) return "nccl" #name
  FOREBAY_FIND(GetUniqueId);
  FOREBAY_FIND(CommInitRankConfig);
  FOREBAY_FIND(CommFinalize);
  FOREBAY_FIND(CommDestroy);
  FOREBAY_FIND(CommAbort);
  FOREBAY_FIND(CommGetAsyncError);
  FOREBAY_FIND(GetErrorString);
  FOREBAY_FIND(GroupStart);
  FOREBAY_FIND(GroupEnd);
  FOREBAY_FIND(Send);
  FOREBAY_FIND(Recv);
#undef FOREBAY_FIND
  return nullptr;
}

absl::StatusOr<Nccl> OpenNccl() {
  Nccl table = {};
  const absl::StatusOr<void*> library =
      OpenLibrary({.variable = "FOREBAY_NCCL",
                   .names = {"libnccl.so.2"},
                   .pip_folders = {"nvidia/nccl/lib", "nvidia/cu13/lib"}},
                  [&](void* opened) { return FindAllOfNccl(opened, table); });
  if (library.ok()) return table;
  return EnvironmentError(
      fmt::format("NCCL was not found ({}). Install it with 'pip install nvidia-nccl-cu13', or "
                  "name the library "
                  "in the environment variable FOREBAY_NCCL",
                  MessageOf(library.status())));
}

}  // namespace

absl::StatusOr<const Nccl*> LoadNccl() {
  static const auto* const loaded = new absl::StatusOr<Nccl>(OpenNccl());
  FOREBAY_RETURN_IF_ERROR(loaded->status());
  return &**loaded;
}

absl::StatusOr<std::string> NcclFile() {
  FOREBAY_ASSIGN_OR_RETURN(const Nccl* const nccl, LoadNccl());
  Dl_info info = {};
  if (::dladdr(reinterpret_cast<void*>(nccl->GetUniqueId), &info) == 0) return "an unnamed file";
  return info.dli_fname;
}

}  // namespace forebay
