#include "forebay/train/files/run_algorithms.h"

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {
namespace {

constexpr int64_t kMostBytesOfAlgorithms = int64_t{1} << 20;

absl::StatusOr<MatmulAlgorithms> ReadRecord(const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path, kMostBytesOfAlgorithms));
  return AlgorithmsFrom(json, path);
}

}  // namespace

MatmulAlgorithms ReadAlgorithms(const std::string& path, std::string& note) {
  if (!FileExists(path)) return {};
  absl::StatusOr<MatmulAlgorithms> read = ReadRecord(path);
  if (read.ok()) return *std::move(read);
  note = fmt::format("the algorithms of matrix products are chosen anew: {}",
                     MessageOf(read.status()));
  return {};
}

absl::Status WriteAlgorithms(const std::string& path, const MatmulAlgorithms& algorithms) {
  return WriteFileAtomically(path, ToJson(algorithms).dump(1) + "\n");
}

}  // namespace forebay
