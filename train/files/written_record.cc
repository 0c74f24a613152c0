#include "forebay/train/files/written_record.h"

#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json_fields.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/metrics_lines.h"

namespace forebay {
namespace {

constexpr int64_t kMostFileBytes = 4096;
constexpr int64_t kMostWrittenBytes = int64_t{1} << 61;  // the sum of two is still one

bool IsRecord(const Json& json) {
  return json.is_object() && json.contains("written_bytes") && json.contains("step") &&
         json.contains("ended") && IsIntegerIn(json["written_bytes"], 0, kMostWrittenBytes) &&
         IsIntegerIn(json["step"], 0, kMostSteps) && json["ended"].is_boolean();
}

}  // namespace

absl::StatusOr<std::optional<WrittenRecord>> ReadWrittenRecord(const std::string& path) {
  if (!FileExists(path)) return std::nullopt;
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path, kMostFileBytes));
  if (!IsRecord(json)) {
    return CorruptError(
        fmt::format("'{}' is damaged: 'written_bytes' and 'step' have to be whole numbers, and "
                    "'ended' true or false",
                    path));
  }
  return WrittenRecord{json["written_bytes"].get<int64_t>(), json["step"].get<int64_t>(),
                       json["ended"].get<bool>()};
}

absl::Status WriteWrittenRecord(const std::string& path, const WrittenRecord& record) {
  const Json json = {
      {"written_bytes", record.bytes}, {"step", record.step}, {"ended", record.ended}};
  return WriteFileAtomically(path, json.dump(2) + "\n");
}

int64_t WrittenBefore(const RunPaths& paths, const CommitInfo& committed, const MostWritten& most) {
  // The commit that the store is made with has no count, nor has one of an earlier version.
  const bool commit_counts = committed.trainer.contains(kWrittenBytesKey);
  const int64_t by_commit =
      commit_counts ? committed.trainer[kWrittenBytesKey].get<int64_t>() : most.making_bytes;
  const auto record = ReadWrittenRecord(paths.written);
  const bool is_known = record.ok() && record->has_value();
  // A commit that counts more is a later session's, of a version that writes no record.
  if (is_known && (*record)->ended && (!commit_counts || by_commit <= (*record)->bytes)) {
    return (*record)->bytes;
  }
  const int64_t at_least = is_known ? std::max(by_commit, (*record)->bytes) : by_commit;
  const int64_t last_counted = is_known || commit_counts ? committed.step : 0;
  return at_least + most.step_bytes + WriteBytesInMetrics(paths.metrics, last_counted);
}

}  // namespace forebay
