// Packed token files. The input is the header's fields, then the info, then tokens and flags; the
// checksums are made here, as no mutation would ever find them. Whatever is opened keeps what
// PackedFile promises to the model.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>

#include "fmt/format.h"
#include "forebay/base/hash.h"
#include "forebay/data/packed_file.h"

namespace {

constexpr size_t kFieldBytes = 88;
constexpr size_t kBlockBytes = 4096;
constexpr size_t kInfoBytesAt = 12;
constexpr size_t kRowsAt = 16;
constexpr size_t kDigestAt = 72;
constexpr size_t kDigestBytes = 16;

void Require(bool condition) {
  if (!condition) std::abort();
}

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Covers the rows in `contents`, where those are as many as the fields say.
std::string RowChecksums(const std::string& fields, std::string_view contents, uint64_t seed) {
  uint64_t rows_and_seq[2];
  std::memcpy(rows_and_seq, fields.data() + kRowsAt, sizeof(rows_and_seq));
  const auto [num_rows, seq] = rows_and_seq;
  std::string checksums;
  const bool fits = seq > 0 && seq <= contents.size() && contents.size() % (5 * seq) == 0 &&
                    contents.size() / (5 * seq) == num_rows;
  for (size_t row = 0; fits && row < num_rows; ++row) {
    const auto part = [&](size_t begin, size_t size) {
      return std::as_bytes(std::span(contents.substr(begin, size)));
    };
    const uint64_t of_tokens = forebay::Xxh3_64(part(row * 4 * seq, 4 * seq), seed + row);
    const uint64_t checksum =
        forebay::Xxh3_64(part(num_rows * 4 * seq + row * seq, seq), of_tokens);
    checksums.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  }
  return checksums;
}

// The file that the input describes, with right checksums.
std::string Assemble(std::string fields, std::string_view rest) {
  uint32_t info_bytes = 0;
  std::memcpy(&info_bytes, fields.data() + kInfoBytesAt, sizeof(info_bytes));
  const std::string_view info = rest.substr(0, info_bytes);
  const std::string_view contents = rest.substr(info.size());
  forebay::Xxh3_128 digest;
  digest.Update(std::string_view(fields).substr(kRowsAt, 16));  // rows and seq
  digest.Update(contents);
  std::memcpy(fields.data() + kDigestAt, digest.Digest().data(), kDigestBytes);
  uint64_t seed = 0;
  std::memcpy(&seed, fields.data() + kDigestAt, sizeof(seed));
  const std::string checksums = RowChecksums(fields, contents, seed);
  forebay::Xxh3_128 checksums_digest;
  checksums_digest.Update(checksums);
  std::string file = fields;
  file.append(reinterpret_cast<const char*>(checksums_digest.Digest().data()), kDigestBytes);
  file.resize(kBlockBytes - sizeof(uint64_t), '\0');
  file += info;
  const uint64_t checksum = forebay::Xxh3_64(Bytes(file));
  file.insert(kBlockBytes - sizeof(uint64_t), reinterpret_cast<const char*>(&checksum),
              sizeof(checksum));
  file.resize((file.size() + kBlockBytes - 1) / kBlockBytes * kBlockBytes, '\0');
  return file.append(contents).append(checksums);
}

// One file in memory for the whole run of the fuzzer.
int MemoryFile() {
  static const int fd = ::memfd_create("packed", MFD_CLOEXEC);
  return fd;
}

void CheckRows(const forebay::PackedFile& file) {
  const forebay::PackedFileInfo& info = file.info();
  std::vector<int64_t> rows(static_cast<size_t>(info.num_rows));
  std::iota(rows.begin(), rows.end(), 0);
  forebay::MicroBatch batch;
  Require(file.ReadRows(rows, batch).ok());
  Require(batch.num_tokens == info.num_tokens && batch.num_trained == info.num_trained);
  int64_t num_tokens = 0;
  for (const auto& segment : batch.segments) {
    Require(segment.length >= 1 && segment.length <= info.longest_segment);
    num_tokens += segment.length;
  }
  Require(num_tokens == info.num_tokens);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    Require(batch.tokens[i] >= 0 && batch.tokens[i] < info.vocab_size);
    Require(batch.targets[i] >= -1 && batch.targets[i] < info.vocab_size);
    Require(batch.positions[i] >= 0 && batch.positions[i] < info.longest_segment);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kFieldBytes) return 0;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string file =
      Assemble(input.substr(0, kFieldBytes), std::string_view(input).substr(kFieldBytes));
  const int fd = MemoryFile();
  Require(fd >= 0 && ::ftruncate(fd, 0) == 0);
  Require(::pwrite(fd, file.data(), file.size(), 0) == static_cast<ssize_t>(file.size()));
  const auto opened = forebay::PackedFile::Open(fmt::format("/proc/self/fd/{}", fd));
  if (opened.ok()) CheckRows(**opened);
  return 0;
}
