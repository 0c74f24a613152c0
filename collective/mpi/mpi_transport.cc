#include "forebay/collective/mpi/mpi_transport.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/collective/mpi/load_mpi.h"
#include "forebay/collective/rank_failures.h"

namespace forebay {
namespace {

// Asking is what makes an MPI go on. After so many answers without news there are pauses, which
// leave the core to the computation.
constexpr int kAnswersWithoutPause = 200;
constexpr std::chrono::microseconds kPause(30);
// After a failure a rank ends when all others know of it, or after so long: mpirun ends those that
// are left as soon as one does, and they too have something to say and to put in order.
constexpr std::chrono::seconds kTellingTime(2);

struct MpiNotice {
  int32_t rank = 0;
  int32_t exit_code = 0;
  char reason[kForebayMpiNoticeBytes - 8] = "";
};
static_assert(sizeof(MpiNotice) == kForebayMpiNoticeBytes);

class MpiTransport : public Transport {
 public:
  MpiTransport(const ForebayMpi* mpi, int rank, std::vector<std::string> hosts)
      : mpi_(mpi),
        rank_(rank),
        hosts_(std::move(hosts)),
        outgoing_(hosts_.size()),
        incoming_(hosts_.size()) {}
  // Without MPI_Finalize where something failed: it would wait for ranks that never come.
  ~MpiTransport() override {
    if (has_failed_) {
      AwaitNotices();
    } else {
      mpi_->close();
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(hosts_.size()); }
  const std::string& host(int rank) const override { return hosts_[static_cast<size_t>(rank)]; }

  MaybeFailure Exchange(std::span<const OutgoingBytes> outgoing,
                        std::span<const IncomingBytes> incoming, const WaitLimit& limit) override {
    MaybeFailure failure = Start(outgoing, incoming);
    if (!failure.has_value()) failure = AwaitAll(limit);
    if (failure.has_value()) {
      has_failed_ = true;
      GiveUp();
    }
    return failure;
  }
  MaybeFailure Look() override;
  void Announce(const RankFailure& failure) override;

 private:
  MaybeFailure Start(std::span<const OutgoingBytes> outgoing,
                     std::span<const IncomingBytes> incoming);
  MaybeFailure AwaitAll(const WaitLimit& limit);
  // Until what comes late finds no memory of the caller's any more. A message that has half come
  // cannot be cancelled: where its rank is gone the wait ends.
  void GiveUp() {
    const auto end = std::chrono::steady_clock::now() + kTellingTime;
    for (int32_t num_left = 1; num_left > 0 && std::chrono::steady_clock::now() < end;) {
      if (mpi_->give_up(&num_left) != nullptr) return;
      if (num_left > 0) std::this_thread::sleep_for(kPause);
    }
  }
  // Waits for notices of all other ranks: none of them ends before the others know.
  void AwaitNotices() {
    const auto end = std::chrono::steady_clock::now() + kTellingTime;
    while (num_notices_ < size() - 1 && std::chrono::steady_clock::now() < end) {
      Look();
      std::this_thread::sleep_for(kPause);
    }
  }
  MaybeFailure OwnFailure(const char* error) const {
    if (error == nullptr) return std::nullopt;
    return RankFailure{rank_, fmt::format("got an error of MPI: {}", error)};
  }

  const ForebayMpi* const mpi_;
  const int rank_;
  const std::vector<std::string> hosts_;
  std::vector<ForebayMpiItem> outgoing_;
  std::vector<ForebayMpiItem> incoming_;
  bool has_failed_ = false;
  int num_notices_ = 0;  // every rank tells of a failure, each of them once
};

// MPI's types are older than const.
ForebayMpiItem ItemOf(int rank, const std::byte* bytes, size_t size) {
  FOREBAY_CHECK(size <= std::numeric_limits<int32_t>::max());
  return {rank, static_cast<int32_t>(size), const_cast<std::byte*>(bytes)};
}

MaybeFailure MpiTransport::Start(std::span<const OutgoingBytes> outgoing,
                                 std::span<const IncomingBytes> incoming) {
  int32_t num_outgoing = 0;
  int32_t num_incoming = 0;
  for (const auto& [to, bytes] : outgoing) {
    if (bytes.empty()) continue;
    outgoing_[static_cast<size_t>(num_outgoing++)] = ItemOf(to, bytes.data(), bytes.size());
  }
  for (const auto& [from, bytes] : incoming) {
    if (bytes.empty()) continue;
    incoming_[static_cast<size_t>(num_incoming++)] = ItemOf(from, bytes.data(), bytes.size());
  }
  return OwnFailure(mpi_->start(outgoing_.data(), num_outgoing, incoming_.data(), num_incoming));
}

MaybeFailure MpiTransport::AwaitAll(const WaitLimit& limit) {
  const std::chrono::duration<double> timeout(limit.timeout_s);
  auto last_progress = std::chrono::steady_clock::now();
  int32_t num_left_before = std::numeric_limits<int32_t>::max();
  for (int answers = 0;; ++answers) {
    int32_t num_left = 0;
    int32_t awaited = rank_;
    if (const char* const error = mpi_->test(&num_left, &awaited)) {
      return RankIsGone(awaited, error);
    }
    if (num_left == 0) return std::nullopt;
    if (limit.stop) return WasStopped(rank_);
    if (num_left < num_left_before) {
      num_left_before = num_left;
      answers = 0;
      last_progress = std::chrono::steady_clock::now();
    }
    if (answers < kAnswersWithoutPause) continue;
    if (MaybeFailure failure = Look()) return failure;
    if (std::chrono::steady_clock::now() - last_progress > timeout) {
      return RankIsSilent(awaited, limit.timeout_s);
    }
    std::this_thread::sleep_for(kPause);
  }
}

MaybeFailure MpiTransport::Look() {
  int32_t is_any = 0;
  MpiNotice notice;
  if (MaybeFailure failure = OwnFailure(mpi_->hear(&is_any, reinterpret_cast<char*>(&notice)))) {
    return failure;
  }
  if (is_any == 0) return std::nullopt;
  ++num_notices_;
  has_failed_ = true;
  return RankFailure{std::clamp(notice.rank, 0, size() - 1),
                     {notice.reason, ::strnlen(notice.reason, sizeof notice.reason)},
                     static_cast<ExitCode>(notice.exit_code)};
}

void MpiTransport::Announce(const RankFailure& failure) {
  has_failed_ = true;
  MpiNotice notice = {.rank = failure.rank, .exit_code = static_cast<int32_t>(failure.code)};
  std::memcpy(notice.reason, failure.reason.data(),
              std::min(failure.reason.size(), sizeof notice.reason - 1));
  if (mpi_->tell(reinterpret_cast<const char*>(&notice)) != nullptr) return;
  const auto end = std::chrono::steady_clock::now() + kTellingTime;
  for (int32_t is_done = 0; is_done == 0 && std::chrono::steady_clock::now() < end;) {
    if (mpi_->test_told(&is_done) != nullptr) return;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ConnectMpi(const Launch& launch) {
  const bool is_open_mpi = launch.transport == RankTransport::kOpenMpi;
  FOREBAY_ASSIGN_OR_RETURN(const ForebayMpi* const mpi, LoadMpi(is_open_mpi ? "openmpi" : "mpich"));
  int32_t rank = 0;
  int32_t size = 0;
  const auto failed = [&](const char* what, const char* error) {
    return EnvironmentError(fmt::format("{} of {} failed: {}", what, mpi->name(), error));
  };
  if (const char* const error = mpi->open(&rank, &size)) return failed("starting", error);
  if (rank != launch.rank || size != launch.size) {
    return EnvironmentError(fmt::format(
        "{} says that this is rank {} of {}, but the environment variables of {} say {} of {}: the "
        "plugin belongs to another MPI than the mpirun",
        mpi->name(), rank, size, launch.launcher, launch.rank, launch.size));
  }
  std::string names(static_cast<size_t>(size) * kForebayMpiHostBytes, '\0');
  if (const char* const error = mpi->gather_hosts(names.data())) {
    return failed("the first exchange", error);
  }
  std::vector<std::string> hosts;
  for (size_t at = 0; at < names.size(); at += kForebayMpiHostBytes) {
    hosts.emplace_back(names.c_str() + at);
  }
  return std::make_unique<MpiTransport>(mpi, rank, std::move(hosts));
}

}  // namespace forebay
