// The first messages on a connection between two ranks. Each end proves to the other that it is a
// rank of the job before anything else is said; whoever cannot is a stranger, and is dropped:
//
//   the end that connects                            the end that listens
//   Hello      what speaks, of which job, a nonce ->
//                                                 <- Challenge  a nonce
//   Claim      which rank it is, proof            ->
//                                                 <- Verdict    whether it is welcome, proof
//   Confirm    its own listening port             ->
//
// A proof covers both nonces and what is said in the message, so it serves for this connection and
// this message only. The end that connects proves first: a stranger is told nothing from which a
// secret could be guessed. What comes after the Confirm is neither encrypted nor authenticated.
//
// Both classes only do what can be done at once, and are owned by one thread. Messages are sent as
// they lie in memory: ranks of one run are of one build and one byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "forebay/base/file.h"
#include "forebay/collective/sockets/proof.h"
#include "forebay/collective/sockets/socket.h"

namespace forebay {

enum class ConnectionPurpose : int32_t { kControl, kData };

// The first message of the rank that connects.
struct Greeting {
  int32_t rank = 0;
  int32_t size = 0;
  int32_t to_rank = 0;
  ConnectionPurpose purpose = ConnectionPurpose::kControl;
  Nonce process = {};  // tells it from another process that says that it is the same rank
  char host[64] = "";
};

struct HelloMessage {
  uint64_t magic = 0;
  uint64_t job_tag = 0;
  Nonce nonce = {};
};
struct ChallengeMessage {
  uint64_t magic = 0;
  Nonce nonce = {};
};
struct ClaimMessage {
  Greeting greeting;
  Proof proof = {};
};
struct Answer {
  int32_t is_welcome = 0;
  char why_not[252] = "";
};
struct VerdictMessage {
  Answer answer;
  Proof proof = {};
};
struct ConfirmMessage {
  int32_t port = 0;
};

enum class HandshakeState {
  kUnderWay,
  kIsClaimed,  // incoming: the other end has proven who it is, and Judge is due
  kMet,        // both ends know each other; outgoing: Confirm is due
  kFailed,
};

// A connection that came in, from whomever.
class IncomingHandshake {
 public:
  // `key` must outlive it.
  IncomingHandshake(UniqueFd fd, const JobKey& key);

  int fd() const { return fd_.get(); }
  // When there is something to be received.
  HandshakeState Advance();
  bool is_proven() const { return step_ == Step::kVerdict || step_ == Step::kConfirm; }
  // It named this job, and proved with another secret.
  bool has_other_secret() const { return has_other_secret_; }
  // Requires: is_proven().
  const Greeting& greeting() const { return claim_.greeting; }
  // Sends the verdict; `why_not` is "" for a rank that is welcome. Requires: kIsClaimed.
  HandshakeState Judge(const std::string& why_not);
  int confirmed_port() const { return confirm_.port; }
  UniqueFd TakeConnection() { return std::move(fd_); }

 private:
  enum class Step { kHello, kClaim, kVerdict, kConfirm };
  HandshakeState TakeHello();
  HandshakeState TakeClaim();

  UniqueFd fd_;
  const JobKey& key_;
  Step step_ = Step::kHello;
  bool has_other_secret_ = false;
  size_t num_received_ = 0;  // bytes of the message that is due
  HelloMessage hello_;
  ChallengeMessage challenge_;
  ClaimMessage claim_;
  ConfirmMessage confirm_;
};

// A connection to a rank, or to what may be one.
class OutgoingHandshake {
 public:
  // Begins to connect. `key` must outlive it.
  OutgoingHandshake(const SocketAddress& to, const JobKey& key, const Greeting& greeting);

  int fd() const { return fd_.get(); }
  short events() const;  // that poll(2) has to wait for
  HandshakeState Advance();
  HandshakeState state() const { return state_; }
  // Why it failed. UsageError: the rank proved that it is one, and does not take this one.
  const absl::Status& status() const { return status_; }
  // Nobody listens at the address.
  bool is_refused() const { return is_refused_; }
  // The other end says that it is of this job, and has another secret.
  bool has_other_secret() const { return has_other_secret_; }
  // `port`: the listening port of this rank. kFailed: the other end closed. Requires: kMet.
  HandshakeState Confirm(int port);
  UniqueFd TakeConnection() { return std::move(fd_); }

 private:
  enum class Step { kConnecting, kChallenge, kVerdict };
  HandshakeState TakeChallenge();
  HandshakeState TakeVerdict();
  HandshakeState Fail(const absl::Status& status);

  UniqueFd fd_;
  const SocketAddress to_;
  const JobKey& key_;
  Step step_ = Step::kConnecting;
  HandshakeState state_ = HandshakeState::kUnderWay;
  absl::Status status_;
  bool is_refused_ = false;
  bool has_other_secret_ = false;
  size_t num_received_ = 0;
  HelloMessage hello_;
  ChallengeMessage challenge_;
  ClaimMessage claim_;
  VerdictMessage verdict_;
};

// Bytes of a message, and of text in one; text that is too long is cut.
template <typename T>
std::span<const std::byte> BytesOf(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}
void CopyText(std::string_view text, std::span<char> to);
std::string TextOf(std::span<const char> text);

}  // namespace forebay
