#include "forebay/base/hash.h"

#include <cstddef>
#include <span>
#include <vector>

#include "gtest/gtest.h"

namespace forebay {
namespace {

std::string HexOf(std::string_view text) {
  Xxh3_128 hash;
  hash.Update(text);
  return hash.Hex();
}

// What `xxh128sum` prints.
TEST(Xxh3, Hex128MatchesTheCommandLineTool) {
  EXPECT_EQ(HexOf(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(HexOf("forebay\n"), "11336dc62bb5895b60149b8d4c08f380");
}

TEST(Xxh3, LongInputsHaveTheSameHash) {
  std::vector<std::byte> bytes(300'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i + i / 251);
  for (const size_t size : {4095u, 4096u, 4097u, 131'072u, 299'999u}) {
    for (const size_t first : {0u, 1u}) {
      const auto part = std::span(bytes).subspan(first, size);
      EXPECT_EQ(Xxh3_64(part, 7), XXH3_64bits_withSeed(part.data(), size, 7)) << size;
    }
  }
}

TEST(Xxh3, EmptyInputHasThePublished64BitHash) {
  EXPECT_EQ(Xxh3_64({}), 0x2d06800538d394c2u);
}

TEST(Xxh3, PiecesHashAsTheWhole) {
  Xxh3_128 hash;
  hash.Update(std::string_view("fore"));
  hash.Update(std::string_view("bay\n"));
  EXPECT_EQ(hash.Hex(), HexOf("forebay\n"));
}

TEST(Xxh3, IntegersAreEightLittleEndianBytes) {
  Xxh3_128 hash;
  hash.UpdateInt(258);
  EXPECT_EQ(hash.Hex(), HexOf(std::string_view("\x02\x01\0\0\0\0\0\0", 8)));
}

}  // namespace
}  // namespace forebay
