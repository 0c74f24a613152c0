#include "forebay/train/files/rank_folder.h"

#include "fmt/format.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

constexpr std::string_view kRankPrefix = "rank-";

}  // namespace

std::string RunFolderOfRank(const std::string& out, int rank) {
  return rank == 0 ? out : JoinPath(out, fmt::format("{}{:03}", kRankPrefix, rank));
}

bool IsNameOfRank(std::string_view name) {
  return name.starts_with(kRankPrefix) && name.size() >= kRankPrefix.size() + 3 &&
         name.find_first_not_of("0123456789", kRankPrefix.size()) == std::string_view::npos;
}

}  // namespace forebay
