#include <string>
#include <vector>

#include "forebay/tools/command_line.h"

int main(int argc, char** argv) {
  return forebay::RunCommandLine(std::vector<std::string>(argv + 1, argv + argc));
}
