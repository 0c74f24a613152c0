// The command lines of the disk benchmarks: a folder (or a file, where one may be read), then
// numbers in a fixed order, each with a default.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fmt/format.h"

namespace forebay::bench {

struct Number {
  std::string name;
  double value;  // the default, until the command line gives another
  double least;
  double most;
  double multiple_of = 1;  // 0: any number
};

// The folder of `argv`; `numbers` get the values that follow it. Ends the program with the usage
// (exit 0) for --help, and with it and what is wrong (exit 2) for anything that does not fit.
inline std::string ParseFolderAndNumbers(int argc, char** argv, std::vector<Number>& numbers,
                                         bool takes_file = false) {
  std::string usage = absl::StrCat("usage: ", argv[0], takes_file ? " FOLDER|FILE" : " FOLDER");
  for (const Number& number : numbers) {
    absl::StrAppend(&usage, " [", number.name, ", default ", number.value, "]");
  }
  const auto refuse = [&](const std::string& what) {
    fmt::print(stderr, "{}: {}\n{}\n", argv[0], what, usage);
    std::exit(2);
  };
  if (argc == 2 && std::string(argv[1]) == "--help") {
    fmt::print("{}\n", usage);
    std::exit(0);
  }
  if (argc < 2) refuse("FOLDER is missing");
  std::error_code error;
  if (!std::filesystem::is_directory(argv[1], error) &&
      !(takes_file && std::filesystem::is_regular_file(argv[1], error))) {
    refuse(fmt::format("{} is not a folder; make it first", argv[1]));
  }
  if (argc - 2 > static_cast<int>(numbers.size())) {
    refuse(fmt::format("{} is one argument too many", argv[2 + numbers.size()]));
  }
  for (int i = 2; i < argc; ++i) {
    Number& number = numbers[i - 2];
    const bool parsed = absl::SimpleAtod(argv[i], &number.value) && std::isfinite(number.value);
    const bool fits = parsed && number.value >= number.least && number.value <= number.most &&
                      (number.multiple_of == 0 || std::fmod(number.value, number.multiple_of) == 0);
    if (!fits) {
      refuse(fmt::format("{} is {}; it takes {} from {} to {}", number.name, argv[i],
                         number.multiple_of == 0
                             ? "a number"
                             : fmt::format("a multiple of {}", number.multiple_of),
                         number.least, number.most));
    }
  }
  return argv[1];
}

}  // namespace forebay::bench
