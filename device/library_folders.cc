#include "forebay/device/library_folders.h"

#include <dlfcn.h>
#include <glob.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <system_error>

#include "forebay/base/process/child_process.h"

namespace forebay {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void AddMatches(const std::string& pattern, std::vector<std::string>& paths) {
  glob_t found = {};
  if (::glob(pattern.c_str(), GLOB_ONLYDIR, nullptr, &found) == 0) {
    paths.insert(paths.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
}

// Python packages below a prefix, as Debian, others and Conda have them.
void AddPackages(const std::string& prefix, LibraryFolders& folders) {
  if (prefix.empty()) return;
  for (const char* const lib : {"/lib", "/lib64"}) {
    AddMatches(prefix + lib + "/python3*/*-packages", folders.packages);
  }
}

void AddToolkit(const std::string& prefix, LibraryFolders& folders) {
  if (prefix.empty()) return;
  AddMatches(prefix + "/lib64", folders.libraries);
  AddMatches(prefix + "/targets/*-linux/lib", folders.libraries);
}

// Where the file itself is, whatever links lead to it; "": nowhere.
std::string RealPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? "" : real.string();
}

// The library that has this code; of a program, what it was called by.
std::string FileOfThisCode() {
  Dl_info info = {};
  const bool is_known = ::dladdr(reinterpret_cast<const void*>(&FoldersOfProgram), &info) != 0;
  return is_known && std::string(info.dli_fname).find('/') != std::string::npos ? info.dli_fname
                                                                                : "";
}

void AddFoldersAround(const std::string& file, LibraryFolders& folders) {
  const std::filesystem::path path(file);
  for (std::filesystem::path above = path.parent_path(); above.has_relative_path();
       above = above.parent_path()) {
    if (above.filename() != "site-packages" && above.filename() != "dist-packages") continue;
    folders.packages.push_back(above.string());
    return;
  }
  const std::string prefix = path.parent_path().parent_path().string();
  if (prefix != "/") AddPackages(prefix, folders);
}

}  // namespace

LibraryFolders FoldersOfEnvironment() {
  LibraryFolders folders;
  AddPackages(Variable("VIRTUAL_ENV"), folders);
  const std::string conda = Variable("CONDA_PREFIX");
  AddPackages(conda, folders);
  if (!conda.empty()) AddMatches(conda + "/lib", folders.libraries);
  AddToolkit(Variable("CUDA_HOME"), folders);
  return folders;
}

LibraryFolders FoldersOfProgram() {
  LibraryFolders folders;
  const std::string program = RealPath("/proc/self/exe");
  const std::string library = RealPath(FileOfThisCode());
  if (!program.empty()) AddFoldersAround(program, folders);
  if (!library.empty() && library != program) AddFoldersAround(library, folders);
  return folders;
}

LibraryFolders FoldersOfPython() {
  LibraryFolders folders;
  const std::string python = FindInPath("python3");
  if (python.empty()) return folders;
  // The user did not ask for Python, so its complaints are not shown.
  auto child = ChildProcess::Start({"/bin/sh", "-c", "exec \"$0\" -c \"$1\" 2>/dev/null", python,
                                    "import sys; print('\\n'.join(sys.path))"},
                                   ChildStreams::kOurs, AtOurDeath::kIsKilled);
  if (!child.ok()) return folders;
  (*child)->EndInput();
  std::string path;
  while ((*child)->ReadLine(path)) {
    // "" is the current folder: a library that happens to lie there is nobody's choice.
    if (path.starts_with('/')) AddMatches(path, folders.packages);
  }
  return folders;
}

LibraryFolders FoldersOfSystem() {
  LibraryFolders folders;
  const std::string home = Variable("HOME");
  if (!home.empty()) AddPackages(home + "/.local", folders);
  AddPackages("/usr/local", folders);
  for (const char* const toolkit : {"/usr/local/cuda", "/opt/cuda"}) AddToolkit(toolkit, folders);
  return folders;
}

}  // namespace forebay
