// One collective operation as rounds of exchanges between all ranks, over any transport.
//
// A vector moves in pieces of fixed size: in round k every rank sends the piece k of part r to the
// rank r, and adds what it gets in the order of the ranks (reduce-scatter); or sends its own piece
// k to all (all-gather). Each value crosses as often as it must: n bytes are (N-1)/N n bytes sent
// and received by each rank in either. Memory is the same however long the vector is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/collective/call_header.h"
#include "forebay/collective/communicator.h"
#include "forebay/collective/transport.h"
#include "forebay/memory/device_allocation.h"
#include "forebay/memory/host_buffer.h"

namespace forebay {

struct CollectiveOperation {
  CollectiveKind kind = CollectiveKind::kBarrier;
  CollectiveMemory memory;
  std::span<const int64_t> offsets;  // of parts, in units of `unit_bytes`
  int64_t unit_bytes = 1;
  int root = 0;
  std::string_view record;                      // of kRecords
  std::vector<std::string>* records = nullptr;  // [N], filled
};

// Owned by one thread, but for traffic().
class CollectiveRounds {
 public:
  // The transports must outlive it. OutOfMemoryError, or an error of the device.
  static absl::StatusOr<std::unique_ptr<CollectiveRounds>> Create(
      Transport& transport, DeviceTransport* device_transport, const CommunicatorOptions& options);

  // Returns when this rank's part in it is done. `stop` ends it early, as this rank's failure.
  MaybeFailure Run(const CollectiveOperation& operation, const std::atomic<bool>& stop);

  CollectiveTraffic traffic() const;

 private:
  // How the memory of an operation is reached.
  enum class Path { kHost, kThroughScratch, kDevice };
  // Bytes of each rank's part in one round; of kThroughScratch both where they lie and their copy.
  using Pieces = std::vector<std::span<std::byte>>;

  CollectiveRounds(Transport& transport, DeviceTransport* device_transport,
                   const CommunicatorOptions& options);
  absl::Status Allocate(const CommunicatorOptions& options);

  Path PathOf(const CollectiveMemory& memory) const;
  MaybeFailure AwaitReady(Event& ready);
  MaybeFailure CompareHeaders(const CollectiveOperation& operation);
  MaybeFailure ReduceScatter();
  // Every rank's part to every rank but `sated`, which has all; -1: to every rank.
  MaybeFailure AllGather(int sated);
  MaybeFailure Scatter(int root);
  MaybeFailure GatherRecords();

  void UseEvenParts(int64_t size_bytes, int64_t unit_bytes);
  int64_t NumRounds() const;
  void CutPieces(int64_t round);
  MaybeFailure ReduceRound();
  MaybeFailure GatherRound(int sated);
  // The same of values that are rounded on their way.
  MaybeFailure ReduceNarrowRound();
  MaybeFailure GatherNarrowRound();
  // Says so of an all-reduce or a reduce-scatter.
  bool IsNarrow() const { return operation_->memory.wire != DType::kF32 && size_ > 1; }
  // They hold what goes to a rank, and what comes from it, in this round.
  std::byte* OutgoingScratch(int rank) { return scratch_.data() + (size_ + rank) * piece_bytes_; }
  std::byte* IncomingScratch(int rank) { return scratch_.data() + rank * piece_bytes_; }
  MaybeFailure ScatterRound(int root);
  // Between where the pieces lie and the scratch memory, through which they pass; `which`: those of
  // these ranks.
  template <typename Which>
  MaybeFailure CopyIn(const Which& which);
  template <typename Which>
  MaybeFailure CopyOut(const Which& which);
  MaybeFailure Exchange();
  MaybeFailure Sum(float* sum, int64_t num_elems);
  MaybeFailure OwnFailure(const absl::Status& status) const;

  Transport& transport_;
  DeviceTransport* const device_transport_;
  const int rank_;
  const int size_;
  const double timeout_s_;
  const int64_t piece_bytes_;

  MemoryBudget uncounted_{0};
  // [2 N, piece_bytes]: what comes in; copies of device memory, or what goes out rounded.
  HostBuffer scratch_;
  DeviceAllocation device_scratch_;  // [N, piece_bytes]: what comes in there
  std::unique_ptr<Stream> stream_;   // of copies

  // The operation that runs, with its state.
  const CollectiveOperation* operation_ = nullptr;
  const std::atomic<bool>* stop_ = nullptr;
  Path path_ = Path::kHost;
  std::span<const int64_t> offsets_;
  int64_t unit_bytes_ = 1;
  std::vector<int64_t> even_offsets_;
  std::vector<CallHeader> headers_;
  Pieces places_;  // where the values are
  Pieces pieces_;  // where they are exchanged: the same, or in the scratch memory
  std::vector<OutgoingBytes> outgoing_;
  std::vector<IncomingBytes> incoming_;
  std::vector<const float*> addends_;
  std::vector<const std::byte*> narrow_addends_;

  std::atomic<int64_t> num_calls_{0};
  std::atomic<int64_t> sent_bytes_{0};
  std::atomic<int64_t> received_bytes_{0};
};

}  // namespace forebay
