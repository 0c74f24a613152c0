#include "forebay/offload/largest_term.h"

#include "absl/strings/cord.h"

namespace forebay {
namespace {

constexpr char kLargestTermPayload[] = "forebay/largest_term";
constexpr char kLeastBytesPayload[] = "forebay/least_bytes";

}  // namespace

absl::Status WithLargestTerm(absl::Status status, std::string_view term, int64_t least_bytes) {
  status.SetPayload(kLargestTermPayload, absl::Cord(std::string(term)));
  status.SetPayload(kLeastBytesPayload, absl::Cord(std::to_string(least_bytes)));
  return status;
}

std::string LargestTermOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kLargestTermPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

int64_t LeastBytesOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kLeastBytesPayload);
  return payload.has_value() ? std::stoll(std::string(*payload)) : 0;
}

}  // namespace forebay
