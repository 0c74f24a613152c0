#include "forebay/collective/sockets/proof.h"

#include <string>

#include "gtest/gtest.h"

namespace forebay {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

std::string Hex(const Proof& proof) {
  std::string hex;
  for (const std::byte byte : proof) {
    for (const int digit : {static_cast<int>(byte) >> 4, static_cast<int>(byte) & 15}) {
      hex += "0123456789abcdef"[digit];
    }
  }
  return hex;
}

TEST(JobKey, ProvesByHmacSha256) {
  // RFC 4231, test case 2, cut in three.
  EXPECT_EQ(
      Hex(JobKey("a job", "Jefe").Prove("what do ya", {Bytes(" want for "), Bytes("nothing?")})),
      "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(JobKey, IsTheSecretOrElseTheJob) {
  const auto proof = [](const char* job, const char* secret) {
    return JobKey(job, secret).Prove("a rank", {});
  };
  EXPECT_TRUE(IsSameProof(proof("one", "secret"), proof("other", "secret")));
  EXPECT_FALSE(IsSameProof(proof("one", "secret"), proof("one", "Secret")));
  EXPECT_FALSE(IsSameProof(proof("one", "secret"), proof("one", "")));
  EXPECT_TRUE(IsSameProof(proof("one", ""), proof("one", "")));
  EXPECT_FALSE(IsSameProof(proof("one", ""), proof("other", "")));
}

TEST(JobKey, TellsJobsApartWhateverTheSecret) {
  EXPECT_EQ(JobKey("one", "secret").tag(), JobKey("one", "").tag());
  EXPECT_NE(JobKey("one", "secret").tag(), JobKey("other", "secret").tag());
}

TEST(DrawNonce, IsAnotherEachTime) {
  EXPECT_NE(DrawNonce().value(), DrawNonce().value());
}

}  // namespace
}  // namespace forebay
