// Where each rank of a run has its run folder. Reads no file.
#pragma once

#include <string>
#include <string_view>

namespace forebay {

// The run folder of a rank: `out` itself of rank 0, out/rank-001 of rank 1. Each is whole.
std::string RunFolderOfRank(const std::string& out, int rank);
// OUT, given the run folder of rank `rank`, however it is spelled.
std::string FolderOfAllRanks(const std::string& run_folder, int rank);
// Whether an entry of `out` may be such a folder.
bool IsNameOfRank(std::string_view name);

// The file of --trace: `trace` itself of rank 0, "trace.rank-001" of rank 1.
std::string TraceFileOfRank(const std::string& trace, int rank);

}  // namespace forebay
