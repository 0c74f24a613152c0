#include "forebay/collective/call_header.h"

#include <cstring>

#include "fmt/format.h"
#include "forebay/base/dtype.h"
#include "forebay/base/hash.h"

namespace forebay {

static_assert(sizeof(CallHeader) == 56, "no padding: it is compared and sent as bytes");

uint64_t HashOffsets(std::span<const int64_t> offsets) {
  return Xxh3_64(std::as_bytes(offsets));
}

bool BelongTogether(const CallHeader& a, const CallHeader& b) {
  CallHeader same = b;
  same.record_bytes = a.record_bytes;
  return std::memcmp(&a, &same, sizeof a) == 0;
}

std::string DescribeCall(const CallHeader& call) {
  const auto wire = static_cast<DType>(call.wire);
  const std::string device =
      fmt::format("{}{}{}", wire == DType::kF32 ? "" : fmt::format(" as {}", NameOf(wire)),
                  call.layer < 0 ? "" : fmt::format(" of layer {}", call.layer),
                  call.by_device_transport != 0 ? " in device memory" : "");
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      return fmt::format("all-reduce of {} fp32 values{}", call.size_bytes / 4, device);
    case CollectiveKind::kReduceScatter:
      return fmt::format("reduce-scatter of {} fp32 values{} in parts {:08x}", call.size_bytes / 4,
                         device, call.offsets_hash);
    case CollectiveKind::kAllGather:
      return fmt::format("all-gather of {} bytes{} in parts {:08x}", call.size_bytes, device,
                         call.offsets_hash);
    case CollectiveKind::kBroadcast:
      return fmt::format("broadcast of {} bytes{} from rank {}", call.size_bytes, device,
                         call.root);
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kRecords:
      return "gathering of records";
  }
  return fmt::format("call of kind {}", static_cast<int>(call.kind));
}

}  // namespace forebay
