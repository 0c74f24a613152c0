#include "forebay/train/files/rank_folder.h"

#include <filesystem>
#include <system_error>

#include "fmt/format.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

constexpr std::string_view kRankPrefix = "rank-";

}  // namespace

std::string RunFolderOfRank(const std::string& out, int rank) {
  return rank == 0 ? out : JoinPath(out, fmt::format("{}{:03}", kRankPrefix, rank));
}

std::string FolderOfAllRanks(const std::string& run_folder, int rank) {
  if (rank == 0) return run_folder;
  std::error_code error;  // without a working folder the path stays as it is
  std::filesystem::path path = std::filesystem::absolute(run_folder, error);
  path = (error ? std::filesystem::path(run_folder) : path).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // it ends with a slash
  return path.parent_path().string();
}

bool IsNameOfRank(std::string_view name) {
  return name.starts_with(kRankPrefix) && name.size() >= kRankPrefix.size() + 3 &&
         name.find_first_not_of("0123456789", kRankPrefix.size()) == std::string_view::npos;
}

std::string TraceFileOfRank(const std::string& trace, int rank) {
  return rank == 0 ? trace : fmt::format("{}.rank-{:03}", trace, rank);
}

}  // namespace forebay
