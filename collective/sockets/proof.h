// Proofs that the other end of a connection is a rank of the same job: HMAC-SHA-256 (RFC 2104) with
// a key that all ranks have. libsodium computes it; its headers stay in proof.cc.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace forebay {

using Proof = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;

// From getrandom(2). EnvironmentError: the system has no random bytes.
absl::StatusOr<Nonce> DrawNonce();

// Thread-safe.
class JobKey {
 public:
  // secret: "" where ranks have none. The key is then `job`, which is worth what the launcher's
  // name of a job is: as good as nothing where others can read or guess it.
  JobKey(std::string_view job, std::string_view secret);

  // Tells jobs apart, and gives neither the name of the job nor the secret away.
  uint64_t tag() const { return tag_; }
  // `speaker`: a fixed text for each kind of message, so that none can stand for another.
  Proof Prove(std::string_view speaker,
              std::initializer_list<std::span<const std::byte>> what) const;

 private:
  std::string key_;
  uint64_t tag_;
};

// In constant time.
bool IsSameProof(const Proof& a, const Proof& b);

}  // namespace forebay
