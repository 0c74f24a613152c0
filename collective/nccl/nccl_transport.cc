#include "forebay/collective/nccl/nccl_transport.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/collective/nccl/nccl.h"
#include "forebay/collective/rank_failures.h"
#include "forebay/collective/sum_cuda.h"

namespace forebay {
namespace {

constexpr std::chrono::microseconds kNcclPause(20);

class NcclTransport : public DeviceTransport {
 public:
  NcclTransport(const Nccl& nccl, int rank, std::unique_ptr<Stream> stream,
                std::unique_ptr<Event> done)
      : nccl_(nccl), rank_(rank), stream_(std::move(stream)), done_(std::move(done)) {}
  ~NcclTransport() override {
    if (communicator_ == nullptr) return;
    const std::atomic<bool> stop = false;
    nccl_.CommFinalize(communicator_);
    if (Settle({.timeout_s = 1, .stop = stop}, nullptr).has_value()) return;  // which aborts it
    nccl_.CommDestroy(communicator_);
  }

  // Waits for all ranks, which have the same `id`.
  MaybeFailure Join(int num_ranks, const Nccl::UniqueId& id, double timeout_s,
                    Transport& transport) {
    const std::atomic<bool> stop = false;
    Nccl::Config config;
    const absl::Status joined = stream_->Launch([&](void*) {
      return StatusOf(nccl_.CommInitRankConfig(&communicator_, num_ranks, id, rank_, &config));
    });
    if (!joined.ok()) return OwnFailure(joined);
    return Settle({.timeout_s = timeout_s, .stop = stop}, &transport);
  }

  MaybeFailure Exchange(std::span<const OutgoingBytes> outgoing,
                        std::span<const IncomingBytes> incoming, const WaitLimit& limit,
                        Transport& transport) override;
  MaybeFailure Sum(std::span<const float* const> values, float* sum, int64_t num_elems) override {
    absl::Status status = stream_->Launch([&](void* native_stream) {
      return SumInRankOrderCuda(values, sum, num_elems, native_stream);
    });
    if (status.ok()) status = stream_->Await();
    return status.ok() ? std::nullopt : OwnFailure(status);
  }

 private:
  // Calls of a communicator that does not block may be under way when they return.
  absl::Status StatusOf(int error) const {
    if (error == Nccl::kSuccess || error == Nccl::kInProgress) return absl::OkStatus();
    return EnvironmentError(fmt::format("got an error of NCCL: {}", nccl_.GetErrorString(error)));
  }
  MaybeFailure OwnFailure(const absl::Status& status) {
    Abort();
    return RankFailure{rank_, MessageOf(status), ExitCodeOf(status)};
  }
  // Until NCCL has enqueued what it was given. transport: looked at meanwhile; may be nullptr.
  MaybeFailure Settle(const WaitLimit& limit, Transport* transport);
  MaybeFailure AwaitDone(const WaitLimit& limit, Transport& transport);
  // The reason why a wait of either ends: the time, a stop, another rank.
  MaybeFailure EndOfWait(const WaitLimit& limit, std::chrono::steady_clock::time_point begin,
                         Transport* transport);
  // Ends what is under way on the GPU.
  void Abort() {
    if (communicator_ != nullptr) nccl_.CommAbort(std::exchange(communicator_, nullptr));
  }

  const Nccl& nccl_;
  const int rank_;
  const std::unique_ptr<Stream> stream_;
  const std::unique_ptr<Event> done_;
  Nccl::Communicator communicator_ = nullptr;
};

MaybeFailure NcclTransport::EndOfWait(const WaitLimit& limit,
                                      std::chrono::steady_clock::time_point begin,
                                      Transport* transport) {
  MaybeFailure failure;
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  if (transport != nullptr) failure = transport->Look();
  if (!failure.has_value() && limit.stop) failure = WasStopped(rank_);
  if (!failure.has_value() && waited.count() > limit.timeout_s) {
    failure = RankFailure{
        rank_,
        fmt::format(
            "waited {:g} s (--set=rank_timeout, timeout_s) for the GPU of another rank, in NCCL",
            limit.timeout_s)};
  }
  if (failure.has_value()) Abort();
  std::this_thread::sleep_for(kNcclPause);
  return failure;
}

MaybeFailure NcclTransport::Settle(const WaitLimit& limit, Transport* transport) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    int error = Nccl::kSuccess;
    int asked = Nccl::kSuccess;
    const absl::Status status = stream_->Launch([&](void*) {
      asked = nccl_.CommGetAsyncError(communicator_, &error);
      return StatusOf(asked != Nccl::kSuccess ? asked : error);
    });
    if (!status.ok()) return OwnFailure(status);
    if (error == Nccl::kSuccess) return std::nullopt;
    if (MaybeFailure failure = EndOfWait(limit, begin, transport)) return failure;
  }
}

MaybeFailure NcclTransport::AwaitDone(const WaitLimit& limit, Transport& transport) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    const absl::StatusOr<bool> is_reached = done_->IsReached();
    if (!is_reached.ok()) return OwnFailure(is_reached.status());
    if (*is_reached) return std::nullopt;
    if (MaybeFailure failure = EndOfWait(limit, begin, &transport)) return failure;
  }
}

MaybeFailure NcclTransport::Exchange(std::span<const OutgoingBytes> outgoing,
                                     std::span<const IncomingBytes> incoming,
                                     const WaitLimit& limit, Transport& transport) {
  const absl::Status begun = stream_->Launch([&](void* native_stream) {
    FOREBAY_RETURN_IF_ERROR(StatusOf(nccl_.GroupStart()));
    for (const auto& [to, bytes] : outgoing) {
      if (bytes.empty()) continue;
      FOREBAY_RETURN_IF_ERROR(StatusOf(
          nccl_.Send(bytes.data(), bytes.size(), Nccl::kInt8, to, communicator_, native_stream)));
    }
    for (const auto& [from, bytes] : incoming) {
      if (bytes.empty()) continue;
      FOREBAY_RETURN_IF_ERROR(StatusOf(
          nccl_.Recv(bytes.data(), bytes.size(), Nccl::kInt8, from, communicator_, native_stream)));
    }
    return StatusOf(nccl_.GroupEnd());
  });
  if (!begun.ok()) return OwnFailure(begun);
  if (MaybeFailure failure = Settle(limit, &transport)) return failure;
  const absl::Status recorded = stream_->Record(*done_);
  if (!recorded.ok()) return OwnFailure(recorded);
  return AwaitDone(limit, transport);
}

// The vote of each rank before NCCL is used: it can, or why not.
struct NcclVote {
  int32_t can = 0;
  int32_t unused = 0;
  char why_not[504] = "";
};

// How the ranks agree, over their transport.
class NcclAgreement {
 public:
  NcclAgreement(Transport& transport, double timeout_s)
      : transport_(transport), timeout_s_(timeout_s) {}

  // The first rank's error, the same on every rank.
  absl::Status Vote(const absl::Status& own) {
    std::vector<NcclVote> votes(static_cast<size_t>(transport_.size()));
    NcclVote& vote = votes[static_cast<size_t>(transport_.rank())];
    vote.can = own.ok();
    const std::string message = MessageOf(own);
    std::memcpy(vote.why_not, message.data(), std::min(message.size(), sizeof vote.why_not - 1));
    FOREBAY_RETURN_IF_ERROR(ShareAll(votes));
    for (size_t r = 0; r < votes.size(); ++r) {
      if (votes[r].can != 0) continue;
      return EnvironmentError(fmt::format("rank {} on {} cannot use NCCL: {}", r,
                                          transport_.host(static_cast<int>(r)), votes[r].why_not));
    }
    return absl::OkStatus();
  }

  // [size], of which this rank filled its own.
  template <typename T>
  absl::Status ShareAll(std::vector<T>& of_ranks) {
    std::vector<OutgoingBytes> outgoing;
    std::vector<IncomingBytes> incoming;
    const auto own = static_cast<size_t>(transport_.rank());
    for (size_t r = 0; r < of_ranks.size(); ++r) {
      if (r == own) continue;
      outgoing.push_back({static_cast<int>(r), std::as_bytes(std::span(&of_ranks[own], 1))});
      incoming.push_back({static_cast<int>(r), std::as_writable_bytes(std::span(&of_ranks[r], 1))});
    }
    const std::atomic<bool> stop = false;
    const MaybeFailure failure = transport_.Exchange(outgoing, incoming, {timeout_s_, stop});
    if (!failure.has_value()) return absl::OkStatus();
    return ErrorOf(failure->code, fmt::format("rank {} on {} {}", failure->rank,
                                              transport_.host(failure->rank), failure->reason));
  }

 private:
  Transport& transport_;
  const double timeout_s_;
};

absl::StatusOr<std::unique_ptr<NcclTransport>> PrepareNccl(Transport& transport, Device& device) {
  if (device.kind() != DeviceKind::kCuda) return EnvironmentError("its device is no GPU");
  if (transport.size() > kMostRanksOfSumCuda) {
    return EnvironmentError(
        fmt::format("{} ranks are more than {}", transport.size(), kMostRanksOfSumCuda));
  }
  FOREBAY_ASSIGN_OR_RETURN(const Nccl* const nccl, LoadNccl());
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Stream> stream, device.CreateStream());
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Event> done, device.CreateEvent());
  return std::make_unique<NcclTransport>(*nccl, transport.rank(), std::move(stream),
                                         std::move(done));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceTransport>> ConnectNccl(Transport& transport, Device& device,
                                                             double timeout_s) {
  NcclAgreement agreement(transport, timeout_s);
  absl::StatusOr<std::unique_ptr<NcclTransport>> prepared = PrepareNccl(transport, device);
  std::vector<Nccl::UniqueId> ids(static_cast<size_t>(transport.size()));
  if (prepared.ok() && transport.rank() == 0) {
    if ((*LoadNccl())->GetUniqueId(ids.data()) != Nccl::kSuccess) {
      prepared = EnvironmentError("NCCL gives no id for the ranks");
    }
  }
  FOREBAY_RETURN_IF_ERROR(agreement.Vote(prepared.status()));
  FOREBAY_RETURN_IF_ERROR(agreement.ShareAll(ids));
  const MaybeFailure failure = (*prepared)->Join(transport.size(), ids[0], timeout_s, transport);
  // Above all two ranks on one GPU, which NCCL refuses.
  FOREBAY_RETURN_IF_ERROR(
      agreement.Vote(failure.has_value() ? EnvironmentError(failure->reason) : absl::OkStatus()));
  return std::unique_ptr<DeviceTransport>(*std::move(prepared));
}

}  // namespace forebay
