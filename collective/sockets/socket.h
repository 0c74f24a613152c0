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
  // Whether both have the same host address; ports are ignored.
  bool IsSameHost(const SocketAddress& other) const;
  int port() const;
  void set_port(int port);
  socklen_t size_bytes() const;
  std::string Text() const;  // "10.0.0.7:29501", "[::1]:29501"
};

// All addresses of a machine, each once. EnvironmentError when the name is not known.
absl::StatusOr<std::vector<SocketAddress>> ResolveHost(const std::string& host, int port);
// Stands for all addresses of this machine.
SocketAddress EveryAddress(int port);
// At this end of a connection or of a socket that listens, and at the other end.
SocketAddress OwnAddress(int fd);
SocketAddress PeerAddress(int fd);

// These return 0, or the errno of what failed.
//
// Listens there; port 0 is one that is free.
int ListenAt(const SocketAddress& address, UniqueFd& listener);
// The next connection that has come, and EAGAIN where none has.
int Accept(int listener, UniqueFd& connection);
// Begins to connect; the end of it makes the socket writable.
int StartToConnect(const SocketAddress& address, UniqueFd& connection);
int ErrorOfConnecting(int fd);

// Small messages go out at once, and a dead machine is noticed within about `timeout_s`.
void TuneForRanks(int fd, double timeout_s);

// All of it, or an EnvironmentError: closed, or not before the deadline.
absl::Status SendMessage(int fd, std::span<const std::byte> message, SocketDeadline deadline);
// All of it without waiting, as is possible for the first bytes of a connection. False: it was not.
bool SendAtOnce(int fd, std::span<const std::byte> message);
// Receives the bytes that have arrived, max room.size(), and returns their number; -1 with errno if
// the connection has ended or failed.
int64_t ReceiveSome(int fd, std::span<std::byte> room);

}  // namespace forebay
