// TCP sockets of ranks: made, connected, and small messages through them. All are non-blocking and
// closed at exec.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/file.h"

namespace forebay {

using SocketDeadline = std::chrono::steady_clock::time_point;

// An IPv4 or IPv6 address with a port.
struct SocketAddress {
  sockaddr_storage storage = {};

  bool IsLoopback() const;
  int port() const;
  void set_port(int port);
  socklen_t size_bytes() const;
  std::string Text() const;  // "10.0.0.7:29501", "[::1]:29501"
};

// All addresses of a machine. EnvironmentError when the name is not known.
absl::StatusOr<std::vector<SocketAddress>> ResolveHost(const std::string& host, int port);
// At the other end.
SocketAddress PeerAddress(int fd);

// Listens at `port` (0: at one that is free), for this machine alone or for every network.
// EnvironmentError with errno.
absl::StatusOr<UniqueFd> ListenAt(int port, bool this_machine_alone);
int PortOf(int fd);

// EnvironmentError: refused, or not there before the deadline.
absl::StatusOr<UniqueFd> ConnectTo(const SocketAddress& address, SocketDeadline deadline);
// The next connection; an invalid descriptor when none came before the deadline.
absl::StatusOr<UniqueFd> AcceptOne(int listener, SocketDeadline deadline);

// Small messages go out at once, and a dead machine is noticed within about `timeout_s`.
void TuneForRanks(int fd, double timeout_s);

// All of it, or an EnvironmentError: closed, or not before the deadline.
absl::Status SendMessage(int fd, std::span<const std::byte> message, SocketDeadline deadline);
absl::Status ReceiveMessage(int fd, std::span<std::byte> message, SocketDeadline deadline);

}  // namespace forebay
