#include "forebay/train/files/swap_area.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "fmt/format.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"

namespace forebay {
namespace {

// Of the folders that runs make in those of --nvme.
constexpr std::string_view kStorePrefix = "forebay-";
constexpr size_t kStoreHashDigits = 8;

// `path` as seen from `folder`; "" when it does not lie inside. Both are absolute and normal.
std::string PathInside(const std::string& folder, const std::string& path) {
  const std::string prefix = JoinPath(folder, "");
  return path.starts_with(prefix) ? path.substr(prefix.size()) : "";
}

// Whether a run made a folder of this name in one of --nvme.
bool IsOfARun(std::string_view name) {
  if (!name.starts_with(kStorePrefix) || name.size() < kStorePrefix.size() + kStoreHashDigits) {
    return false;
  }
  return name.substr(name.size() - kStoreHashDigits).find_first_not_of("0123456789abcdef") ==
         std::string_view::npos;
}

}  // namespace

std::string NormalPath(const std::string& path) {
  std::error_code error;
  const std::string absolute = std::filesystem::absolute(path, error).lexically_normal().string();
  return error ? path : absolute;
}

std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const auto canonical = std::filesystem::weakly_canonical(NormalPath(path), error);
  return error ? NormalPath(path) : canonical.string();
}

bool IsInside(const std::string& folder, const std::string& path) {
  return !PathInside(NormalPath(folder), NormalPath(path)).empty();
}

std::vector<std::string> NewStoreDirectories(const TrainOptions& options) {
  const std::string inside = JoinPath(options.out, "swap");
  if (options.nvme.empty()) return {inside};
  const std::string out = NormalPath(options.out);
  const std::string name =
      fmt::format("{}{}-{}", kStorePrefix, std::filesystem::path(out).filename().string(),
                  Xxh3_128Hex(out).substr(0, kStoreHashDigits));
  std::vector<std::string> directories;
  for (const std::string& nvme : options.nvme) {
    directories.push_back(nvme == inside ? inside : JoinPath(NormalPath(nvme), name));
  }
  return directories;
}

Json RecordedStoreDirectories(const std::string& out, const std::vector<std::string>& directories) {
  Json recorded = Json::array();
  for (const std::string& directory : directories) {
    std::string inside = PathInside(NormalPath(out), NormalPath(directory));
    if (inside.empty()) inside = PathInside(CanonicalPath(out), CanonicalPath(directory));
    recorded.push_back(inside.empty() ? NormalPath(directory) : inside);
  }
  return recorded;
}

std::vector<std::string> FoldersToName(const std::vector<std::string>& directories) {
  std::vector<std::string> folders;
  for (const std::string& directory : directories) {
    const std::filesystem::path path = NormalPath(directory);
    const std::string parent = path.parent_path();
    const bool is_free = std::ranges::count(folders, parent) == 0;
    folders.push_back(is_free && IsOfARun(path.filename().string()) ? parent : path.string());
  }
  return folders;
}

}  // namespace forebay
