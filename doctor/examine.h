// Judges what is there: pure functions of the facts.
#pragma once

#include <string>
#include <vector>

#include "forebay/doctor/check.h"
#include "forebay/doctor/machine_facts.h"

namespace forebay {

// Every check, in the order in which people read them.
std::vector<Check> Examine(const MachineFacts& facts);

// Its parts.
std::vector<Check> ExamineHost(const MachineFacts& facts);
std::vector<Check> ExamineDisk(const DiskFacts& disk);
std::vector<Check> ExamineGpu(const GpuFacts& gpu);

// "CUDA 13.0, no driver, cuBLASLt /usr/lib/libcublasLt.so.13, no NCCL"
std::string DescribeLibraries(const GpuFacts& gpu);

}  // namespace forebay
