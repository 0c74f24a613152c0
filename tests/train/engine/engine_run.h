// Toy training runs on an engine of the test's own, and what they leave in events.log.
#pragma once

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/tests/train/faults/toy_run.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {

// Gives a run the engine that `make` makes of the run's own options.
inline TrainEnvironment On(
    std::function<std::unique_ptr<Engine>(const EngineOptions& options)> make) {
  TrainEnvironment environment;
  environment.open_engine = [make = std::move(make)](
                                const EngineOptions& options,
                                const std::vector<std::string>&) -> absl::StatusOr<OpenedEngine> {
    OpenedEngine opened;
    opened.engine = make(options);
    opened.kind = EngineKind::kIoUring;
    opened.line = "the test's own";
    return opened;
  };
  return environment;
}

// How many lines of the run's events.log hold `words`.
inline int NumEvents(const std::string& out, const std::string& words) {
  std::ifstream log(RunPaths(out).events);
  int count = 0;
  for (std::string line; std::getline(log, line);) {
    count += line.find(words) != std::string::npos ? 1 : 0;
  }
  return count;
}

}  // namespace forebay
