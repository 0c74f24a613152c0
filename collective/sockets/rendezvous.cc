#include "forebay/collective/sockets/rendezvous.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/collective/host_name.h"
#include "forebay/collective/sockets/socket.h"

namespace forebay {
namespace {

// The first bytes of a rank: another program at the port begins otherwise.
constexpr uint64_t kMagic = 0x316b6e6172796266;  // "fbyrank1"
// A rank answers within this time.
constexpr std::chrono::seconds kAnswerTime(5);
constexpr std::chrono::milliseconds kRetryInterval(20);

enum class ConnectionPurpose : int32_t { kControl, kData };

// The first message of a rank that connects.
struct Greeting {
  uint64_t magic = kMagic;
  uint64_t job = 0;
  int32_t rank = 0;
  int32_t size = 0;
  ConnectionPurpose purpose = ConnectionPurpose::kControl;
  int32_t port = 0;  // where it listens itself
  char host[64] = "";
};
// Rank 0's answer, on its control connections alone.
struct Answer {
  uint64_t magic = kMagic;
  int32_t is_welcome = 0;
  char why_not[252] = "";
};
// Where a rank is: a row of the table that rank 0 sends when all have come.
struct Whereabouts {
  SocketAddress address;
  char host[64] = "";
};

template <typename T>
std::span<const std::byte> AsMessage(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
std::span<std::byte> AsRoom(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

void CopyText(std::string_view text, std::span<char> to) {
  const size_t size = std::min(text.size(), to.size() - 1);
  std::memcpy(to.data(), text.data(), size);
  to[size] = 0;
}

std::string TextOf(std::span<const char> text) {
  return {text.data(), ::strnlen(text.data(), text.size())};
}

class Meeting {
 public:
  Meeting(const Launch& launch, double timeout_s)
      : launch_(launch),
        timeout_s_(timeout_s),
        deadline_(std::chrono::steady_clock::now() +
                  std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                      std::chrono::duration<double>(timeout_s))),
        job_(Xxh3_64(std::as_bytes(std::span(launch.job)))),
        is_on_one_machine_(launch.master_address == "localhost" ||
                           launch.master_address.starts_with("127.")),
        whereabouts_(static_cast<size_t>(launch.size)),
        connections_(static_cast<size_t>(launch.size)) {}

  absl::StatusOr<std::vector<RankConnection>> Run() {
    FOREBAY_RETURN_IF_ERROR(Listen());
    if (launch_.rank == 0) {
      CopyText(HostName(), whereabouts_[0].host);
      FOREBAY_RETURN_IF_ERROR(AcceptAll(ConnectionPurpose::kControl));
      FOREBAY_RETURN_IF_ERROR(SendTable());
      FOREBAY_RETURN_IF_ERROR(AcceptAll(ConnectionPurpose::kData));
    } else {
      FOREBAY_RETURN_IF_ERROR(JoinRankZero());
      FOREBAY_RETURN_IF_ERROR(ReceiveTable());
      FOREBAY_RETURN_IF_ERROR(ConnectToLowerRanks());
      FOREBAY_RETURN_IF_ERROR(AcceptAll(ConnectionPurpose::kControl));
      FOREBAY_RETURN_IF_ERROR(AcceptAll(ConnectionPurpose::kData));
    }
    for (size_t r = 0; r < connections_.size(); ++r) {
      connections_[r].host = TextOf(whereabouts_[r].host);
    }
    return std::move(connections_);
  }

 private:
  absl::Status Listen();
  absl::Status AcceptAll(ConnectionPurpose purpose);
  void Admit(UniqueFd fd);
  std::string WhyNotWelcome(const Greeting& greeting) const;
  std::vector<int> Missing(ConnectionPurpose purpose) const;
  absl::Status SendTable();

  absl::Status JoinRankZero();
  absl::StatusOr<UniqueFd> TryToJoin(const SocketAddress& address);
  absl::Status ReceiveTable();
  absl::Status ConnectToLowerRanks();

  Greeting OwnGreeting(ConnectionPurpose purpose) const;
  UniqueFd& Connection(int rank, ConnectionPurpose purpose) {
    RankConnection& connection = connections_[static_cast<size_t>(rank)];
    return purpose == ConnectionPurpose::kControl ? connection.control : connection.data;
  }
  SocketDeadline AnswerDeadline() const {
    return std::min<SocketDeadline>(deadline_, std::chrono::steady_clock::now() + kAnswerTime);
  }
  bool IsOver() const { return std::chrono::steady_clock::now() >= deadline_; }

  const Launch& launch_;
  const double timeout_s_;
  const SocketDeadline deadline_;
  const uint64_t job_;
  const bool is_on_one_machine_;
  UniqueFd listener_;
  std::vector<Whereabouts> whereabouts_;
  std::vector<RankConnection> connections_;
};

absl::Status Meeting::Listen() {
  if (launch_.rank != 0) {
    FOREBAY_ASSIGN_OR_RETURN(listener_, ListenAt(0, is_on_one_machine_));
    return absl::OkStatus();
  }
  absl::Status why_not;
  for (int i = 0; i < kNumRankPorts; ++i) {
    absl::StatusOr<UniqueFd> listener = ListenAt(launch_.first_port + i, is_on_one_machine_);
    if (listener.ok()) {
      listener_ = *std::move(listener);
      return absl::OkStatus();
    }
    why_not = listener.status();
  }
  return EnvironmentError(
      fmt::format("rank 0 found no free port from {} to {} (the last: {}): set another MASTER_PORT",
                  launch_.first_port, launch_.first_port + kNumRankPorts - 1, MessageOf(why_not)));
}

std::vector<int> Meeting::Missing(ConnectionPurpose purpose) const {
  std::vector<int> missing;
  for (int r = launch_.rank + 1; r < launch_.size; ++r) {
    const RankConnection& connection = connections_[static_cast<size_t>(r)];
    const bool is_control = purpose == ConnectionPurpose::kControl;
    if (!(is_control ? connection.control : connection.data).valid()) missing.push_back(r);
  }
  return missing;
}

// Connections come in any order: those of the other purpose are kept too.
absl::Status Meeting::AcceptAll(ConnectionPurpose purpose) {
  for (;;) {
    const std::vector<int> missing = Missing(purpose);
    if (missing.empty()) return absl::OkStatus();
    FOREBAY_ASSIGN_OR_RETURN(UniqueFd fd, AcceptOne(listener_.get(), deadline_));
    if (!fd.valid()) {
      return EnvironmentError(
          fmt::format("of {} ranks these did not come to rank {} on {}:{} within {:g} s "
                      "(--rank_timeout, timeout_s): {}. "
                      "Their own output may say why; {} started this one",
                      launch_.size, launch_.rank, HostName(), PortOf(listener_.get()), timeout_s_,
                      fmt::join(missing, ", "), launch_.launcher));
    }
    Admit(std::move(fd));
  }
}

void Meeting::Admit(UniqueFd fd) {
  Greeting greeting;
  if (!ReceiveMessage(fd.get(), AsRoom(greeting), AnswerDeadline()).ok()) return;
  if (greeting.magic != kMagic || greeting.job != job_) return;  // not for us
  const std::string why_not = WhyNotWelcome(greeting);
  const bool is_control = greeting.purpose == ConnectionPurpose::kControl;
  if (launch_.rank == 0 && is_control) {
    Answer answer = {.is_welcome = why_not.empty()};
    CopyText(why_not, answer.why_not);
    if (!SendMessage(fd.get(), AsMessage(answer), AnswerDeadline()).ok()) return;
  }
  if (!why_not.empty()) return;
  Whereabouts& whereabouts = whereabouts_[static_cast<size_t>(greeting.rank)];
  if (launch_.rank == 0 && is_control) {
    whereabouts.address = PeerAddress(fd.get());
    whereabouts.address.set_port(greeting.port);
    CopyText(TextOf(greeting.host), whereabouts.host);
  }
  Connection(greeting.rank, greeting.purpose) = std::move(fd);
}

std::string Meeting::WhyNotWelcome(const Greeting& greeting) const {
  if (greeting.size != launch_.size) {
    return fmt::format("it is one of {} ranks, but rank {} on {} one of {}", greeting.size,
                       launch_.rank, HostName(), launch_.size);
  }
  if (greeting.rank <= launch_.rank || greeting.rank >= launch_.size) {
    return fmt::format("rank {} has nothing to ask rank {} for", greeting.rank, launch_.rank);
  }
  const RankConnection& connection = connections_[static_cast<size_t>(greeting.rank)];
  const bool is_control = greeting.purpose == ConnectionPurpose::kControl;
  if (!(is_control ? connection.control : connection.data).valid()) return "";
  return fmt::format("another process, on {}, is rank {} already",
                     TextOf(whereabouts_[static_cast<size_t>(greeting.rank)].host), greeting.rank);
}

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

Greeting Meeting::OwnGreeting(ConnectionPurpose purpose) const {
  Greeting greeting = {.job = job_,
                       .rank = launch_.rank,
                       .size = launch_.size,
                       .purpose = purpose,
                       .port = PortOf(listener_.get())};
  CopyText(HostName(), greeting.host);
  return greeting;
}

// Rank 0 may not listen yet, and at the first ports something else may.
absl::Status Meeting::JoinRankZero() {
  absl::Status why_not;
  do {
    absl::StatusOr<std::vector<SocketAddress>> addresses =
        ResolveHost(launch_.master_address, launch_.first_port);
    if (!addresses.ok()) why_not = addresses.status();
    for (int i = 0; addresses.ok() && i < kNumRankPorts; ++i) {
      for (SocketAddress& address : *addresses) {
        address.set_port(launch_.first_port + i);
        absl::StatusOr<UniqueFd> fd = TryToJoin(address);
        if (fd.ok()) {
          Connection(0, ConnectionPurpose::kControl) = *std::move(fd);
          return absl::OkStatus();
        }
        if (ExitCodeOf(fd.status()) == ExitCode::kUsage) return fd.status();
        why_not = fd.status();
      }
    }
    std::this_thread::sleep_for(kRetryInterval);
  } while (!IsOver());
  return EnvironmentError(
      fmt::format("rank {} on {} did not reach rank 0 at {} (ports {} to {}) within {:g} s "
                  "(--rank_timeout, timeout_s): {}",
                  launch_.rank, HostName(), launch_.master_address, launch_.first_port,
                  launch_.first_port + kNumRankPorts - 1, timeout_s_, MessageOf(why_not)));
}

absl::StatusOr<UniqueFd> Meeting::TryToJoin(const SocketAddress& address) {
  FOREBAY_ASSIGN_OR_RETURN(UniqueFd fd, ConnectTo(address, AnswerDeadline()));
  const Greeting greeting = OwnGreeting(ConnectionPurpose::kControl);
  FOREBAY_RETURN_IF_ERROR(SendMessage(fd.get(), AsMessage(greeting), AnswerDeadline()));
  Answer answer;
  FOREBAY_RETURN_IF_ERROR(ReceiveMessage(fd.get(), AsRoom(answer), AnswerDeadline()));
  if (answer.magic != kMagic) {
    return EnvironmentError(fmt::format("something else listens at {}", address.Text()));
  }
  if (answer.is_welcome == 0) {
    return UsageError(fmt::format("rank 0 at {} does not take rank {} on {}: {}", address.Text(),
                                  launch_.rank, HostName(), TextOf(answer.why_not)));
  }
  return fd;
}

absl::Status Meeting::ReceiveTable() {
  const absl::Status received =
      ReceiveMessage(Connection(0, ConnectionPurpose::kControl).get(),
                     std::as_writable_bytes(std::span(whereabouts_)), deadline_);
  if (received.ok()) return received;
  return Annotate(received, "rank 0 waits for other ranks, or is gone: its output says which");
}

absl::Status Meeting::ConnectToLowerRanks() {
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
      absl::StatusOr<UniqueFd> fd = ConnectTo(address, deadline_);
      const Greeting greeting = OwnGreeting(purpose);
      const absl::Status met =
          fd.ok() ? SendMessage(fd->get(), AsMessage(greeting), deadline_) : fd.status();
      if (!met.ok()) {
        return Annotate(met, fmt::format("rank {} did not reach rank {} on {}", launch_.rank, r,
                                         TextOf(whereabouts_[static_cast<size_t>(r)].host)));
      }
      Connection(r, purpose) = *std::move(fd);
    }
  }
  return absl::OkStatus();
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
