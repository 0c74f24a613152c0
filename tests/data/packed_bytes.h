// Packed files made by hand, field by field, so that tests can also make the ones that no writer
// would.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "forebay/base/hash.h"

namespace forebay {

struct PackedBytes {
  std::string magic = "FBPACKED";
  uint32_t version = 2;
  uint64_t num_rows = 2;
  uint64_t seq = 4;
  uint64_t vocab_size = 10;
  uint64_t num_tokens = 7;
  uint64_t num_trained = 3;
  uint64_t num_samples = 3;
  uint64_t longest_segment = 3;
  std::string info = R"({"tokenizer_digest":"abc","provenance":{"seq":4}})";
  // Row 0: samples 1 2 and 3 4, the second tokens trained (of the first sample only). Row 1: 5 6 7,
  // then padding.
  std::vector<uint32_t> tokens = {1, 2, 3, 4, 5, 6, 7, 0};
  std::vector<uint8_t> flags = {2, 1, 2, 0, 2, 1, 1, 4};

  // The file, with right checksums whatever the fields say.
  std::string Encode() const {
    std::string content(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4);
    content.append(flags.begin(), flags.end());
    Xxh3_128 digest;
    digest.UpdateInt(static_cast<int64_t>(num_rows));
    digest.UpdateInt(static_cast<int64_t>(seq));
    digest.Update(content);
    const std::string checksums = RowChecksums(digest.Digest());
    Xxh3_128 checksums_digest;
    checksums_digest.Update(checksums);
    std::string header = magic;
    Append(header, version);
    Append(header, static_cast<uint32_t>(info.size()));
    for (const uint64_t value :
         {num_rows, seq, vocab_size, num_tokens, num_trained, num_samples, longest_segment}) {
      Append(header, value);
    }
    Append(header, digest.Digest());
    Append(header, checksums_digest.Digest());
    header.resize(4096 - 8, '\0');
    const std::string digested = header + info;
    Append(header, Xxh3_64(std::as_bytes(std::span(digested))));
    std::string padded_info = info;
    padded_info.resize((info.size() + 4095) / 4096 * 4096, '\0');
    return header + padded_info + content + checksums;
  }

 private:
  // Covers the rows that `tokens` and `flags` have, whatever the header says.
  std::string RowChecksums(const std::array<uint8_t, 16>& digest) const {
    uint64_t seed = 0;
    std::memcpy(&seed, digest.data(), sizeof(seed));
    std::string checksums;
    const bool has_rows = seq > 0 && seq <= flags.size() && tokens.size() == flags.size();
    for (size_t row = 0; has_rows && (row + 1) * seq <= flags.size(); ++row) {
      const std::span<const uint32_t> row_tokens(tokens.data() + row * seq, seq);
      const std::span<const uint8_t> row_flags(flags.data() + row * seq, seq);
      const uint64_t of_tokens = Xxh3_64(std::as_bytes(row_tokens), seed + row);
      Append(checksums, Xxh3_64(std::as_bytes(row_flags), of_tokens));
    }
    return checksums;
  }

  template <typename T>
  static void Append(std::string& bytes, T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes.append(raw, sizeof(T));
  }
};

}  // namespace forebay
