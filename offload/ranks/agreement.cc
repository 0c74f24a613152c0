#include "forebay/offload/ranks/agreement.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/collective/gather_values.h"

namespace forebay {
namespace {

// The value of a setting on one rank.
struct Said {
  Json value;
  std::string shown;
};
using SaidOfRank = std::vector<std::pair<std::string, Said>>;  // by the names, in their order

// Texts may have paths, which need not be UTF-8.
std::string TextOf(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string Encode(std::span<const Setting> settings) {
  Json record = Json::array();
  for (const Setting& setting : settings) {
    record.push_back({{"name", setting.name},
                      {"value", setting.value},
                      {"shown", setting.shown.empty() ? TextOf(setting.value) : setting.shown}});
  }
  return TextOf(record);
}

absl::StatusOr<SaidOfRank> Decode(const std::string& record, size_t rank) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json,
                           ParseJson(record, fmt::format("settings of rank {}", rank)));
  SaidOfRank said;
  for (const Json& setting : json) {
    said.push_back(
        {setting.value("name", ""), {setting.value("value", Json()), setting.value("shown", "")}});
  }
  return said;
}

const Said& Find(const SaidOfRank& said, const std::string& name) {
  static const Said* const nothing = new Said{Json(), "unknown"};
  const auto found = std::ranges::find(said, name, &SaidOfRank::value_type::first);
  return found == said.end() ? *nothing : found->second;
}

// The name of the first setting that they have different values of; "": none.
std::string FirstDifference(const SaidOfRank& a, const SaidOfRank& b) {
  for (const auto& [name, said] : a) {
    if (Find(b, name).value != said.value) return name;
  }
  for (const auto& [name, said] : b) {  // another version may have more
    if (Find(a, name).value != said.value) return name;
  }
  return "";
}

std::string OnBoth(const std::string& first, const std::string& other, size_t rank,
                   Communicator& ranks) {
  return fmt::format("{} on rank 0 ({}), and {} on rank {} ({})", first, ranks.host(0), other, rank,
                     ranks.host(static_cast<int>(rank)));
}

std::span<const std::byte> BytesOfText(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Names the first part that differs between rank 0 and `rank`. A collective call of all ranks.
absl::StatusOr<std::string> DifferenceOfParts(const std::vector<std::string>& own, size_t rank,
                                              Communicator& ranks) {
  std::string hashes;
  for (const std::string& part : own) {
    const uint64_t hash = Xxh3_64(BytesOfText(part));
    hashes.append(reinterpret_cast<const char*>(&hash), sizeof hash);
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.GatherRecords(hashes));
  const auto at = std::ranges::mismatch(all.front(), all[rank]);
  const auto first = static_cast<size_t>(at.in1 - all.front().begin()) / sizeof(uint64_t);
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           ranks.GatherRecords(first < own.size() ? own[first] : "nothing"));
  if (all.front().empty() || all[rank].empty() || all.front() == all[rank]) return std::string();
  return "; the first that differs is " + OnBoth(texts.front(), texts[rank], rank, ranks);
}

}  // namespace

absl::StatusOr<std::string> DifferenceOfSettings(std::span<const Setting> own,
                                                 Communicator& ranks) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> records,
                           ranks.GatherRecords(Encode(own)));
  SaidOfRank first;
  for (size_t rank = 0; rank < records.size(); ++rank) {
    FOREBAY_ASSIGN_OR_RETURN(SaidOfRank said, Decode(records[rank], rank));
    if (rank == 0) {
      first = std::move(said);
      continue;
    }
    const std::string name = FirstDifference(first, said);
    if (name.empty()) continue;
    const auto setting = std::ranges::find(own, name, &Setting::name);
    const bool has_parts = setting != own.end() && setting->parts != nullptr;
    FOREBAY_ASSIGN_OR_RETURN(
        const std::string part,
        DifferenceOfParts(has_parts ? setting->parts() : std::vector<std::string>(), rank, ranks));
    return fmt::format("{} is {}{}", name,
                       OnBoth(Find(first, name).shown, Find(said, name).shown, rank, ranks), part);
  }
  return std::string();
}

absl::Status AgreeOnSettings(const std::vector<Setting>& own, Communicator& ranks) {
  FOREBAY_ASSIGN_OR_RETURN(const std::string difference, DifferenceOfSettings(own, ranks));
  if (difference.empty()) return absl::OkStatus();
  return UsageError(
      fmt::format("the ranks of this run do not agree: {}. Start all of them with the same options "
                  "and files, and say what each would choose for itself",
                  difference));
}

absl::Status AgreeThatAllCan(const absl::Status& own, Communicator& ranks) {
  const Json mine = {{"exit_code", static_cast<int>(own.ok() ? ExitCode::kOk : ExitCodeOf(own))},
                     {"message", MessageOf(own)}};
  const absl::StatusOr<std::vector<std::string>> records = ranks.GatherRecords(mine.dump());
  if (!own.ok()) return own;
  FOREBAY_RETURN_IF_ERROR(records.status());
  for (size_t rank = 0; rank < records->size(); ++rank) {
    FOREBAY_ASSIGN_OR_RETURN(const Json its,
                             ParseJson((*records)[rank], fmt::format("what rank {} can do", rank)));
    const auto code = static_cast<ExitCode>(its.value("exit_code", 0));
    if (code == ExitCode::kOk) continue;
    return ErrorOf(code, fmt::format("rank {} ({}): {}", rank, ranks.host(static_cast<int>(rank)),
                                     its.value("message", "")));
  }
  return absl::OkStatus();
}

std::string UpdateTimesOf(const Placement& placement) {
  std::string digits;
  for (const UpdateTime time : placement.update_times) {
    digits.push_back(static_cast<char>('0' + static_cast<int>(time)));
  }
  return digits;
}

absl::StatusOr<NewestCommit> FindNewestCommit(TensorStore& store, Communicator& ranks) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<CommitStanding> standings,
                           GatherValues(ranks, StandingOf(store)));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                           ranks.GatherRecords(store.committed().trainer.dump()));
  NewestCommit newest;
  FOREBAY_ASSIGN_OR_RETURN(newest.rank, NewestRank(standings));
  newest.standing = standings[newest.rank];
  FOREBAY_ASSIGN_OR_RETURN(
      newest.trainer, ParseJson(words[newest.rank], fmt::format("commit of rank {}", newest.rank)));
  return newest;
}

}  // namespace forebay
