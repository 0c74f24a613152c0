// How many cores this process may compute on.
#pragma once

#include <optional>
#include <string>

namespace forebay {

// Those that the calling thread may run on (taskset, cpusets of a container). 1 or more.
int NumUsableCores();

// NumUsableCores, and no more than the time that the control groups let the process have
// (base/process/cgroups.h): what computes where nobody says --threads. `root` stands for "/" in
// tests.
int DefaultThreads(const std::string& root = "");

// `num_cores`, or as many whole cores as `quota` is the time of, where that is less; 1 or more.
// With more threads than that, all of them are stopped again and again. Pure.
int ThreadsWithin(std::optional<double> quota, int num_cores);

}  // namespace forebay
