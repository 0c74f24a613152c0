#include <string>
#include <vector>

#include "forebay/tools/command_line.h"
#include "forebay/tools/swap_bench/program.h"

int main(int argc, char** argv) {
  return forebay::RunCommandLine(forebay::SwapBenchProgram(),
                                 std::vector<std::string>(argv + 1, argv + argc));
}
