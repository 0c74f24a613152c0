#include "forebay/collective/collective_rounds.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/collective/sum_in_rank_order.h"
#include "forebay/collective/wire.h"

#define FOREBAY_RETURN_FAILURE(expression)                   \
  do {                                                       \
    if (MaybeFailure failure = (expression)) return failure; \
  } while (false)

namespace forebay {
namespace {

constexpr int64_t kFloatBytes = sizeof(float);

// Whole cache lines, so that no piece shares one with another. Scratch memory has two for each
// rank: what comes from it, and what goes to it where that is no memory of the caller.
int64_t PieceBytes(int64_t scratch_bytes, int num_ranks) {
  return scratch_bytes / (2 * num_ranks) / 64 * 64;
}

float* AsFloats(std::byte* data) {
  return reinterpret_cast<float*>(data);
}

std::span<float> FloatsOf(std::span<std::byte> bytes) {
  return {AsFloats(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace

CollectiveRounds::CollectiveRounds(Transport& transport, DeviceTransport* device_transport,
                                   const CommunicatorOptions& options)
    : transport_(transport),
      device_transport_(device_transport),
      rank_(transport.rank()),
      size_(transport.size()),
      timeout_s_(options.timeout_s),
      piece_bytes_(PieceBytes(options.scratch_bytes, transport.size())),
      even_offsets_(static_cast<size_t>(size_) + 1),
      headers_(static_cast<size_t>(size_)),
      places_(static_cast<size_t>(size_)),
      pieces_(static_cast<size_t>(size_)),
      addends_(static_cast<size_t>(size_)),
      narrow_addends_(static_cast<size_t>(size_)) {
  outgoing_.reserve(static_cast<size_t>(size_));
  incoming_.reserve(static_cast<size_t>(size_));
}

absl::StatusOr<std::unique_ptr<CollectiveRounds>> CollectiveRounds::Create(
    Transport& transport, DeviceTransport* device_transport, const CommunicatorOptions& options) {
  FOREBAY_CHECK(PieceBytes(options.scratch_bytes, transport.size()) > 0);
  FOREBAY_CHECK(device_transport == nullptr || options.device != nullptr);
  std::unique_ptr<CollectiveRounds> rounds(
      new CollectiveRounds(transport, device_transport, options));
  FOREBAY_RETURN_IF_ERROR(rounds->Allocate(options));
  return rounds;
}

absl::Status CollectiveRounds::Allocate(const CommunicatorOptions& options) {
  constexpr const char* kPurpose = "exchange between ranks";
  const auto or_uncounted = [this](MemoryBudget* budget) {
    return budget == nullptr ? &uncounted_ : budget;
  };
  FOREBAY_ASSIGN_OR_RETURN(
      scratch_, HostBuffer::Create(or_uncounted(options.budget), kPurpose, 2 * size_ * piece_bytes_,
                                   {.device = options.device}));
  if (options.device == nullptr) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(stream_, options.device->CreateStream());
  if (device_transport_ == nullptr) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(
      device_scratch_, DeviceAllocation::Create(or_uncounted(options.device_budget), options.device,
                                                kPurpose, size_ * piece_bytes_));
  return absl::OkStatus();
}

CollectiveTraffic CollectiveRounds::traffic() const {
  return {num_calls_, sent_bytes_, received_bytes_};
}

MaybeFailure CollectiveRounds::OwnFailure(const absl::Status& status) const {
  if (status.ok()) return std::nullopt;
  return RankFailure{rank_, MessageOf(status), ExitCodeOf(status)};
}

MaybeFailure CollectiveRounds::Run(const CollectiveOperation& operation,
                                   const std::atomic<bool>& stop) {
  operation_ = &operation;
  stop_ = &stop;
  path_ = PathOf(operation.memory);
  offsets_ = operation.offsets;
  unit_bytes_ = operation.unit_bytes;
  if (operation.memory.ready != nullptr)
    FOREBAY_RETURN_FAILURE(AwaitReady(*operation.memory.ready));
  FOREBAY_RETURN_FAILURE(CompareHeaders(operation));
  ++num_calls_;
  switch (operation.kind) {
    case CollectiveKind::kBarrier:
      return std::nullopt;
    case CollectiveKind::kRecords:
      return GatherRecords();
    case CollectiveKind::kReduceScatter:
      return ReduceScatter();
    case CollectiveKind::kAllGather:
      return AllGather(-1);
    case CollectiveKind::kAllReduce:
      UseEvenParts(operation.memory.size_bytes, kFloatBytes);
      FOREBAY_RETURN_FAILURE(ReduceScatter());
      return AllGather(-1);
    case CollectiveKind::kBroadcast:
      // Each rank gets a part and hands it on: the root sends no more than two vectors.
      UseEvenParts(operation.memory.size_bytes, 1);
      FOREBAY_RETURN_FAILURE(Scatter(operation.root));
      return AllGather(operation.root);
  }
  return std::nullopt;
}

CollectiveRounds::Path CollectiveRounds::PathOf(const CollectiveMemory& memory) const {
  if (!memory.on_device) return Path::kHost;
  FOREBAY_CHECK(stream_ != nullptr);
  return device_transport_ != nullptr ? Path::kDevice : Path::kThroughScratch;
}

// Copies of a device come at once, and layers that are read from a disk after a while.
MaybeFailure CollectiveRounds::AwaitReady(Event& ready) {
  constexpr std::chrono::microseconds kLongestPause{500};
  for (std::chrono::microseconds pause{20};; pause = std::min(2 * pause, kLongestPause)) {
    const absl::StatusOr<bool> is_reached = ready.IsReached();
    if (!is_reached.ok()) return OwnFailure(is_reached.status());
    if (*is_reached) return std::nullopt;
    if (*stop_) return RankFailure{rank_, "was stopped"};
    FOREBAY_RETURN_FAILURE(transport_.Look());
    std::this_thread::sleep_for(pause);
  }
}

MaybeFailure CollectiveRounds::CompareHeaders(const CollectiveOperation& operation) {
  CallHeader& own = headers_[static_cast<size_t>(rank_)];
  own = {.kind = operation.kind,
         .by_device_transport = path_ == Path::kDevice,
         .wire = static_cast<uint8_t>(operation.memory.wire),
         .root = operation.root,
         .number = num_calls_,
         .size_bytes = operation.memory.size_bytes,
         .offsets_hash = HashOffsets(operation.offsets),
         .piece_bytes = piece_bytes_,
         .layer = operation.memory.layer,
         .record_bytes = static_cast<int64_t>(operation.record.size())};
  outgoing_.clear();
  incoming_.clear();
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    outgoing_.push_back({r, std::as_bytes(std::span(&own, 1))});
    incoming_.push_back(
        {r, std::as_writable_bytes(std::span(&headers_[static_cast<size_t>(r)], 1))});
  }
  FOREBAY_RETURN_FAILURE(transport_.Exchange(outgoing_, incoming_, {timeout_s_, *stop_}));
  for (int r = 0; r < size_; ++r) {
    const CallHeader& other = headers_[static_cast<size_t>(r)];
    if (BelongTogether(own, other)) continue;
    return RankFailure{
        r, fmt::format(
               "made another call: {} where rank {} on {} made {} (call {} and {}, pieces of {} "
               "and {} bytes)",
               DescribeCall(other), rank_, transport_.host(rank_), DescribeCall(own), other.number,
               own.number, other.piece_bytes, own.piece_bytes)};
  }
  return std::nullopt;
}

void CollectiveRounds::UseEvenParts(int64_t size_bytes, int64_t unit_bytes) {
  CutEvenly(size_bytes / unit_bytes, even_offsets_);
  offsets_ = even_offsets_;
  unit_bytes_ = unit_bytes;
}

int64_t CollectiveRounds::NumRounds() const {
  int64_t longest = 0;
  for (size_t r = 0; r + 1 < offsets_.size(); ++r) {
    longest = std::max(longest, offsets_[r + 1] - offsets_[r]);
  }
  return (longest * unit_bytes_ + piece_bytes_ - 1) / piece_bytes_;
}

void CollectiveRounds::CutPieces(int64_t round) {
  for (size_t r = 0; r < places_.size(); ++r) {
    const int64_t end = offsets_[r + 1] * unit_bytes_;
    const int64_t begin = std::min(end, offsets_[r] * unit_bytes_ + round * piece_bytes_);
    const int64_t size_bytes = std::min(piece_bytes_, end - begin);
    places_[r] = {operation_->memory.data + begin, static_cast<size_t>(size_bytes)};
    pieces_[r] = places_[r];
    if (path_ != Path::kThroughScratch) continue;
    const int64_t copy = (size_ + static_cast<int64_t>(r)) * piece_bytes_;
    pieces_[r] = {scratch_.data() + copy, static_cast<size_t>(size_bytes)};
  }
}

template <typename Which>
MaybeFailure CollectiveRounds::CopyIn(const Which& which) {
  if (path_ != Path::kThroughScratch) return std::nullopt;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<size_t>(r);
    if (!which(r) || places_[i].empty()) continue;
    FOREBAY_RETURN_FAILURE(OwnFailure(stream_->CopyToHost(pieces_[i], places_[i].data())));
  }
  return OwnFailure(stream_->Await());
}

template <typename Which>
MaybeFailure CollectiveRounds::CopyOut(const Which& which) {
  if (path_ != Path::kThroughScratch) return std::nullopt;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<size_t>(r);
    if (!which(r) || places_[i].empty()) continue;
    FOREBAY_RETURN_FAILURE(OwnFailure(stream_->CopyToDevice(places_[i].data(), pieces_[i])));
  }
  return OwnFailure(stream_->Await());
}

MaybeFailure CollectiveRounds::Exchange() {
  for (const OutgoingBytes& item : outgoing_) sent_bytes_ += std::ssize(item.bytes);
  for (const IncomingBytes& item : incoming_) received_bytes_ += std::ssize(item.bytes);
  const WaitLimit limit = {timeout_s_, *stop_};
  if (path_ != Path::kDevice) return transport_.Exchange(outgoing_, incoming_, limit);
  return device_transport_->Exchange(outgoing_, incoming_, limit, transport_);
}

MaybeFailure CollectiveRounds::Sum(float* sum, int64_t num_elems) {
  if (path_ == Path::kDevice) return device_transport_->Sum(addends_, sum, num_elems);
  SumInRankOrder(addends_, sum, num_elems);
  return std::nullopt;
}

MaybeFailure CollectiveRounds::ReduceScatter() {
  const int64_t num_rounds = NumRounds();
  for (int64_t round = 0; round < num_rounds; ++round) {
    CutPieces(round);
    FOREBAY_RETURN_FAILURE(CopyIn([](int) { return true; }));
    FOREBAY_RETURN_FAILURE(ReduceRound());
    FOREBAY_RETURN_FAILURE(CopyOut([this](int r) { return r == rank_; }));
  }
  return std::nullopt;
}

MaybeFailure CollectiveRounds::ReduceRound() {
  if (IsNarrow()) return ReduceNarrowRound();
  std::byte* const scratch = path_ == Path::kDevice ? device_scratch_.address() : scratch_.data();
  const std::span<std::byte> own = pieces_[static_cast<size_t>(rank_)];
  outgoing_.clear();
  incoming_.clear();
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<size_t>(r);
    std::byte* const from_rank = r == rank_ ? own.data() : scratch + r * piece_bytes_;
    addends_[i] = AsFloats(from_rank);
    if (r == rank_) continue;
    outgoing_.push_back({r, pieces_[i]});
    incoming_.push_back({r, {from_rank, own.size()}});
  }
  FOREBAY_RETURN_FAILURE(Exchange());
  return Sum(AsFloats(own.data()), std::ssize(own) / kFloatBytes);
}

MaybeFailure CollectiveRounds::ReduceNarrowRound() {
  const DType wire = operation_->memory.wire;
  const std::span<std::byte> own = pieces_[static_cast<size_t>(rank_)];
  outgoing_.clear();
  incoming_.clear();
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<size_t>(r);
    Narrow(FloatsOf(pieces_[i]), wire, OutgoingScratch(r));
    // The own values are rounded too: the sum does not depend on whose part it is.
    narrow_addends_[i] = r == rank_ ? OutgoingScratch(r) : IncomingScratch(r);
    if (r == rank_) continue;
    outgoing_.push_back({r, {OutgoingScratch(r), pieces_[i].size() / 2}});
    incoming_.push_back({r, {IncomingScratch(r), own.size() / 2}});
  }
  FOREBAY_RETURN_FAILURE(Exchange());
  SumNarrowInRankOrder(narrow_addends_, wire, FloatsOf(own));
  return std::nullopt;
}

MaybeFailure CollectiveRounds::AllGather(int sated) {
  const int64_t num_rounds = NumRounds();
  for (int64_t round = 0; round < num_rounds; ++round) {
    CutPieces(round);
    FOREBAY_RETURN_FAILURE(CopyIn([this](int r) { return r == rank_; }));
    FOREBAY_RETURN_FAILURE(GatherRound(sated));
    if (sated == rank_) continue;
    FOREBAY_RETURN_FAILURE(CopyOut([this](int r) { return r != rank_; }));
  }
  return std::nullopt;
}

// Gathers sums, which are rounded already: nothing of them is lost.
MaybeFailure CollectiveRounds::GatherNarrowRound() {
  const DType wire = operation_->memory.wire;
  const std::span<std::byte> own = pieces_[static_cast<size_t>(rank_)];
  Narrow(FloatsOf(own), wire, OutgoingScratch(rank_));
  outgoing_.clear();
  incoming_.clear();
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    outgoing_.push_back({r, {OutgoingScratch(rank_), own.size() / 2}});
    incoming_.push_back({r, {IncomingScratch(r), pieces_[static_cast<size_t>(r)].size() / 2}});
  }
  FOREBAY_RETURN_FAILURE(Exchange());
  for (const IncomingBytes& item : incoming_) {
    Widen(item.bytes.data(), wire, FloatsOf(pieces_[static_cast<size_t>(item.rank)]));
  }
  return std::nullopt;
}

MaybeFailure CollectiveRounds::GatherRound(int sated) {
  if (IsNarrow()) return GatherNarrowRound();
  outgoing_.clear();
  incoming_.clear();
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    if (r != sated) outgoing_.push_back({r, pieces_[static_cast<size_t>(rank_)]});
    if (rank_ != sated) incoming_.push_back({r, pieces_[static_cast<size_t>(r)]});
  }
  return Exchange();
}

MaybeFailure CollectiveRounds::Scatter(int root) {
  const int64_t num_rounds = NumRounds();
  for (int64_t round = 0; round < num_rounds; ++round) {
    CutPieces(round);
    if (rank_ == root) FOREBAY_RETURN_FAILURE(CopyIn([](int) { return true; }));
    FOREBAY_RETURN_FAILURE(ScatterRound(root));
    if (rank_ != root) FOREBAY_RETURN_FAILURE(CopyOut([this](int r) { return r == rank_; }));
  }
  return std::nullopt;
}

MaybeFailure CollectiveRounds::ScatterRound(int root) {
  outgoing_.clear();
  incoming_.clear();
  if (rank_ != root) {
    incoming_.push_back({root, pieces_[static_cast<size_t>(rank_)]});
    return Exchange();
  }
  for (int r = 0; r < size_; ++r) {
    if (r != root) outgoing_.push_back({r, pieces_[static_cast<size_t>(r)]});
  }
  return Exchange();
}

MaybeFailure CollectiveRounds::GatherRecords() {
  std::vector<std::string>& records = *operation_->records;
  int64_t longest = 0;
  for (int r = 0; r < size_; ++r) {
    const int64_t size_bytes = headers_[static_cast<size_t>(r)].record_bytes;
    if (size_bytes < 0 || size_bytes > Communicator::kMaxRecordBytes) {
      return RankFailure{r, fmt::format("sent a record of {} bytes", size_bytes)};
    }
    records[static_cast<size_t>(r)].resize(static_cast<size_t>(size_bytes));
    longest = std::max(longest, size_bytes);
  }
  records[static_cast<size_t>(rank_)] = operation_->record;
  for (int64_t begin = 0; begin < longest; begin += piece_bytes_) {
    for (size_t r = 0; r < records.size(); ++r) {
      const auto all = std::as_writable_bytes(std::span(records[r]));
      const auto from = std::min(static_cast<size_t>(begin), all.size());
      pieces_[r] =
          all.subspan(from, std::min(static_cast<size_t>(piece_bytes_), all.size() - from));
    }
    FOREBAY_RETURN_FAILURE(GatherRound(-1));
  }
  return std::nullopt;
}

}  // namespace forebay

#undef FOREBAY_RETURN_FAILURE
