#include "forebay/offload/largest_term.h"

#include "absl/strings/cord.h"

namespace forebay {
namespace {

constexpr char kLargestTermPayload[] = "forebay/largest_term";
constexpr char kLeastBytesPayload[] = "forebay/least_bytes";
constexpr char kGpuPayload[] = "forebay/lacks_on_gpu";

bool LacksOnGpu(const absl::Status& status) {
  return status.GetPayload(kGpuPayload).has_value();
}

}  // namespace

absl::Status WithLargestTerm(absl::Status status, std::string_view term, int64_t least_bytes,
                             MemoryOf of) {
  if (of == MemoryOf::kGpu) status.SetPayload(kGpuPayload, absl::Cord());
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

bool LacksLess(const absl::Status& first, const absl::Status& second) {
  if (LacksOnGpu(first) != LacksOnGpu(second)) return LacksOnGpu(second);
  return LeastBytesOf(first) < LeastBytesOf(second);
}

}  // namespace forebay
