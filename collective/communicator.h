// The operations that the processes of one run ("ranks") do together: sums of gradients, gathering
// of parameters, votes. One class over any number of ranks; how bytes go from rank to rank is a
// Transport's business (collective/transport.h), and collective/connect/connect.h makes both.
//
// The contract:
//   - Every rank makes the same calls in the same order, with the same sizes. A rank that does not
//     is an error that names both calls.
//   - A sum is taken in the order of the ranks, 0 first, in fp32: ((v0 + v1) + v2) + ... So its
//     bits depend on the values and on the number of ranks alone, and an all-reduce is a
//     reduce-scatter and an all-gather, bit for bit. Values may be rounded to 16 bits on their way
//     (CollectiveMemory::wire): that changes the sums, and nothing else of this.
//   - Every wait for another rank ends. A rank that dies, hangs or leaves, or that called Abort,
//     ends the calls of all others within `timeout_s` with an EnvironmentError that has its number,
//     its host and, where it could send one, its reason. From then on every call returns that
//     error.
//   - No call allocates, but GatherRecords: memory is taken once, by Create.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/device/device.h"
#include "forebay/memory/memory_budget.h"

namespace forebay {

class Transport;
class DeviceTransport;

// Where the values of a collective operation lie: in host memory, or in that of the device of the
// options. Borrowed until the operation is complete.
struct CollectiveMemory {
  std::byte* data = nullptr;
  int64_t size_bytes = 0;
  bool on_device = false;
  // The operation touches the memory only when it is reached. nullptr: at once. Borrowed as well.
  Event* ready = nullptr;
  // The layer whose values they are: ranks that name different ones make different calls, also
  // where the sizes are the same. -1: none is named.
  int64_t layer = -1;
  // Of sums in host memory: each rank's values are rounded to this type, added in fp32 in the order
  // of the ranks, and the sums are rounded to it too. 16 bits halve the bytes that are moved. One
  // rank's values are left as they are.
  DType wire = DType::kF32;
};

template <typename T>
CollectiveMemory OnHost(std::span<T> values) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {.data = reinterpret_cast<std::byte*>(values.data()),
          .size_bytes = static_cast<int64_t>(values.size_bytes())};
}

inline CollectiveMemory OnDevice(void* data, int64_t size_bytes, Event* ready) {
  return {.data = static_cast<std::byte*>(data),
          .size_bytes = size_bytes,
          .on_device = true,
          .ready = ready};
}

// Names an operation that was started. Operations are complete in the order of their start.
struct CollectiveTicket {
  int64_t number = 0;
};

// The bytes that one rank sent and received so far: the values alone, without the headers of
// calls. For n bytes on N ranks, even parts: (N-1)/N n of a reduce-scatter and of an all-gather,
// twice that of an all-reduce; what is received is as much.
struct CollectiveTraffic {
  int64_t num_calls = 0;
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
};

struct CommunicatorOptions {
  // The longest wait for another rank to do the next thing (--set=rank_timeout). A slow one counts
  // as one that hangs.
  double timeout_s = 60;
  MemoryBudget* budget = nullptr;  // charged with the scratch memory; nullptr: not counted
  int64_t scratch_bytes = int64_t{8} << 20;
  Device* device = nullptr;  // whose memory operations may name; must outlive the communicator
  MemoryBudget* device_budget = nullptr;  // as `budget`, for what lies in the device's memory
};

// So many operations may be started and not yet complete.
inline constexpr int64_t kMaxPendingCollectives = 64;

// N + 1 offsets that cut `num_elems` into N parts, equal but for a remainder: the first parts have
// one more. As a vector, and into memory that is there.
std::vector<int64_t> EvenParts(int64_t num_elems, int num_ranks);
void CutEvenly(int64_t num_elems, std::span<int64_t> offsets);

// Thread-compatible, but for Abort, which any thread may call. One thread of its own does the work
// where there are others (none with one rank), so that operations go on beside the computation.
class Communicator {
 public:
  // One rank: every operation is complete when its memory is ready, and nothing is copied. Abort
  // does nothing.
  static std::unique_ptr<Communicator> CreateAlone();
  // `device_transport`: moves device memory without a detour through the host; nullptr: pieces of
  // it pass through the scratch memory. `device_path`: what device_path() is to say of that.
  // OutOfMemoryError, EnvironmentError (no thread to be had).
  static absl::StatusOr<std::unique_ptr<Communicator>> Create(
      std::unique_ptr<Transport> transport, std::unique_ptr<DeviceTransport> device_transport,
      const CommunicatorOptions& options, std::string_view device_path = "through host memory");
  // Waits until what was started is complete, or has failed. Ranks that still call find that this
  // one has left.
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& host(int rank) const = 0;  // the name that the rank's machine has
  // The ranks on the machine of this one, which share its memory and cores.
  int num_ranks_here() const {
    int count = 0;
    for (int other = 0; other < size(); ++other) count += host(other) == host(rank()) ? 1 : 0;
    return count;
  }
  // How device memory goes from rank to rank, and why not by NCCL: for logs.
  virtual const std::string& device_path() const = 0;
  // One line about the ranks' connections for the user, such as that they are not authenticated;
  // "" if there is nothing to say.
  virtual std::string Warning() const { return ""; }

  // Each returns at once; where kMaxPendingCollectives wait already, when the first is complete.
  //
  // Every rank's `values`, [n] fp32, become their sum.
  virtual CollectiveTicket StartAllReduce(const CollectiveMemory& values) = 0;
  // `values`: [n] fp32 on every rank. offsets: [N + 1], in elements, ascending from 0 to n and the
  // same on every rank; part r is [offsets[r], offsets[r + 1]), which may be empty. The own part
  // becomes its sum over the ranks; the others are left as they were.
  virtual CollectiveTicket StartReduceScatter(const CollectiveMemory& values,
                                              std::span<const int64_t> offsets) = 0;
  // `bytes`: [n] on every rank, whose own part is filled; becomes every rank's part. offsets: as
  // above, in bytes.
  virtual CollectiveTicket StartAllGather(const CollectiveMemory& bytes,
                                          std::span<const int64_t> offsets) = 0;
  // `bytes` becomes rank `root`'s.
  virtual CollectiveTicket StartBroadcast(const CollectiveMemory& bytes, int root) = 0;

  // Whether the operation is complete, without waiting.
  virtual absl::StatusOr<bool> IsComplete(CollectiveTicket ticket) = 0;
  // Until it is. Its results are then there for all that is done or enqueued on the device later.
  // When it returns, with an error too, the memory is the caller's again.
  virtual absl::Status Await(CollectiveTicket ticket) = 0;

  absl::Status AllReduce(std::span<float> values) { return Await(StartAllReduce(OnHost(values))); }
  absl::Status ReduceScatter(std::span<float> values, std::span<const int64_t> offsets) {
    return Await(StartReduceScatter(OnHost(values), offsets));
  }
  absl::Status AllGather(std::span<std::byte> bytes, std::span<const int64_t> offsets) {
    return Await(StartAllGather(OnHost(bytes), offsets));
  }
  absl::Status Broadcast(std::span<std::byte> bytes, int root) {
    return Await(StartBroadcast(OnHost(bytes), root));
  }
  // Returns when every rank has called it, and what was started before it is complete.
  virtual absl::Status Barrier() = 0;
  // The text of each rank, in their order; lengths may differ. For agreement and votes. Requires:
  // own.size() <= kMaxRecordBytes.
  static constexpr int64_t kMaxRecordBytes = int64_t{64} << 20;
  virtual absl::StatusOr<std::vector<std::string>> GatherRecords(std::string_view own) = 0;

  // This rank cannot go on: ends what is under way, here and on every rank that can still be
  // reached, with the message and the exit code of `why`. Thread-safe; the first call counts.
  // Requires: !why.ok().
  virtual void Abort(const absl::Status& why) = 0;

  virtual CollectiveTraffic traffic() const = 0;
};

}  // namespace forebay
