#include "forebay/collective/sockets/socket_transport.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/collective/rank_failures.h"
#include "forebay/collective/sockets/not_inherited.h"
#include "forebay/collective/sockets/rendezvous.h"

namespace forebay {
namespace {

// A stop is noticed after so long at the latest.
constexpr int kStopIntervalMs = 20;
// Data and control are connections of their own: what a rank said before it closed both may come
// so much later than the end of its data.
constexpr std::chrono::milliseconds kLastWordsTime(500);

enum class NoticeKind : int32_t { kFailure, kLeaving };

// The message of a control connection.
struct ControlNotice {
  NoticeKind kind = NoticeKind::kLeaving;
  int32_t rank = 0;  // whose failure it is
  int32_t exit_code = 0;
  char reason[1012] = "";
};

struct SocketPeer {
  RankConnection connection;
  bool is_listened_to = true;  // its control connection is open
  bool has_left = false;       // it said so
  // A notice that has come in part.
  ControlNotice notice;
  size_t notice_bytes = 0;
  // The bytes that the exchange under way has left to move.
  std::span<const std::byte> outgoing;
  std::span<std::byte> incoming;
};

class SocketTransport : public Transport {
 public:
  SocketTransport(int rank, std::vector<RankConnection> connections, std::string warning)
      : rank_(rank),
        warning_(std::move(warning)),
        peers_(connections.size()),
        polled_(2 * connections.size()) {
    for (size_t r = 0; r < peers_.size(); ++r) {
      peers_[r].connection = std::move(connections[r]);
      for (const UniqueFd* fd : {&peers_[r].connection.data, &peers_[r].connection.control}) {
        if (fd->valid()) not_inherited_.Add(fd->get());
      }
    }
  }
  ~SocketTransport() override {
    if (!has_announced_) Tell({.kind = NoticeKind::kLeaving, .rank = rank_});
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }
  const std::string& host(int rank) const override {
    return peers_[static_cast<size_t>(rank)].connection.host;
  }
  std::string Warning() const override { return warning_; }

  MaybeFailure Exchange(std::span<const OutgoingBytes> outgoing,
                        std::span<const IncomingBytes> incoming, const WaitLimit& limit) override;
  MaybeFailure Look() override { return PollControl(0); }
  void Announce(const RankFailure& failure) override {
    ControlNotice notice = {.kind = NoticeKind::kFailure,
                            .rank = failure.rank,
                            .exit_code = static_cast<int32_t>(failure.code)};
    const size_t size = std::min(failure.reason.size(), sizeof notice.reason - 1);
    std::memcpy(notice.reason, failure.reason.data(), size);
    Tell(notice);
    has_announced_ = true;
  }

 private:
  void Tell(const ControlNotice& notice);
  bool IsOther(size_t r) const { return r != static_cast<size_t>(rank_); }
  // Fills polled_: data of ranks whose bytes are under way at 2 r, control at 2 r + 1.
  bool PrepareToPoll();
  MaybeFailure MoveData(size_t r, bool& is_any);
  MaybeFailure PollControl(int timeout_ms);
  // Receives from the control connection of `r`.
  MaybeFailure HearControl(size_t r);
  // The failure of a rank whose data connection is closed: its own reason, where it sent one.
  RankFailure LastWords(size_t r, const std::string& how);
  RankFailure Silent(double timeout_s) const;

  const int rank_;
  const std::string warning_;
  std::vector<SocketPeer> peers_;
  NotInherited not_inherited_;  // behind the connections, so that it ends before them
  std::vector<pollfd> polled_;
  bool has_announced_ = false;
};

void SocketTransport::Tell(const ControlNotice& notice) {
  for (const SocketPeer& peer : peers_) {
    if (!peer.connection.control.valid()) continue;
    // At once or not at all: a rank that hears nothing finds the connection closed. Control
    // connections carry no more than their buffers hold.
    const ssize_t sent =
        ::send(peer.connection.control.get(), &notice, sizeof notice, MSG_NOSIGNAL | MSG_DONTWAIT);
    static_cast<void>(sent);
  }
}

bool SocketTransport::PrepareToPoll() {
  bool is_any = false;
  for (size_t r = 0; r < peers_.size(); ++r) {
    const SocketPeer& peer = peers_[r];
    const int events = (peer.outgoing.empty() ? 0 : POLLOUT) | (peer.incoming.empty() ? 0 : POLLIN);
    is_any |= events != 0;
    polled_[2 * r] = {events == 0 ? -1 : peer.connection.data.get(), static_cast<short>(events), 0};
    const bool listens = peer.is_listened_to && IsOther(r);
    polled_[2 * r + 1] = {listens ? peer.connection.control.get() : -1, POLLIN, 0};
  }
  return is_any;
}

MaybeFailure SocketTransport::Exchange(std::span<const OutgoingBytes> outgoing,
                                       std::span<const IncomingBytes> incoming,
                                       const WaitLimit& limit) {
  for (const OutgoingBytes& item : outgoing) {
    peers_[static_cast<size_t>(item.rank)].outgoing = item.bytes;
  }
  for (const IncomingBytes& item : incoming) {
    peers_[static_cast<size_t>(item.rank)].incoming = item.bytes;
  }
  const std::chrono::duration<double> timeout(limit.timeout_s);
  auto last_progress = std::chrono::steady_clock::now();
  while (PrepareToPoll()) {
    if (limit.stop) return WasStopped(rank_);
    const int num_ready = ::poll(polled_.data(), polled_.size(), kStopIntervalMs);
    bool is_any = false;
    for (size_t r = 0; num_ready > 0 && r < peers_.size(); ++r) {
      if (polled_[2 * r + 1].revents != 0) {
        if (MaybeFailure failure = HearControl(r)) return failure;
      }
      if (polled_[2 * r].revents != 0) {
        if (MaybeFailure failure = MoveData(r, is_any)) return failure;
      }
    }
    const auto now = std::chrono::steady_clock::now();
    if (is_any) last_progress = now;
    if (now - last_progress > timeout) return Silent(limit.timeout_s);
  }
  return std::nullopt;
}

MaybeFailure SocketTransport::MoveData(size_t r, bool& is_any) {
  SocketPeer& peer = peers_[r];
  const int fd = peer.connection.data.get();
  const auto is_passing = [] { return errno == EAGAIN || errno == EINTR; };
  if (!peer.incoming.empty()) {
    const ssize_t got = ::recv(fd, peer.incoming.data(), peer.incoming.size(), 0);
    if (got == 0) return LastWords(r, "its connection was closed");
    if (got < 0 && !is_passing()) return LastWords(r, ErrnoText(errno));
    if (got > 0) {
      peer.incoming = peer.incoming.subspan(static_cast<size_t>(got));
      is_any = true;
    }
  }
  if (!peer.outgoing.empty()) {
    const ssize_t sent = ::send(fd, peer.outgoing.data(), peer.outgoing.size(), MSG_NOSIGNAL);
    if (sent < 0 && !is_passing()) return LastWords(r, ErrnoText(errno));
    if (sent > 0) {
      peer.outgoing = peer.outgoing.subspan(static_cast<size_t>(sent));
      is_any = true;
    }
  }
  return std::nullopt;
}

MaybeFailure SocketTransport::PollControl(int timeout_ms) {
  PrepareToPoll();
  for (size_t r = 0; r < peers_.size(); ++r) polled_[2 * r].fd = -1;
  if (::poll(polled_.data(), polled_.size(), timeout_ms) <= 0) return std::nullopt;
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (polled_[2 * r + 1].revents == 0) continue;
    if (MaybeFailure failure = HearControl(r)) return failure;
  }
  return std::nullopt;
}

MaybeFailure SocketTransport::HearControl(size_t r) {
  SocketPeer& peer = peers_[r];
  std::byte* const room = reinterpret_cast<std::byte*>(&peer.notice) + peer.notice_bytes;
  const ssize_t got =
      ::recv(peer.connection.control.get(), room, sizeof peer.notice - peer.notice_bytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (got <= 0) {
    peer.is_listened_to = false;
    // It may have sent all that this rank still needs.
    if (peer.has_left) return std::nullopt;
    return RankIsGone(static_cast<int>(r),
                      got == 0 ? "its connection was closed" : ErrnoText(errno));
  }
  peer.notice_bytes += static_cast<size_t>(got);
  if (peer.notice_bytes < sizeof peer.notice) return std::nullopt;
  peer.notice_bytes = 0;
  const ControlNotice& notice = peer.notice;
  if (notice.kind == NoticeKind::kLeaving) {
    peer.has_left = true;
    return std::nullopt;
  }
  const int rank = std::clamp(notice.rank, 0, size() - 1);
  return RankFailure{rank,
                     {notice.reason, ::strnlen(notice.reason, sizeof notice.reason)},
                     static_cast<ExitCode>(notice.exit_code)};
}

RankFailure SocketTransport::LastWords(size_t r, const std::string& how) {
  const auto end = std::chrono::steady_clock::now() + kLastWordsTime;
  while (peers_[r].is_listened_to && std::chrono::steady_clock::now() < end) {
    if (MaybeFailure failure = PollControl(kStopIntervalMs)) return *failure;
  }
  if (!peers_[r].has_left) return RankIsGone(static_cast<int>(r), how);
  return RankFailure{static_cast<int>(r),
                     "has left: it had nothing more to do, where this rank has"};
}

RankFailure SocketTransport::Silent(double timeout_s) const {
  size_t silent = peers_.size();
  for (size_t r = peers_.size(); r-- > 0;) {
    if (!peers_[r].outgoing.empty()) silent = r;
  }
  for (size_t r = peers_.size(); r-- > 0;) {
    if (!peers_[r].incoming.empty()) silent = r;
  }
  return RankIsSilent(static_cast<int>(silent), timeout_s);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> ConnectSockets(const Launch& launch, double timeout_s) {
  FOREBAY_ASSIGN_OR_RETURN(std::vector<RankConnection> connections, MeetRanks(launch, timeout_s));
  const bool spans_machines =
      std::any_of(connections.begin(), connections.end(),
                  [](const RankConnection& connection) { return connection.is_of_other_machine; });
  std::string warning;
  if (spans_machines && launch.secret.empty()) {
    warning =
        "the ranks are on several machines and share no secret: whoever reaches their ports while "
        "they meet can take part. Give all of them the same FOREBAY_JOB_SECRET, or the same text "
        "in a file that FOREBAY_JOB_SECRET_FILE names";
  }
  return std::make_unique<SocketTransport>(launch.rank, std::move(connections), std::move(warning));
}

}  // namespace forebay
