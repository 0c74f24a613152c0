#include "forebay/collective/sockets/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

constexpr int kSocketFlags = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;

const sockaddr* Plain(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}
sockaddr_in& V4(SocketAddress& address) {
  return reinterpret_cast<sockaddr_in&>(address.storage);
}
sockaddr_in6& V6(SocketAddress& address) {
  return reinterpret_cast<sockaddr_in6&>(address.storage);
}
const sockaddr_in& V4(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in&>(address.storage);
}
const sockaddr_in6& V6(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6&>(address.storage);
}

absl::Status SocketError(std::string_view what) {
  return EnvironmentError(fmt::format("{}: {}", what, ErrnoText(errno)));
}

// A socket that listens for both versions sees IPv4 addresses in IPv6's clothes, which a machine
// without IPv6 cannot use.
SocketAddress Unmapped(const SocketAddress& address) {
  if (address.storage.ss_family != AF_INET6) return address;
  const sockaddr_in6& v6 = V6(address);
  if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return address;
  SocketAddress unmapped;
  V4(unmapped).sin_family = AF_INET;
  V4(unmapped).sin_port = v6.sin6_port;
  std::memcpy(&V4(unmapped).sin_addr, v6.sin6_addr.s6_addr + 12, 4);
  return unmapped;
}

SocketAddress ListeningAddress(int family, int port, bool this_machine_alone) {
  SocketAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  if (family == AF_INET) {
    V4(address).sin_addr.s_addr = htonl(this_machine_alone ? INADDR_LOOPBACK : INADDR_ANY);
  } else {
    V6(address).sin6_addr = this_machine_alone ? in6addr_loopback : in6addr_any;
  }
  address.set_port(port);
  return address;
}

// 0: ready; ETIMEDOUT: not before the deadline; else of poll.
int AwaitReadiness(int fd, short events, SocketDeadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return ETIMEDOUT;
    pollfd item = {fd, events, 0};
    const int ready =
        ::poll(&item, 1, static_cast<int>(std::min<int64_t>(left.count(), 1'000'000)));
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return errno;
  }
}

}  // namespace

bool SocketAddress::IsLoopback() const {
  if (storage.ss_family == AF_INET) return ntohl(V4(*this).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&V6(*this).sin6_addr);
}

int SocketAddress::port() const {
  return ntohs(storage.ss_family == AF_INET ? V4(*this).sin_port : V6(*this).sin6_port);
}

void SocketAddress::set_port(int port) {
  (storage.ss_family == AF_INET ? V4(*this).sin_port : V6(*this).sin6_port) =
      htons(static_cast<uint16_t>(port));
}

socklen_t SocketAddress::size_bytes() const {
  return storage.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

std::string SocketAddress::Text() const {
  char host[INET6_ADDRSTRLEN] = "?";
  const bool is_v4 = storage.ss_family == AF_INET;
  const void* const address = is_v4 ? static_cast<const void*>(&V4(*this).sin_addr)
                                    : static_cast<const void*>(&V6(*this).sin6_addr);
  ::inet_ntop(storage.ss_family, address, host, sizeof host);
  return is_v4 ? fmt::format("{}:{}", host, port()) : fmt::format("[{}]:{}", host, port());
}

absl::StatusOr<std::vector<SocketAddress>> ResolveHost(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list); error != 0) {
    return EnvironmentError(fmt::format("the address of the machine '{}' is not known: {}", host,
                                        ::gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    if (item->ai_family != AF_INET && item->ai_family != AF_INET6) continue;
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, item->ai_addr, item->ai_addrlen);
    address.set_port(port);
  }
  ::freeaddrinfo(list);
  return addresses;
}

SocketAddress PeerAddress(int fd) {
  SocketAddress address;
  socklen_t size = sizeof address.storage;
  ::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &size);
  return Unmapped(address);
}

absl::StatusOr<UniqueFd> ListenAt(int port, bool this_machine_alone) {
  // One for IPv6 serves IPv4 too, but not on the loopback.
  int family = this_machine_alone ? AF_INET : AF_INET6;
  UniqueFd listener(::socket(family, kSocketFlags, 0));
  if (!listener.valid() && family == AF_INET6) {
    family = AF_INET;
    listener = UniqueFd(::socket(family, kSocketFlags, 0));
  }
  if (!listener.valid()) return SocketError("no socket could be made");
  const int on = 1;
  const int off = 0;
  ::setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (family == AF_INET6) {
    ::setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  const SocketAddress address = ListeningAddress(family, port, this_machine_alone);
  if (::bind(listener.get(), Plain(address), address.size_bytes()) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    return SocketError(fmt::format("listening at {} failed", address.Text()));
  }
  return listener;
}

int PortOf(int fd) {
  SocketAddress address;
  socklen_t size = sizeof address.storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &size);
  return address.port();
}

absl::StatusOr<UniqueFd> ConnectTo(const SocketAddress& address, SocketDeadline deadline) {
  UniqueFd fd(::socket(address.storage.ss_family, kSocketFlags, 0));
  if (!fd.valid()) return SocketError("no socket could be made");
  int error = 0;
  if (::connect(fd.get(), Plain(address), address.size_bytes()) != 0) {
    error = errno == EINPROGRESS ? AwaitReadiness(fd.get(), POLLOUT, deadline) : errno;
    socklen_t size = sizeof error;
    if (error == 0) ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  }
  errno = error;
  if (error != 0) return SocketError(fmt::format("connecting to {} failed", address.Text()));
  return fd;
}

absl::StatusOr<UniqueFd> AcceptOne(int listener, SocketDeadline deadline) {
  for (;;) {
    const int error = AwaitReadiness(listener, POLLIN, deadline);
    if (error == ETIMEDOUT) return UniqueFd();
    errno = error;
    if (error != 0) return SocketError("waiting for connections failed");
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.valid()) return fd;
    // All errors but these mean that the peer has gone again.
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      return SocketError("accepting a connection failed");
    }
  }
}

void TuneForRanks(int fd, double timeout_s) {
  const auto set = [fd](int level, int option, int value) {
    ::setsockopt(fd, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  const int timeout = std::max(1, static_cast<int>(std::min(timeout_s, 1e6)));
  set(IPPROTO_TCP, TCP_KEEPIDLE, std::max(1, timeout / 4));
  set(IPPROTO_TCP, TCP_KEEPINTVL, std::max(1, timeout / 4));
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, timeout * 1000);
}

absl::Status SendMessage(int fd, std::span<const std::byte> message, SocketDeadline deadline) {
  while (!message.empty()) {
    const ssize_t sent = ::send(fd, message.data(), message.size(), MSG_NOSIGNAL);
    if (sent > 0) message = message.subspan(static_cast<size_t>(sent));
    if (sent > 0 || errno == EINTR) continue;
    if (errno == EAGAIN) errno = AwaitReadiness(fd, POLLOUT, deadline);
    if (errno != 0) return SocketError("sending failed");
  }
  return absl::OkStatus();
}

absl::Status ReceiveMessage(int fd, std::span<std::byte> message, SocketDeadline deadline) {
  while (!message.empty()) {
    const ssize_t got = ::recv(fd, message.data(), message.size(), 0);
    if (got > 0) message = message.subspan(static_cast<size_t>(got));
    if (got == 0) return EnvironmentError("the connection was closed");
    if (got > 0 || errno == EINTR) continue;
    if (errno == EAGAIN) errno = AwaitReadiness(fd, POLLIN, deadline);
    if (errno != 0) return SocketError("receiving failed");
  }
  return absl::OkStatus();
}

}  // namespace forebay
