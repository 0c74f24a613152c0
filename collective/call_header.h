// The description of a call that ranks exchange before anything else moves, so that calls that do
// not belong together are an error and neither a hang nor garbage.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace forebay {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kRecords,
};

// Sent as it lies in memory: ranks of one run are of one build and one byte order.
struct CallHeader {
  CollectiveKind kind = CollectiveKind::kBarrier;
  uint8_t by_device_transport = 0;
  uint8_t wire = 0;  // CollectiveMemory::wire
  uint8_t unused = 0;
  int32_t root = 0;           // of a broadcast
  int64_t number = 0;         // of the call, from 0
  int64_t size_bytes = 0;     // of the whole vector
  uint64_t offsets_hash = 0;  // of the parts
  int64_t piece_bytes = 0;    // in which it moves
  int64_t layer = -1;         // CollectiveMemory::layer
  int64_t record_bytes = 0;   // of kRecords: the rank's own, which alone may differ
};

uint64_t HashOffsets(std::span<const int64_t> offsets);

bool BelongTogether(const CallHeader& a, const CallHeader& b);

// "all-reduce of 100 fp32 values", "broadcast of 17 bytes from rank 1".
std::string DescribeCall(const CallHeader& call);

}  // namespace forebay
