// Folders where NVIDIA's libraries lie that no loader knows of. Users of PyTorch have them as
// Python packages, often in an environment that nothing but its `python3` names.
#pragma once

#include <string>
#include <vector>

namespace forebay {

// Those that exist.
struct LibraryFolders {
  std::vector<std::string> packages;   // of Python packages
  std::vector<std::string> libraries;  // of libraries
};

// Of the environments that VIRTUAL_ENV and CONDA_PREFIX name, and of the toolkit of CUDA_HOME.
LibraryFolders FoldersOfEnvironment();
// Of the prefix that the program is installed in, and the library that has this code: for
// P/bin/forebay P, for S/site-packages/forebay/_bin/forebay S/site-packages.
LibraryFolders FoldersOfProgram();
// What the `python3` of PATH imports from, which is asked.
LibraryFolders FoldersOfPython();
// Of the user, of /usr/local, and of toolkits in their usual places.
LibraryFolders FoldersOfSystem();

}  // namespace forebay
