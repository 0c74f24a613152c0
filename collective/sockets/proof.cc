#include "forebay/collective/sockets/proof.h"

#include <sodium.h>
#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "fmt/format.h"
#include "forebay/base/errors.h"

namespace forebay {
namespace {

static_assert(std::tuple_size_v<Proof> == crypto_auth_hmacsha256_BYTES);

Proof Hmac(std::string_view key, std::string_view first,
           std::initializer_list<std::span<const std::byte>> rest) {
  const auto bytes = [](const auto& range) {
    return reinterpret_cast<const unsigned char*>(range.data());
  };
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes(key), key.size());
  crypto_auth_hmacsha256_update(&state, bytes(first), first.size());
  for (const std::span<const std::byte> part : rest) {
    crypto_auth_hmacsha256_update(&state, bytes(part), part.size());
  }
  Proof proof;
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(proof.data()));
  return proof;
}

}  // namespace

absl::StatusOr<Nonce> DrawNonce() {
  Nonce nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    return EnvironmentError(fmt::format(
        "the system gave no random bytes (getrandom), without which ranks prove nothing: {}",
        ErrnoText(errno)));
  }
  return nonce;
}

JobKey::JobKey(std::string_view job, std::string_view secret)
    : key_(secret.empty() ? job : secret) {
  const Proof digest = Hmac(job, "forebay: the job", {});
  std::memcpy(&tag_, digest.data(), sizeof tag_);
}

Proof JobKey::Prove(std::string_view speaker,
                    std::initializer_list<std::span<const std::byte>> what) const {
  return Hmac(key_, speaker, what);
}

bool IsSameProof(const Proof& a, const Proof& b) {
  return crypto_verify_32(reinterpret_cast<const unsigned char*>(a.data()),
                          reinterpret_cast<const unsigned char*>(b.data())) == 0;
}

}  // namespace forebay
