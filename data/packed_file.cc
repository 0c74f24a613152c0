#include "forebay/data/packed_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/base/sealed_record.h"

namespace forebay {
namespace {

// The header block: docs/formats.md, "Packed token files".
constexpr RecordKind kPackedKind = {{'F', 'B', 'P', 'A', 'C', 'K', 'E', 'D'}, 2};
constexpr int64_t kBlockBytes = 4096;
constexpr int64_t kMaxInfoBytes = int64_t{1} << 24;
constexpr int64_t kMaxSeq = int64_t{1} << 24;
constexpr int64_t kMaxTokens = int64_t{1} << 48;
constexpr size_t kHeaderDigestAt = kBlockBytes - sizeof(uint64_t);
// Content is checked in pieces of this size, so that opening a file of any length needs little
// memory.
constexpr int64_t kCheckBytes = int64_t{1} << 20;

struct Header {
  RecordKind kind;
  uint32_t info_bytes;
  uint64_t num_rows;
  uint64_t seq;
  uint64_t vocab_size;
  uint64_t num_tokens;
  uint64_t num_trained;
  uint64_t num_samples;
  uint64_t longest_segment;
  uint8_t digest[16];            // XXH3-128 of the content, canonical order
  uint8_t checksums_digest[16];  // the same of the rows' checksums
};
static_assert(sizeof(Header) == 104);

absl::Status Damaged(const std::string& path, std::string_view problem) {
  return BadInputError(fmt::format(
      "the packed file '{}' is damaged: {}. Pack the text again with 'forebay data pack'", path,
      problem));
}

// Fills `bytes` from the start of a regular file; false when it is none or shorter. Opening a pipe
// would wait for its writer, and take from it what another reader is meant to get.
bool ReadStart(const std::string& path, std::span<std::byte> bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  const absl::StatusOr<UniqueFd> fd = OpenFile(path, O_RDONLY);
  return fd.ok() && PreadAll(fd->get(), bytes, 0, path).ok();
}

std::string HexOf(std::span<const uint8_t> bytes) {
  std::string hex;
  for (const uint8_t byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

// Follows the flags of one row after another and counts what the header states.
class FlagChecker {
 public:
  explicit FlagChecker(int64_t seq) : seq_(seq) {}

  // nullptr, or what is wrong.
  const char* Add(uint8_t flags) {
    const bool row_starts = column_ == 0;
    column_ = column_ + 1 == seq_ ? 0 : column_ + 1;
    if (flags == kTokenPadding) {
      if (row_starts) return "a row is all padding";
      in_padding_ = true;
      return nullptr;
    }
    if (row_starts) in_padding_ = false;
    if (in_padding_) return "a token follows padding";
    if (flags == kTokenSegmentStart) {
      segment_length_ = 0;
    } else if (row_starts) {
      return "a row does not start with a segment";
    } else if (flags > kTokenTrained) {
      return "a token has flags that do not go together";
    }
    longest_segment_ = std::max(longest_segment_, ++segment_length_);
    num_trained_ += flags & kTokenTrained;
    ++num_tokens_;
    return nullptr;
  }
  // nullptr, or what the counts of all rows and the header disagree about.
  const char* Compare(const PackedFileInfo& info) const {
    if (num_tokens_ != info.num_tokens) return "its header counts its tokens wrong";
    if (num_trained_ != info.num_trained) return "its header counts its trained tokens wrong";
    if (longest_segment_ != info.longest_segment)
      return "its header gives its longest segment wrong";
    return nullptr;
  }

 private:
  const int64_t seq_;
  int64_t column_ = 0;
  bool in_padding_ = false;
  int64_t segment_length_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_trained_ = 0;
  int64_t longest_segment_ = 0;
};

}  // namespace

struct PackedFile::Impl {
  std::string path;
  UniqueFd fd;
  PackedFileInfo info;
  int64_t tokens_offset = 0;
  int64_t flags_offset = 0;
  int64_t checksums_offset = 0;
  // From the digest of the file that was opened: a row of another has another checksum.
  uint64_t checksum_seed = 0;
  std::string checksums_digest;
  std::vector<uint8_t> row_flags;  // scratch of ReadRows

  absl::Status ReadHeader();
  absl::Status SetInfo(const Header& header, const std::string& info_text);
  absl::Status CheckContents();
  absl::Status CheckChecksums(std::span<std::byte> piece);
  absl::Status ReadOfRow(int64_t row, int64_t offset_bytes, std::span<std::byte> bytes);
  absl::Status CheckRow(int64_t row, std::span<const int32_t> tokens);
  absl::Status AppendRow(int64_t row, size_t row_begin, MicroBatch& batch);
};

absl::Status PackedFile::Impl::ReadHeader() {
  FOREBAY_ASSIGN_OR_RETURN(const int64_t file_bytes, FileSize(path));
  std::array<std::byte, kBlockBytes> block;
  if (file_bytes < kBlockBytes) {
    return Damaged(path, fmt::format("it has {} bytes, its header alone should have {}", file_bytes,
                                     kBlockBytes));
  }
  FOREBAY_RETURN_IF_ERROR(PreadAll(fd.get(), block, 0, path));
  Header header;
  std::memcpy(&header, block.data(), sizeof(header));
  if (header.kind.magic != kPackedKind.magic) {
    return BadInputError(fmt::format(
        "'{}' is not a packed token file; make one of .txt or .jsonl with 'forebay data pack'",
        path));
  }
  if (header.kind.version != kPackedKind.version) {
    return BadInputError(fmt::format(
        "'{}' has version {} of the packed format, this program reads {}: pack the text "
        "again",
        path, header.kind.version, kPackedKind.version));
  }
  const int64_t info_bytes = header.info_bytes;
  if (info_bytes > std::min(kMaxInfoBytes, file_bytes - kBlockBytes)) {
    return Damaged(path, fmt::format("its info claims {} bytes", info_bytes));
  }
  std::string info_text(static_cast<size_t>(info_bytes), '\0');
  FOREBAY_RETURN_IF_ERROR(
      PreadAll(fd.get(), std::as_writable_bytes(std::span(info_text)), kBlockBytes, path));
  std::string digested(reinterpret_cast<const char*>(block.data()), kHeaderDigestAt);
  digested += info_text;
  uint64_t header_digest = 0;
  std::memcpy(&header_digest, block.data() + kHeaderDigestAt, sizeof(header_digest));
  if (Xxh3_64(std::as_bytes(std::span(digested))) != header_digest) {
    return Damaged(path, "its header does not match its checksum");
  }
  FOREBAY_RETURN_IF_ERROR(SetInfo(header, info_text));
  const int64_t num_places = info.num_rows * info.seq;
  tokens_offset = kBlockBytes + (info_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  flags_offset = tokens_offset + num_places * static_cast<int64_t>(sizeof(int32_t));
  checksums_offset = flags_offset + num_places;
  const int64_t end = checksums_offset + info.num_rows * static_cast<int64_t>(sizeof(uint64_t));
  if (file_bytes != end) {
    return Damaged(path, fmt::format("it has {} bytes, its header says {}", file_bytes, end));
  }
  return absl::OkStatus();
}

absl::Status PackedFile::Impl::SetInfo(const Header& header, const std::string& info_text) {
  const bool possible = header.seq >= 2 && header.seq <= kMaxSeq && header.num_rows >= 1 &&
                        header.num_rows <= kMaxTokens / header.seq && header.vocab_size >= 1 &&
                        header.vocab_size <= std::numeric_limits<int32_t>::max();
  if (!possible) {
    return Damaged(path, fmt::format("it claims {} rows of {} tokens with a vocabulary of {}",
                                     header.num_rows, header.seq, header.vocab_size));
  }
  if (header.num_trained < 1) {
    return BadInputError(
        fmt::format("the packed file '{}' has no trained token: nothing could be learned", path));
  }
  if (header.num_tokens > header.num_rows * header.seq || header.num_trained > header.num_tokens ||
      header.num_samples < 1 || header.num_samples > header.num_tokens ||
      header.longest_segment > header.seq) {
    return Damaged(path, "the counts in its header contradict each other");
  }
  const absl::StatusOr<Json> parsed = ParseJson(info_text, "its info");
  if (!parsed.ok()) return Damaged(path, MessageOf(parsed.status()));
  const Json& json = *parsed;
  if (!json.is_object() || !json.contains("tokenizer_digest") ||
      !json["tokenizer_digest"].is_string() || !json.contains("provenance") ||
      !json["provenance"].is_object()) {
    return Damaged(path, "its info lacks 'tokenizer_digest' or 'provenance'");
  }
  info.num_rows = static_cast<int64_t>(header.num_rows);
  info.seq = static_cast<int64_t>(header.seq);
  info.vocab_size = static_cast<int64_t>(header.vocab_size);
  info.num_tokens = static_cast<int64_t>(header.num_tokens);
  info.num_trained = static_cast<int64_t>(header.num_trained);
  info.num_samples = static_cast<int64_t>(header.num_samples);
  info.longest_segment = static_cast<int64_t>(header.longest_segment);
  info.digest = HexOf(header.digest);
  std::memcpy(&checksum_seed, header.digest, sizeof(checksum_seed));
  checksums_digest = HexOf(header.checksums_digest);
  info.tokenizer_digest = json["tokenizer_digest"].get<std::string>();
  info.provenance = json["provenance"];
  return absl::OkStatus();
}

absl::Status PackedFile::Impl::CheckContents() {
  Xxh3_128 content;
  content.UpdateInt(info.num_rows);
  content.UpdateInt(info.seq);
  FlagChecker checker(info.seq);
  const int64_t end = checksums_offset;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kCheckBytes, end - tokens_offset)));
  for (int64_t at = tokens_offset; at < end;) {
    const bool in_tokens = at < flags_offset;
    const int64_t size = std::min(kCheckBytes, (in_tokens ? flags_offset : end) - at);
    const std::span<std::byte> data(piece.data(), static_cast<size_t>(size));
    FOREBAY_RETURN_IF_ERROR(PreadAll(fd.get(), data, at, path));
    content.Update(data);
    for (size_t i = 0; in_tokens && i < data.size(); i += sizeof(uint32_t)) {
      uint32_t token = 0;
      std::memcpy(&token, data.data() + i, sizeof(token));
      if (token >= info.vocab_size) {
        return Damaged(path, fmt::format("it has the token {}, its vocabulary has {}", token,
                                         info.vocab_size));
      }
    }
    for (size_t i = 0; !in_tokens && i < data.size(); ++i) {
      if (const char* problem = checker.Add(static_cast<uint8_t>(data[i])))
        return Damaged(path, problem);
    }
    at += size;
  }
  if (const char* problem = checker.Compare(info)) return Damaged(path, problem);
  if (content.Hex() != info.digest) return Damaged(path, "its tokens do not match their checksum");
  return CheckChecksums(piece);
}

// `piece`: scratch memory.
absl::Status PackedFile::Impl::CheckChecksums(std::span<std::byte> piece) {
  Xxh3_128 digest;
  const int64_t end = checksums_offset + info.num_rows * static_cast<int64_t>(sizeof(uint64_t));
  for (int64_t at = checksums_offset; at < end;) {
    const auto size = std::min(end - at, static_cast<int64_t>(piece.size()));
    const std::span<std::byte> data = piece.first(static_cast<size_t>(size));
    FOREBAY_RETURN_IF_ERROR(PreadAll(fd.get(), data, at, path));
    digest.Update(data);
    at += size;
  }
  if (digest.Hex() == checksums_digest) return absl::OkStatus();
  return Damaged(path, "the checksums of its rows do not match theirs");
}

absl::Status PackedFile::Impl::ReadOfRow(int64_t row, int64_t offset_bytes,
                                         std::span<std::byte> bytes) {
  absl::Status read = PreadAll(fd.get(), bytes, offset_bytes, path);
  if (ExitCodeOf(read) != ExitCode::kCorrupt) return read;
  return Damaged(path,
                 fmt::format("it ends before row {}, so it has changed since it was opened", row));
}

// With the row's flags in row_flags.
absl::Status PackedFile::Impl::CheckRow(int64_t row, std::span<const int32_t> tokens) {
  uint64_t checksum = 0;
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(&checksum, 1));
  FOREBAY_RETURN_IF_ERROR(ReadOfRow(row, checksums_offset + row * std::ssize(bytes), bytes));
  const uint64_t of_tokens =
      Xxh3_64(std::as_bytes(tokens), checksum_seed + static_cast<uint64_t>(row));
  if (Xxh3_64(std::as_bytes(std::span(row_flags)), of_tokens) == checksum) return absl::OkStatus();
  return Damaged(path, fmt::format("row {} does not match its checksum any more, so it has changed "
                                   "since it was opened",
                                   row));
}

absl::Status PackedFile::Impl::AppendRow(int64_t row, size_t row_begin, MicroBatch& batch) {
  const size_t seq = static_cast<size_t>(info.seq);
  const std::span<int32_t> tokens(batch.tokens.data() + row_begin, seq);
  FOREBAY_RETURN_IF_ERROR(
      ReadOfRow(row, tokens_offset + row * info.seq * 4, std::as_writable_bytes(tokens)));
  FOREBAY_RETURN_IF_ERROR(
      ReadOfRow(row, flags_offset + row * info.seq, std::as_writable_bytes(std::span(row_flags))));
  FOREBAY_RETURN_IF_ERROR(CheckRow(row, tokens));
  for (size_t i = 0; i < seq; ++i) {
    const size_t place = row_begin + i;
    // Embeddings are indexed with tokens: none gets through, whatever a checksum says.
    if (tokens[i] < 0 || tokens[i] >= info.vocab_size) {
      return Damaged(path, fmt::format("row {} has changed since the file was opened", row));
    }
    const uint8_t flags = row_flags[i];
    batch.targets[place] = -1;
    batch.positions[place] = 0;
    if ((flags & kTokenPadding) != 0) continue;
    ++batch.num_tokens;
    if (i == 0 || (flags & kTokenSegmentStart) != 0) {
      batch.segments.push_back({static_cast<int64_t>(place), 1});
      continue;
    }
    batch.positions[place] = static_cast<int32_t>(batch.segments.back().length++);
    if ((flags & kTokenTrained) != 0) {
      batch.targets[place - 1] = tokens[i];
      ++batch.num_trained;
    }
  }
  return absl::OkStatus();
}

PackedFile::PackedFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PackedFile::~PackedFile() = default;

const PackedFileInfo& PackedFile::info() const {
  return impl_->info;
}
const std::string& PackedFile::path() const {
  return impl_->path;
}

bool IsPackedFile(const std::string& path) {
  std::array<char, sizeof(kPackedKind.magic)> magic;
  return ReadStart(path, std::as_writable_bytes(std::span(magic))) && magic == kPackedKind.magic;
}

std::optional<int64_t> PackedRowTokens(const std::string& path) {
  Header header;
  if (!ReadStart(path, std::as_writable_bytes(std::span(&header, 1))) ||
      header.kind.magic != kPackedKind.magic) {
    return std::nullopt;
  }
  // An older version has it in the same place, and whoever opens it says what is wrong.
  const bool is_known = header.kind.version >= 1 && header.kind.version <= kPackedKind.version;
  if (!is_known || header.seq < 2 || header.seq > kMaxSeq) return std::nullopt;
  return static_cast<int64_t>(header.seq);
}

absl::StatusOr<std::unique_ptr<PackedFile>> PackedFile::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  FOREBAY_ASSIGN_OR_RETURN(impl->fd, OpenFile(path, O_RDONLY));
  // Keeps forebay-data from removing the file from its cache (python/forebay_data/cache.py). Where
  // there are no locks the open file lives on without its name.
  ::flock(impl->fd.get(), LOCK_SH | LOCK_NB);
  FOREBAY_RETURN_IF_ERROR(impl->ReadHeader());
  FOREBAY_RETURN_IF_ERROR(impl->CheckContents());
  impl->row_flags.resize(static_cast<size_t>(impl->info.seq));
  return std::unique_ptr<PackedFile>(new PackedFile(std::move(impl)));
}

absl::Status PackedFile::ReadRows(std::span<const int64_t> rows, MicroBatch& batch) const {
  const size_t seq = static_cast<size_t>(impl_->info.seq);
  const size_t num_places = rows.size() * seq;
  batch.tokens.resize(num_places);
  batch.targets.resize(num_places);
  batch.positions.resize(num_places);
  batch.segments.clear();
  batch.num_trained = 0;
  batch.num_tokens = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    FOREBAY_CHECK(rows[i] >= 0 && rows[i] < impl_->info.num_rows);
    FOREBAY_RETURN_IF_ERROR(impl_->AppendRow(rows[i], i * seq, batch));
  }
  return absl::OkStatus();
}

}  // namespace forebay
