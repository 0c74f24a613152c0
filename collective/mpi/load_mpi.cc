#include "forebay/collective/mpi/load_mpi.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

// The folder of the program, or of libforebay.so, whose program may be a Python that lies anywhere.
std::string DirectoryOfThisCode() {
  Dl_info info = {};
  const bool is_known = ::dladdr(reinterpret_cast<const void*>(&LoadMpi), &info) != 0;
  if (!is_known || info.dli_fname == nullptr) return "";
  return std::filesystem::path(info.dli_fname).parent_path().string();
}

// Built beside the programs, installed in lib/forebay.
std::vector<std::string> PathsOfPlugin(const std::string& name) {
  if (const char* const named = std::getenv("FOREBAY_MPI_PLUGIN")) return {named};
  const std::string programs = ProgramDirectory();
  std::vector<std::string> paths = {JoinPath(programs, name),
                                    JoinPath(programs, "../lib/forebay/" + name)};
  const std::string library = DirectoryOfThisCode();
  if (library.empty() || library == programs) return paths;
  for (const char* const folder : {"", "forebay/", "../bin/"}) {
    paths.push_back(JoinPath(library, folder + name));
  }
  return paths;
}

}  // namespace

absl::StatusOr<const ForebayMpi*> LoadMpi(std::string_view family) {
  const std::string name = fmt::format("libforebay_mpi_{}.so", family);
  const std::vector<std::string> candidates = PathsOfPlugin(name);
  std::string why_not;
  for (const std::string& path : candidates) {
    // Global: Open MPI opens parts of its own, which look for its symbols there.
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      why_not = ::dlerror();
      continue;
    }
    const auto get = reinterpret_cast<decltype(&forebay_mpi)>(::dlsym(library, "forebay_mpi"));
    if (get != nullptr && get()->version == kForebayMpiVersion) return get();
    why_not = fmt::format("{} is of another version of forebay", path);
  }
  return EnvironmentError(fmt::format(
      "mpirun started this process, but the plugin for its MPI ({}) cannot be opened (tried {}; "
      "the last: "
      "{}). Build forebay where that MPI's mpicc is installed, name the plugin in the environment "
      "variable FOREBAY_MPI_PLUGIN, or start the ranks with torchrun, which needs no MPI",
      family, fmt::join(candidates, ", "), why_not));
}

}  // namespace forebay
