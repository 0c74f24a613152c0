#include "forebay/offload/embedded/embedded_ranks.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/collective/gather_values.h"
#include "forebay/swap/store/store_folders.h"

namespace forebay {
namespace {

constexpr std::string_view kPrefix = "rank-";
constexpr std::string_view kMiddle = "-of-";
constexpr char kUnfinished[] = "copy-unfinished";

std::optional<int> NumberAt(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// N of "rank-R-of-N"; nullopt: another name.
std::optional<int> NumRanksIn(std::string_view name) {
  const size_t middle = name.find(kMiddle);
  if (!name.starts_with(kPrefix) || middle == std::string_view::npos) return std::nullopt;
  const auto rank = name.substr(kPrefix.size(), middle - kPrefix.size());
  if (!NumberAt(rank).has_value()) return std::nullopt;
  return NumberAt(name.substr(middle + kMiddle.size()));
}

bool HasStore(const std::string& folder) {
  return FileExists(JoinPath(folder, kManifestName));
}

absl::Status CheckFolderIsOf(const std::string& folder, int num_ranks) {
  const auto made_by = [&](int num_there) {
    return UsageError(fmt::format(
        "the store in '{}' was made by {} {}, and this run has {}. Start it with as many, or name "
        "another folder",
        folder, num_there, num_there == 1 ? "process" : "ranks", num_ranks));
  };
  if (num_ranks > 1 && HasStore(folder)) return made_by(1);
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  const std::string name =
      path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  if (NumRanksIn(name).has_value() && HasStore(folder)) {
    return UsageError(
        fmt::format("'{}' is the part of one rank. Name the folder that it lies in", folder));
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::optional<int> num_there = NumRanksIn(entry.path().filename().string());
    if (!num_there.has_value() || *num_there == num_ranks || !HasStore(entry.path())) continue;
    return made_by(*num_there);
  }
  return absl::OkStatus();  // what cannot be listed is told where the store is made or opened
}

}  // namespace

std::vector<std::string> FoldersOfRank(const std::vector<std::string>& folders, int rank,
                                       int num_ranks) {
  if (num_ranks == 1) return folders;
  std::vector<std::string> own;
  for (const std::string& folder : folders) {
    own.push_back(JoinPath(folder, fmt::format("{}{}{}{}", kPrefix, rank, kMiddle, num_ranks)));
  }
  return own;
}

absl::Status CheckStoresAreOf(const std::vector<std::string>& folders, int num_ranks) {
  for (const std::string& folder : folders) {
    FOREBAY_RETURN_IF_ERROR(CheckFolderIsOf(folder, num_ranks));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> NumRanksOfStores(const std::vector<std::string>& folders) {
  std::set<int> numbers;
  for (const std::string& folder : folders) {
    if (HasStore(folder)) numbers.insert(1);
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      const std::optional<int> num_ranks = NumRanksIn(entry.path().filename().string());
      if (num_ranks.has_value() && HasStore(entry.path())) numbers.insert(*num_ranks);
    }
  }
  if (numbers.size() == 1) return *numbers.begin();
  const std::string where = fmt::format("'{}'", fmt::join(folders, "', '"));
  if (numbers.empty()) return BadInputError(fmt::format("there is no store in {}", where));
  return UsageError(
      fmt::format("there are stores of {} ranks in {}. Leave in the folders the one that is meant",
                  fmt::join(numbers, " and of "), where));
}

absl::Status MarkUnfinished(const std::string& folder) {
  return WriteFileAtomically(JoinPath(folder, kUnfinished), "");
}

absl::Status MarkFinished(const std::string& folder) {
  std::error_code error;
  std::filesystem::remove(JoinPath(folder, kUnfinished), error);
  if (!error) return absl::OkStatus();
  return StorageError(fmt::format("'{}' cannot be removed: {}. Remove it",
                                  JoinPath(folder, kUnfinished), error.message()));
}

bool IsUnfinished(const std::string& folder) {
  return FileExists(JoinPath(folder, kUnfinished));
}

absl::Status AgreeOnCreation(const StoreStanding& own, Communicator& ranks, bool& is_left_over) {
  is_left_over = false;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<StoreStanding> all, GatherValues(ranks, own));
  const auto without = std::ranges::find(all, false, &StoreStanding::is_there);
  if (without == all.end()) return absl::OkStatus();
  const auto steps_of = [](const StoreStanding& store) {
    return store.is_unfinished ? 0 : store.step;
  };
  const auto newest = std::ranges::max_element(all, {}, steps_of);
  if (steps_of(*newest) > 0) {
    const auto rank_without = static_cast<int>(without - all.begin());
    return CorruptError(fmt::format(
        "the store of rank {} has made {} steps, and rank {} ({}) has none. Put back the folder of "
        "each rank, or name another one",
        newest - all.begin(), newest->step, rank_without, ranks.host(rank_without)));
  }
  is_left_over = own.is_there;
  return absl::OkStatus();
}

}  // namespace forebay
