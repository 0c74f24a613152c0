#include "forebay/collective/sockets/rendezvous.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <list>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/collective/host_name.h"
#include "forebay/collective/sockets/door.h"
#include "forebay/collective/sockets/handshake.h"
#include "forebay/collective/sockets/proof.h"
#include "forebay/collective/sockets/socket.h"

namespace forebay {
namespace {

// A rank that listens answers within this time. Host names are resolved again at this interval.
constexpr std::chrono::seconds kAnswerTime(5);
// Between two attempts to reach one address, and the longest wait between two looks at the time.
constexpr std::chrono::milliseconds kRetryInterval(20);

// Where a rank is: a row of the table that rank 0 sends when all have come.
struct Whereabouts {
  SocketAddress address;
  char host[64] = "";
};

// A connection to a rank, tried until it is there.
struct Call {
  int rank = 0;
  ConnectionPurpose purpose = ConnectionPurpose::kControl;
  SocketAddress address;
  std::list<OutgoingHandshake> attempt;  // none, or the one that is under way
  SocketDeadline deadline;               // of the attempt, or the time of the next
  std::string why_not;                   // of the last attempt
  bool met_other_secret = false;         // one of them did
};

class Meeting {
 public:
  Meeting(const Launch& launch, double timeout_s)
      : launch_(launch),
        timeout_s_(timeout_s),
        deadline_(std::chrono::steady_clock::now() +
                  std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                      std::chrono::duration<double>(timeout_s))),
        key_(launch.job, launch.secret),
        whereabouts_(static_cast<size_t>(launch.size)),
        connections_(static_cast<size_t>(launch.size)),
        door_(
            key_, [this](const auto& greeting, bool is_other) { return Judge(greeting, is_other); },
            [this](const auto& greeting, UniqueFd fd, int port) {
              Admit(greeting, std::move(fd), port);
            }) {}

  absl::StatusOr<std::vector<RankConnection>> Run();

 private:
  bool IsOnOneMachine() const;
  absl::Status ListenWhereNamed();
  absl::Status ListenTowardsRankZero(const SocketAddress& own);
  absl::Status ErrorOfListening(const std::vector<SocketAddress>& addresses, int error) const;

  absl::Status JoinRankZero();
  void AddCallsOfRankZero(const std::vector<SocketAddress>& addresses);
  absl::Status NotReached(const Call& call, const absl::Status& why) const;
  absl::Status SendTable();
  absl::Status ReceiveTable();
  void CallLowerRanks();

  // Serves whoever came, and goes on with the calls. Returns when something has happened, also on
  // `fd` (-1: none), or after a short time. UsageError: a rank does not take this one.
  absl::Status Turn(int fd = -1);
  absl::Status GoOnWith(Call& call);
  // Until `is_done`, or the time is over.
  absl::Status TurnUntil(const std::function<bool()>& is_done);
  std::string Judge(const Greeting& greeting, bool is_other) const;
  void Admit(const Greeting& greeting, UniqueFd fd, int port);
  std::vector<int> Missing(ConnectionPurpose purpose) const;
  bool HasCome(ConnectionPurpose purpose) const { return Missing(purpose).empty(); }
  absl::Status ErrorOfMissing() const;

  UniqueFd& Connection(int rank, ConnectionPurpose purpose) {
    RankConnection& connection = connections_[static_cast<size_t>(rank)];
    return purpose == ConnectionPurpose::kControl ? connection.control : connection.data;
  }
  const UniqueFd& Connection(int rank, ConnectionPurpose purpose) const {
    const RankConnection& connection = connections_[static_cast<size_t>(rank)];
    return purpose == ConnectionPurpose::kControl ? connection.control : connection.data;
  }
  SocketDeadline AnswerDeadline() const {
    return std::min<SocketDeadline>(deadline_, std::chrono::steady_clock::now() + kAnswerTime);
  }
  bool IsOver() const { return std::chrono::steady_clock::now() >= deadline_; }

  const Launch& launch_;
  const double timeout_s_;
  const SocketDeadline deadline_;
  const JobKey key_;
  Nonce process_ = {};
  std::vector<Whereabouts> whereabouts_;
  std::vector<RankConnection> connections_;
  Door door_;
  std::list<Call> calls_;
  std::vector<pollfd> polled_;
};

absl::StatusOr<std::vector<RankConnection>> Meeting::Run() {
  constexpr auto kControl = ConnectionPurpose::kControl;
  constexpr auto kData = ConnectionPurpose::kData;
  FOREBAY_ASSIGN_OR_RETURN(process_, DrawNonce());
  if (launch_.rank == 0) {
    FOREBAY_RETURN_IF_ERROR(ListenWhereNamed());
    CopyText(HostName(), whereabouts_[0].host);
    FOREBAY_RETURN_IF_ERROR(TurnUntil([&] { return HasCome(kControl); }));
    FOREBAY_RETURN_IF_ERROR(SendTable());
  } else {
    FOREBAY_RETURN_IF_ERROR(JoinRankZero());
    FOREBAY_RETURN_IF_ERROR(ReceiveTable());
    CallLowerRanks();
  }
  FOREBAY_RETURN_IF_ERROR(
      TurnUntil([&] { return calls_.empty() && HasCome(kControl) && HasCome(kData); }));
  for (size_t r = 0; r < connections_.size(); ++r) {
    RankConnection& connection = connections_[r];
    connection.host = TextOf(whereabouts_[r].host);
    if (!connection.data.valid()) continue;
    const SocketAddress peer = PeerAddress(connection.data.get());
    connection.is_of_other_machine =
        !peer.IsLoopback() && !peer.IsSameHost(OwnAddress(connection.data.get()));
  }
  return std::move(connections_);
}

// ---- The address at which this rank listens ----------------------------------------------------

bool Meeting::IsOnOneMachine() const {
  const std::string& master = launch_.master_address;
  return master == "localhost" || master == "::1" || master.starts_with("127.");
}

absl::Status Meeting::ErrorOfListening(const std::vector<SocketAddress>& addresses,
                                       int error) const {
  std::vector<std::string> texts;
  for (const SocketAddress& address : addresses) texts.push_back(address.Text());
  return EnvironmentError(fmt::format(
      "rank {} on {} cannot listen at {}: {}. Name an address of the machine of rank 0 in "
      "MASTER_ADDR (here '{}'), or what ranks shall listen at in FOREBAY_LISTEN_ADDRESS: one of "
      "their own addresses, or 0.0.0.0 for every one",
      launch_.rank, HostName(), fmt::join(texts, ", "), ErrnoText(error), launch_.master_address));
}

absl::Status Meeting::ListenWhereNamed() {
  const std::string& name =
      launch_.listen_address.empty() ? launch_.master_address : launch_.listen_address;
  absl::StatusOr<std::vector<SocketAddress>> addresses = ResolveHost(name, launch_.first_port);
  while (!addresses.ok()) {  // a machine may start before its name is known
    if (IsOver()) return addresses.status();
    std::this_thread::sleep_for(kRetryInterval);
    addresses = ResolveHost(name, launch_.first_port);
  }
  // A machine's own name often resolves to 127.0.1.1, which other machines cannot reach.
  const auto is_loopback = [](const SocketAddress& address) { return address.IsLoopback(); };
  if (launch_.listen_address.empty() && !IsOnOneMachine() &&
      std::all_of(addresses->begin(), addresses->end(), is_loopback)) {
    addresses->assign(1, EveryAddress(launch_.first_port));
  }
  int error = 0;
  for (int i = 0; i < kNumRankPorts; ++i) {
    for (SocketAddress& address : *addresses) address.set_port(launch_.first_port + i);
    error = door_.Open(*addresses);
    if (error == 0) return absl::OkStatus();
    if (error != EADDRINUSE && error != EACCES) return ErrorOfListening(*addresses, error);
  }
  return EnvironmentError(
      fmt::format("rank 0 found no free port from {} to {} (the last: {}): set another MASTER_PORT",
                  launch_.first_port, launch_.first_port + kNumRankPorts - 1, ErrnoText(error)));
}

// `own`: the local address of the connection to rank 0.
absl::Status Meeting::ListenTowardsRankZero(const SocketAddress& own) {
  std::vector<SocketAddress> addresses = {own};
  if (!launch_.listen_address.empty()) {
    FOREBAY_ASSIGN_OR_RETURN(addresses, ResolveHost(launch_.listen_address, 0));
    addresses.resize(1);  // others would have other ports
  } else if (addresses[0].IsLoopback() && !IsOnOneMachine()) {
    addresses[0] = EveryAddress(0);  // other machines have to reach it too
  }
  addresses[0].set_port(0);
  const int error = door_.Open(addresses);
  return error == 0 ? absl::OkStatus() : ErrorOfListening(addresses, error);
}

// ---- Turns -------------------------------------------------------------------------------------

absl::Status Meeting::Turn(int fd) {
  polled_.clear();
  polled_.push_back({fd, POLLIN, 0});
  for (const Call& call : calls_) {
    for (const OutgoingHandshake& attempt : call.attempt) {
      polled_.push_back({attempt.fd(), attempt.events(), 0});
    }
  }
  const size_t num_calls = polled_.size();
  door_.AddPolled(polled_);
  if (::poll(polled_.data(), polled_.size(), static_cast<int>(kRetryInterval.count())) < 0) {
    for (pollfd& item : polled_) item.revents = 0;  // EINTR
  }
  if (door_.is_open()) door_.Serve();
  size_t i = 1;
  for (auto call = calls_.begin(); call != calls_.end();) {
    const bool is_ready = call->attempt.empty() || (i < num_calls && polled_[i++].revents != 0);
    const bool is_late = std::chrono::steady_clock::now() >= call->deadline;
    if (is_ready || is_late) FOREBAY_RETURN_IF_ERROR(GoOnWith(*call));
    call = Connection(call->rank, call->purpose).valid() ? calls_.erase(call) : std::next(call);
  }
  return absl::OkStatus();
}

absl::Status Meeting::GoOnWith(Call& call) {
  const auto now = std::chrono::steady_clock::now();
  if (call.attempt.empty()) {
    if (now < call.deadline) return absl::OkStatus();
    Greeting greeting = {.rank = launch_.rank,
                         .size = launch_.size,
                         .to_rank = call.rank,
                         .purpose = call.purpose,
                         .process = process_};
    CopyText(HostName(), greeting.host);
    call.attempt.emplace_back(call.address, key_, greeting);
    call.deadline = now + kAnswerTime;
  } else if (now >= call.deadline) {
    call.why_not =
        fmt::format("{} did not answer within {} s", call.address.Text(), kAnswerTime.count());
    call.attempt.clear();
    call.deadline = now + kRetryInterval;
    return absl::OkStatus();
  } else {
    call.attempt.front().Advance();
  }
  OutgoingHandshake& attempt = call.attempt.front();
  if (attempt.state() == HandshakeState::kUnderWay) return absl::OkStatus();
  if (attempt.state() == HandshakeState::kMet) {
    if (!door_.is_open()) {
      FOREBAY_RETURN_IF_ERROR(ListenTowardsRankZero(OwnAddress(attempt.fd())));
    }
    if (attempt.Confirm(door_.port()) == HandshakeState::kMet) {
      Connection(call.rank, call.purpose) = attempt.TakeConnection();
      return absl::OkStatus();
    }
  }
  if (ExitCodeOf(attempt.status()) == ExitCode::kUsage) return NotReached(call, attempt.status());
  // A rank that was there and listens no more has ended. Rank 0 may not have begun.
  if (attempt.is_refused() && door_.is_open()) return NotReached(call, attempt.status());
  if (attempt.has_other_secret() || !call.met_other_secret) {
    call.why_not = MessageOf(attempt.status());
  }
  call.met_other_secret |= attempt.has_other_secret();
  call.attempt.clear();
  call.deadline = now + kRetryInterval;
  return absl::OkStatus();
}

absl::Status Meeting::TurnUntil(const std::function<bool()>& is_done) {
  while (!is_done()) {
    if (IsOver()) {
      if (calls_.empty()) return ErrorOfMissing();
      return NotReached(calls_.front(), EnvironmentError(calls_.front().why_not));
    }
    FOREBAY_RETURN_IF_ERROR(Turn());
  }
  return absl::OkStatus();
}

// ---- Who comes ---------------------------------------------------------------------------------

std::string Meeting::Judge(const Greeting& greeting, bool is_other) const {
  if (greeting.size != launch_.size) {
    return fmt::format("it is one of {} ranks, but rank {} on {} one of {}", greeting.size,
                       launch_.rank, HostName(), launch_.size);
  }
  if (greeting.to_rank != launch_.rank || greeting.rank <= launch_.rank ||
      greeting.rank >= launch_.size) {
    return fmt::format("rank {} looks for rank {}, and has nothing to ask rank {} for",
                       greeting.rank, greeting.to_rank, launch_.rank);
  }
  if (!is_other && !Connection(greeting.rank, greeting.purpose).valid()) return "";
  const std::string host = TextOf(whereabouts_[static_cast<size_t>(greeting.rank)].host);
  return fmt::format("another process{} is rank {} already",
                     host.empty() ? "" : ", on " + host + ",", greeting.rank);
}

void Meeting::Admit(const Greeting& greeting, UniqueFd fd, int port) {
  UniqueFd& connection = Connection(greeting.rank, greeting.purpose);
  if (connection.valid()) return;
  if (launch_.rank == 0 && greeting.purpose == ConnectionPurpose::kControl) {
    Whereabouts& whereabouts = whereabouts_[static_cast<size_t>(greeting.rank)];
    whereabouts.address = PeerAddress(fd.get());
    whereabouts.address.set_port(port);
    CopyText(TextOf(greeting.host), whereabouts.host);
  }
  connection = std::move(fd);
}

std::vector<int> Meeting::Missing(ConnectionPurpose purpose) const {
  std::vector<int> missing;
  for (int r = launch_.rank + 1; r < launch_.size; ++r) {
    if (!Connection(r, purpose).valid()) missing.push_back(r);
  }
  return missing;
}

absl::Status Meeting::ErrorOfMissing() const {
  std::vector<int> missing = Missing(ConnectionPurpose::kControl);
  if (missing.empty()) missing = Missing(ConnectionPurpose::kData);
  return EnvironmentError(fmt::format(
      "of {} ranks these did not come to rank {} on {} at {} within {:g} s (--set=rank_timeout, "
      "timeout_s): {}. Their own output may say why; {} started this one{}",
      launch_.size, launch_.rank, HostName(), door_.Addresses(), timeout_s_,
      fmt::join(missing, ", "), launch_.launcher, door_.Remarks()));
}

// ---- Rank 0 ------------------------------------------------------------------------------------

absl::Status Meeting::SendTable() {
  for (int r = 1; r < launch_.size; ++r) {
    const absl::Status sent = SendMessage(Connection(r, ConnectionPurpose::kControl).get(),
                                          std::as_bytes(std::span(whereabouts_)), AnswerDeadline());
    if (!sent.ok()) {
      return Annotate(sent, fmt::format("telling rank {} where the others are", r));
    }
  }
  return absl::OkStatus();
}

// ---- The others --------------------------------------------------------------------------------

absl::Status Meeting::NotReached(const Call& call, const absl::Status& why) const {
  const bool is_turned_away = ExitCodeOf(why) == ExitCode::kUsage;
  if (is_turned_away) {
    return UsageError(fmt::format("rank {} at {} does not take rank {} on {}: {}", call.rank,
                                  call.address.Text(), launch_.rank, HostName(), MessageOf(why)));
  }
  return Annotate(why, fmt::format("rank {} did not reach rank {} on {}", launch_.rank, call.rank,
                                   TextOf(whereabouts_[static_cast<size_t>(call.rank)].host)));
}

void Meeting::AddCallsOfRankZero(const std::vector<SocketAddress>& addresses) {
  for (int i = 0; i < kNumRankPorts; ++i) {
    for (SocketAddress address : addresses) {
      address.set_port(launch_.first_port + i);
      const bool is_known = std::any_of(calls_.begin(), calls_.end(), [&](const Call& call) {
        return call.address.IsSameHost(address) && call.address.port() == address.port();
      });
      if (is_known) continue;
      Call& call = calls_.emplace_back();
      call.address = address;
    }
  }
}

// Rank 0 may not listen yet, and at some of the ports something else may.
absl::Status Meeting::JoinRankZero() {
  absl::Status unknown;
  SocketDeadline next_lookup = std::chrono::steady_clock::now();
  while (!IsOver()) {
    if (const auto now = std::chrono::steady_clock::now(); now >= next_lookup) {
      const auto addresses = ResolveHost(launch_.master_address, launch_.first_port);
      if (addresses.ok()) AddCallsOfRankZero(*addresses);
      unknown = addresses.status();
      next_lookup =
          now + (addresses.ok() ? std::chrono::milliseconds(kAnswerTime) : kRetryInterval);
    }
    FOREBAY_RETURN_IF_ERROR(Turn());
    if (!Connection(0, ConnectionPurpose::kControl).valid()) continue;
    return absl::OkStatus();
  }
  std::string why_not = MessageOf(unknown);
  if (!calls_.empty()) {
    const auto with_other_secret = std::find_if(
        calls_.begin(), calls_.end(), [](const Call& call) { return call.met_other_secret; });
    const Call& told = with_other_secret == calls_.end() ? calls_.back() : *with_other_secret;
    why_not = told.why_not;
  }
  return EnvironmentError(
      fmt::format("rank {} on {} did not reach rank 0 at {} (ports {} to {}) within {:g} s "
                  "(--set=rank_timeout, timeout_s): {}",
                  launch_.rank, HostName(), launch_.master_address, launch_.first_port,
                  launch_.first_port + kNumRankPorts - 1, timeout_s_, why_not));
}

absl::Status Meeting::ReceiveTable() {
  constexpr std::string_view kWhy =
      "rank 0 waits for other ranks, or is gone: its output says which";
  const int fd = Connection(0, ConnectionPurpose::kControl).get();
  std::span<std::byte> room = std::as_writable_bytes(std::span(whereabouts_));
  while (!room.empty()) {
    if (IsOver()) {
      return EnvironmentError(
          fmt::format("{}: it said nothing for {:g} s (--set=rank_timeout, "
                      "timeout_s)",
                      kWhy, timeout_s_));
    }
    FOREBAY_RETURN_IF_ERROR(Turn(fd));
    const int64_t got = ReceiveSome(fd, room);
    if (got < 0) return EnvironmentError(fmt::format("{}: {}", kWhy, ErrnoText(errno)));
    room = room.subspan(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

void Meeting::CallLowerRanks() {
  whereabouts_[0].address = PeerAddress(Connection(0, ConnectionPurpose::kControl).get());
  for (int r = 0; r < launch_.rank; ++r) {
    SocketAddress address = whereabouts_[static_cast<size_t>(r)].address;
    // A rank that came to rank 0 over the loopback is on its machine, wherever that is seen from.
    if (address.IsLoopback()) {
      const int port = address.port();
      address = whereabouts_[0].address;
      address.set_port(port);
    }
    for (const auto purpose : {ConnectionPurpose::kControl, ConnectionPurpose::kData}) {
      if (Connection(r, purpose).valid()) continue;  // rank 0's
      Call& call = calls_.emplace_back();
      call.rank = r;
      call.purpose = purpose;
      call.address = address;
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<RankConnection>> MeetRanks(const Launch& launch, double timeout_s) {
  FOREBAY_ASSIGN_OR_RETURN(std::vector<RankConnection> connections,
                           Meeting(launch, timeout_s).Run());
  for (RankConnection& connection : connections) {
    for (const UniqueFd* const fd : {&connection.data, &connection.control}) {
      if (fd->valid()) TuneForRanks(fd->get(), timeout_s);
    }
  }
  return connections;
}

}  // namespace forebay
