#include "forebay/offload/embedded/embedded_ranks.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/collective/gather_values.h"
#include "forebay/swap/store/store_state.h"

namespace forebay {
namespace {

constexpr std::string_view kPrefix = "rank-";
constexpr std::string_view kMiddle = "-of-";

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

absl::StatusOr<bool> HasStore(const std::string& folder) {
  FOREBAY_ASSIGN_OR_RETURN(const FolderState found, LookAtFolder(folder));
  return HasCommit(found.state);
}

// How many ranks made the stores that lie in folders of ranks ("rank-0-of-2") in `folder`.
absl::StatusOr<std::set<int>> RanksOfStoresIn(const std::string& folder) {
  std::set<int> numbers;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder));
  for (const std::string& name : names) {
    const std::optional<int> num_ranks = NumRanksIn(name);
    if (!num_ranks.has_value()) continue;
    FOREBAY_ASSIGN_OR_RETURN(const bool has_store, HasStore(JoinPath(folder, name)));
    if (has_store) numbers.insert(*num_ranks);
  }
  return numbers;
}

absl::Status CheckFolderIsOf(const std::string& folder, int num_ranks) {
  const auto made_by = [&](int num_there) {
    return UsageError(fmt::format(
        "the store in '{}' was made by {} {}, and this run has {}. Start it with as many, or name "
        "another folder",
        folder, num_there, num_there == 1 ? "process" : "ranks", num_ranks));
  };
  FOREBAY_ASSIGN_OR_RETURN(const bool has_store, HasStore(folder));
  if (num_ranks > 1 && has_store) return made_by(1);
  const std::filesystem::path path = std::filesystem::path(folder).lexically_normal();
  const std::string name =
      path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  if (NumRanksIn(name).has_value() && has_store) {
    return UsageError(
        fmt::format("'{}' is the part of one rank. Name the folder that it lies in", folder));
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::set<int> numbers, RanksOfStoresIn(folder));
  const auto other = std::ranges::find_if(numbers, [&](int there) { return there != num_ranks; });
  return other == numbers.end() ? absl::OkStatus() : made_by(*other);
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
    FOREBAY_ASSIGN_OR_RETURN(const bool has_store, HasStore(folder));
    if (has_store) numbers.insert(1);
    FOREBAY_ASSIGN_OR_RETURN(std::set<int> in_folders, RanksOfStoresIn(folder));
    numbers.merge(in_folders);
  }
  if (numbers.size() == 1) return *numbers.begin();
  const std::string where = fmt::format("'{}'", fmt::join(folders, "', '"));
  if (numbers.empty()) return BadInputError(fmt::format("there is no store in {}", where));
  return UsageError(
      fmt::format("there are stores of {} ranks in {}. Leave in the folders the one that is meant",
                  fmt::join(numbers, " and of "), where));
}

absl::Status AgreeOnCreation(const StoreStanding& own, Communicator& ranks, bool& is_left_over) {
  is_left_over = false;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<StoreStanding> all, GatherValues(ranks, own));
  const auto without = std::ranges::find(all, false, &StoreStanding::is_there);
  if (without == all.end()) return absl::OkStatus();
  const auto finished = std::ranges::find_if(
      all, [](const StoreStanding& store) { return store.is_there && !store.is_unfinished; });
  if (finished != all.end()) {
    const auto rank_without = static_cast<int>(without - all.begin());
    return CorruptError(fmt::format(
        "the store of rank {} has made {} steps, and rank {} ({}) has none. Put back the folder of "
        "each rank, or name another one",
        finished - all.begin(), finished->step, rank_without, ranks.host(rank_without)));
  }
  is_left_over = own.is_there;
  return absl::OkStatus();
}

}  // namespace forebay
