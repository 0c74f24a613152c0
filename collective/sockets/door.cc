#include "forebay/collective/sockets/door.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// A rank proves that it is one within this time, and has the time of the meeting afterwards.
constexpr std::chrono::seconds kTimeToProve(5);
// More wait for no answer at a time, so that strangers cannot take all descriptors.
constexpr size_t kMostGuests = 512;
// So many come in before those who are there are listened to again.
constexpr int kMostAtOnce = 64;

bool IsShortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
}

}  // namespace

int Door::Open(const std::vector<SocketAddress>& addresses) {
  std::vector<UniqueFd> listeners;
  int not_available = EADDRNOTAVAIL;
  for (const SocketAddress& address : addresses) {
    const int error = ListenAt(address, listeners.emplace_back());
    if (error == 0) continue;
    listeners.pop_back();
    // One of several addresses may be missing: an IPv6 one on a machine without IPv6.
    if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) return error;
    not_available = error;
  }
  if (listeners.empty()) return not_available;
  listeners_ = std::move(listeners);
  return 0;
}

std::string Door::Addresses() const {
  std::vector<std::string> texts;
  for (const UniqueFd& listener : listeners_) texts.push_back(OwnAddress(listener.get()).Text());
  return fmt::format("{}", fmt::join(texts, " and "));
}

void Door::AddPolled(std::vector<pollfd>& polled) const {
  for (const Guest& guest : guests_) polled.push_back({guest.handshake.fd(), POLLIN, 0});
  if (shortage_ != 0) return;  // the next call looks again
  for (const UniqueFd& listener : listeners_) polled.push_back({listener.get(), POLLIN, 0});
}

void Door::Serve() {
  TakeIn();
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    guest = GoOnWith(*guest) ? std::next(guest) : guests_.erase(guest);
  }
}

void Door::TakeIn() {
  shortage_ = 0;
  for (const UniqueFd& listener : listeners_) {
    for (int left = kMostAtOnce; left > 0; --left) {
      UniqueFd fd;
      const int error = Accept(listener.get(), fd);
      if (error == 0) {
        if (guests_.size() >= kMostGuests) DropLongestWaiting();
        const auto deadline = std::chrono::steady_clock::now() + kTimeToProve;
        guests_.push_back({IncomingHandshake(std::move(fd), key_), deadline});
      } else if (error == EAGAIN) {
        break;
      } else if (IsShortage(error)) {
        // The newest connection is read from once before it may be dropped.
        left = std::min(left, 2);
        if (DropLongestWaiting()) continue;
        shortage_ = error;
        return;
      }
      // All other errors mean that whoever came has gone again.
    }
  }
}

bool Door::DropLongestWaiting() {
  const auto guest = std::find_if(guests_.begin(), guests_.end(), [](const Guest& candidate) {
    return !candidate.handshake.is_proven();
  });
  if (guest == guests_.end()) return false;
  guests_.erase(guest);
  return true;
}

bool Door::GoOnWith(Guest& guest) {
  IncomingHandshake& handshake = guest.handshake;
  HandshakeState state = handshake.Advance();
  if (state == HandshakeState::kIsClaimed) {
    state = handshake.Judge(judge_(handshake.greeting(), IsOtherAdmitted(guest)));
  }
  switch (state) {
    case HandshakeState::kMet:
      admit_(handshake.greeting(), handshake.TakeConnection(), handshake.confirmed_port());
      return false;
    case HandshakeState::kFailed:
      if (handshake.has_other_secret()) {
        ++num_with_other_secret_;
        last_with_other_secret_ = PeerAddress(handshake.fd()).Text();
      }
      return false;
    case HandshakeState::kUnderWay:
    case HandshakeState::kIsClaimed:
      break;
  }
  return handshake.is_proven() || std::chrono::steady_clock::now() < guest.deadline;
}

bool Door::IsOtherAdmitted(const Guest& guest) const {
  const Greeting& greeting = guest.handshake.greeting();
  return std::any_of(guests_.begin(), guests_.end(), [&](const Guest& other) {
    if (&other == &guest || !other.handshake.is_proven()) return false;
    const Greeting& its = other.handshake.greeting();
    return its.rank == greeting.rank && its.purpose == greeting.purpose &&
           its.process != greeting.process;
  });
}

std::string Door::Remarks() const {
  std::string remarks;
  if (shortage_ != 0) {
    remarks += fmt::format(". No connection could be accepted: {}{}", ErrnoText(shortage_),
                           shortage_ == EMFILE ? "; raise 'ulimit -n'" : "");
  }
  if (num_with_other_secret_ > 0) {
    remarks += fmt::format(
        ". {} connections, the last from {}, named this job and proved it with another secret: "
        "give all ranks the same FOREBAY_JOB_SECRET or FOREBAY_JOB_SECRET_FILE, or none",
        num_with_other_secret_, last_with_other_secret_);
  }
  return remarks;
}

}  // namespace forebay
