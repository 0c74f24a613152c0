#include "forebay/collective/sockets/handshake.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

// The first bytes of a rank: another program at the port begins otherwise.
constexpr uint64_t kMagic = 0x326b6e6172796266;          // "fbyrank2"
constexpr uint64_t kListenerMagic = 0x326e747372796266;  // "fbyrstn2": a socket may reach itself
constexpr std::string_view kConnects = "forebay: a rank connects";
constexpr std::string_view kListens = "forebay: a rank that listens answers";

static_assert(sizeof(Greeting) == 112 && sizeof(Answer) == 256,
              "no padding: it is proven as bytes");

template <typename T>
std::span<std::byte> RoomOf(T& message, size_t num_received) {
  return std::as_writable_bytes(std::span(&message, 1)).subspan(num_received);
}

}  // namespace

void CopyText(std::string_view text, std::span<char> to) {
  const size_t size = std::min(text.size(), to.size() - 1);
  std::memcpy(to.data(), text.data(), size);
  to[size] = 0;
}

std::string TextOf(std::span<const char> text) {
  return {text.data(), ::strnlen(text.data(), text.size())};
}

// ---- Incoming ----------------------------------------------------------------------------------

IncomingHandshake::IncomingHandshake(UniqueFd fd, const JobKey& key)
    : fd_(std::move(fd)), key_(key) {}

HandshakeState IncomingHandshake::Advance() {
  const auto receive = [this](auto& message) {
    const int64_t got = ReceiveSome(fd_.get(), RoomOf(message, num_received_));
    if (got < 0) return HandshakeState::kFailed;
    num_received_ += static_cast<size_t>(got);
    if (num_received_ < sizeof message) return HandshakeState::kUnderWay;
    num_received_ = 0;
    return HandshakeState::kMet;
  };
  HandshakeState state = HandshakeState::kUnderWay;
  switch (step_) {
    case Step::kHello:
      state = receive(hello_);
      return state == HandshakeState::kMet ? TakeHello() : state;
    case Step::kClaim:
      state = receive(claim_);
      return state == HandshakeState::kMet ? TakeClaim() : state;
    case Step::kVerdict:
      return HandshakeState::kIsClaimed;
    case Step::kConfirm:
      return receive(confirm_);
  }
  return state;
}

HandshakeState IncomingHandshake::TakeHello() {
  if (hello_.magic != kMagic || hello_.job_tag != key_.tag()) return HandshakeState::kFailed;
  const absl::StatusOr<Nonce> nonce = DrawNonce();
  if (!nonce.ok()) return HandshakeState::kFailed;
  challenge_ = {kListenerMagic, *nonce};
  step_ = Step::kClaim;
  return SendAtOnce(fd_.get(), BytesOf(challenge_)) ? HandshakeState::kUnderWay
                                                    : HandshakeState::kFailed;
}

HandshakeState IncomingHandshake::TakeClaim() {
  const Proof expected = key_.Prove(
      kConnects, {BytesOf(hello_.nonce), BytesOf(challenge_.nonce), BytesOf(claim_.greeting)});
  if (!IsSameProof(expected, claim_.proof)) {
    has_other_secret_ = true;
    // A verdict that proves nothing tells a rank with another secret just that.
    SendAtOnce(fd_.get(), BytesOf(VerdictMessage()));
    return HandshakeState::kFailed;
  }
  step_ = Step::kVerdict;
  return HandshakeState::kIsClaimed;
}

HandshakeState IncomingHandshake::Judge(const std::string& why_not) {
  FOREBAY_CHECK(step_ == Step::kVerdict);
  VerdictMessage verdict = {.answer = {.is_welcome = why_not.empty()}};
  CopyText(why_not, verdict.answer.why_not);
  verdict.proof = key_.Prove(kListens, {BytesOf(hello_.nonce), BytesOf(challenge_.nonce),
                                        BytesOf(claim_.greeting), BytesOf(verdict.answer)});
  step_ = Step::kConfirm;
  const bool is_sent = SendAtOnce(fd_.get(), BytesOf(verdict));
  return is_sent && why_not.empty() ? HandshakeState::kUnderWay : HandshakeState::kFailed;
}

// ---- Outgoing ----------------------------------------------------------------------------------

OutgoingHandshake::OutgoingHandshake(const SocketAddress& to, const JobKey& key,
                                     const Greeting& greeting)
    : to_(to), key_(key) {
  claim_.greeting = greeting;
  const absl::StatusOr<Nonce> nonce = DrawNonce();
  if (!nonce.ok()) {
    Fail(nonce.status());
    return;
  }
  hello_ = {kMagic, key.tag(), *nonce};
  if (const int error = StartToConnect(to, fd_); error != 0) {
    is_refused_ = error == ECONNREFUSED;
    Fail(EnvironmentError(fmt::format("connecting to {} failed: {}", to.Text(), ErrnoText(error))));
  }
}

short OutgoingHandshake::events() const {
  return step_ == Step::kConnecting ? POLLOUT : POLLIN;
}

HandshakeState OutgoingHandshake::Fail(const absl::Status& status) {
  status_ = status;
  fd_.Reset();
  return state_ = HandshakeState::kFailed;
}

HandshakeState OutgoingHandshake::Advance() {
  if (step_ == Step::kConnecting) {
    if (const int error = ErrorOfConnecting(fd_.get()); error != 0) {
      is_refused_ = error == ECONNREFUSED;
      return Fail(EnvironmentError(
          fmt::format("connecting to {} failed: {}", to_.Text(), ErrnoText(error))));
    }
    step_ = Step::kChallenge;
    if (!SendAtOnce(fd_.get(), BytesOf(hello_))) {
      return Fail(EnvironmentError(fmt::format("{} closed the connection", to_.Text())));
    }
    return state_;
  }
  const bool is_verdict = step_ == Step::kVerdict;
  const auto room =
      is_verdict ? RoomOf(verdict_, num_received_) : RoomOf(challenge_, num_received_);
  const int64_t got = ReceiveSome(fd_.get(), room);
  if (got < 0) {
    return Fail(EnvironmentError(
        fmt::format("{} closed the connection: it is of another job, or no rank ({})", to_.Text(),
                    ErrnoText(errno))));
  }
  num_received_ += static_cast<size_t>(got);
  if (static_cast<size_t>(got) < room.size()) return state_;
  num_received_ = 0;
  return is_verdict ? TakeVerdict() : TakeChallenge();
}

HandshakeState OutgoingHandshake::TakeChallenge() {
  if (challenge_.magic != kListenerMagic) {
    return Fail(EnvironmentError(fmt::format("something else listens at {}", to_.Text())));
  }
  claim_.proof = key_.Prove(
      kConnects, {BytesOf(hello_.nonce), BytesOf(challenge_.nonce), BytesOf(claim_.greeting)});
  step_ = Step::kVerdict;
  if (!SendAtOnce(fd_.get(), BytesOf(claim_))) {
    return Fail(EnvironmentError(fmt::format("{} closed the connection", to_.Text())));
  }
  return state_;
}

HandshakeState OutgoingHandshake::TakeVerdict() {
  const Proof expected = key_.Prove(kListens, {BytesOf(hello_.nonce), BytesOf(challenge_.nonce),
                                               BytesOf(claim_.greeting), BytesOf(verdict_.answer)});
  if (!IsSameProof(expected, verdict_.proof)) {
    has_other_secret_ = true;
    return Fail(EnvironmentError(fmt::format(
        "what listens at {} is of this job and has another secret, or pretends to be. "
        "Give all ranks the same FOREBAY_JOB_SECRET or FOREBAY_JOB_SECRET_FILE, or none",
        to_.Text())));
  }
  if (verdict_.answer.is_welcome == 0) {
    return Fail(UsageError(TextOf(verdict_.answer.why_not)));
  }
  return state_ = HandshakeState::kMet;
}

HandshakeState OutgoingHandshake::Confirm(int port) {
  FOREBAY_CHECK(state_ == HandshakeState::kMet);
  if (SendAtOnce(fd_.get(), BytesOf(ConfirmMessage{port}))) return state_;
  return Fail(EnvironmentError(fmt::format("{} closed the connection", to_.Text())));
}

}  // namespace forebay
