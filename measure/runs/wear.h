// What a measurement costs a drive, whose life is a number of bytes written.
#pragma once

#include <string>

#include "forebay/measure/load/job.h"
#include "forebay/measure/runs/bench_session.h"

namespace forebay {

// TB that many drives of 1 TB are rated to write in their life; that of the drive itself is not to
// be had from the kernel.
inline constexpr double kUsualRatedTbw = 600;
// Of that, what a run may write without a word.
inline constexpr double kNotedWearShare = 0.01;

// Bytes that `job` writes to one folder whose file was filled at `bytes_per_s`: the file, then
// every load in every repeat, warm-up included, alone and, of several folders, striped too. A load
// that both reads and writes has the bandwidth of writes for both. Pure.
double PlannedWriteBytes(const Job& job, double bytes_per_s);

// A line for who is about to write more than that share to `target`; "" otherwise, and for files in
// RAM. `twice`: another program does the same in turn.
std::string WearNote(const Job& job, const BenchTarget& target, bool twice);

}  // namespace forebay
