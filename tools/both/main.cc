// forebay and swap-bench as one program, which is what it is called as: the Python package has them
// so, as most of swap-bench is in forebay too.
#include <filesystem>
#include <string>
#include <vector>

#include "forebay/tools/command_line.h"
#include "forebay/tools/commands.h"
#include "forebay/tools/swap_bench/program.h"

int main(int argc, char** argv) {
  const bool is_bench = argc > 0 && std::filesystem::path(argv[0]).filename() == "swap-bench";
  return forebay::RunCommandLine(is_bench ? forebay::SwapBenchProgram() : forebay::ForebayProgram(),
                                 std::vector<std::string>(argv + (argc > 0 ? 1 : 0), argv + argc));
}
