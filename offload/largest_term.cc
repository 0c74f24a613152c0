#include "forebay/offload/largest_term.h"

#include "absl/strings/cord.h"

namespace forebay {
namespace {

constexpr char kLargestTermPayload[] = "forebay/largest_term";

}  // namespace

absl::Status WithLargestTerm(absl::Status status, std::string_view term) {
  status.SetPayload(kLargestTermPayload, absl::Cord(std::string(term)));
  return status;
}

std::string LargestTermOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kLargestTermPayload);
  return payload.has_value() ? std::string(*payload) : "";
}

}  // namespace forebay
