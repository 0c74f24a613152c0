#include "forebay/collective/sockets/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

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

bool SocketAddress::IsSameHost(const SocketAddress& other) const {
  if (storage.ss_family != other.storage.ss_family) return false;
  if (storage.ss_family == AF_INET) {
    return V4(*this).sin_addr.s_addr == V4(other).sin_addr.s_addr;
  }
  return IN6_ARE_ADDR_EQUAL(&V6(*this).sin6_addr, &V6(other).sin6_addr);
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
    SocketAddress address;
    std::memcpy(&address.storage, item->ai_addr, item->ai_addrlen);
    address.set_port(port);
    const auto is_same = [&](const SocketAddress& other) { return other.IsSameHost(address); };
    if (std::none_of(addresses.begin(), addresses.end(), is_same)) addresses.push_back(address);
  }
  ::freeaddrinfo(list);
  return addresses;
}

SocketAddress EveryAddress(int port) {
  // An IPv6 socket serves IPv4 too, if the machine has IPv6.
  const UniqueFd probe(::socket(AF_INET6, kSocketFlags, 0));
  SocketAddress address;
  address.storage.ss_family = probe.valid() ? AF_INET6 : AF_INET;
  address.set_port(port);
  return address;
}

SocketAddress OwnAddress(int fd) {
  SocketAddress address;
  socklen_t size = sizeof address.storage;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &size);
  return Unmapped(address);
}

SocketAddress PeerAddress(int fd) {
  SocketAddress address;
  socklen_t size = sizeof address.storage;
  ::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &size);
  return Unmapped(address);
}

int ListenAt(const SocketAddress& address, UniqueFd& listener) {
  UniqueFd fd(::socket(address.storage.ss_family, kSocketFlags, 0));
  if (!fd.valid()) return errno;
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.storage.ss_family == AF_INET6) {
    const int is_v6_only = IN6_IS_ADDR_UNSPECIFIED(&V6(address).sin6_addr) ? 0 : 1;
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &is_v6_only, sizeof is_v6_only);
  }
  if (::bind(fd.get(), Plain(address), address.size_bytes()) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    return errno;
  }
  listener = std::move(fd);
  return 0;
}

int Accept(int listener, UniqueFd& connection) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) return errno;
  connection = std::move(fd);
  return 0;
}

int StartToConnect(const SocketAddress& address, UniqueFd& connection) {
  UniqueFd fd(::socket(address.storage.ss_family, kSocketFlags, 0));
  if (!fd.valid()) return errno;
  if (::connect(fd.get(), Plain(address), address.size_bytes()) != 0 && errno != EINPROGRESS) {
    return errno;
  }
  connection = std::move(fd);
  return 0;
}

int ErrorOfConnecting(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
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

bool SendAtOnce(int fd, std::span<const std::byte> message) {
  for (;;) {
    const ssize_t sent = ::send(fd, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0 || errno != EINTR) return sent == static_cast<ssize_t>(message.size());
  }
}

int64_t ReceiveSome(int fd, std::span<std::byte> room) {
  for (;;) {
    const ssize_t got = ::recv(fd, room.data(), room.size(), MSG_DONTWAIT);
    if (got > 0) return got;
    if (got == 0) {
      errno = ECONNRESET;  // closed
      return -1;
    }
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) return -1;
  }
}

}  // namespace forebay
