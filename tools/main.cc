#include <string>
#include <vector>

#include "forebay/tools/command_line.h"
#include "forebay/tools/commands.h"

int main(int argc, char** argv) {
  return forebay::RunCommandLine(forebay::ForebayProgram(),
                                 std::vector<std::string>(argv + 1, argv + argc));
}
