// Packed token files: what `forebay-data` (Python) writes and the trainer reads. docs/formats.md
// has the bytes. Not for: text (the Python program), order of samples (row_sampler.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/data/micro_batch.h"

namespace forebay {

// Flags of one token.
inline constexpr uint8_t kTokenTrained = 1;       // is a prediction target (of the token before it)
inline constexpr uint8_t kTokenSegmentStart = 2;  // first token of a segment
inline constexpr uint8_t kTokenPadding = 4;

struct PackedFileInfo {
  int64_t num_rows = 0;
  int64_t seq = 0;          // tokens per row
  int64_t vocab_size = 0;   // every token is below it
  int64_t num_tokens = 0;   // without padding
  int64_t num_trained = 0;  // targets
  int64_t num_samples = 0;
  int64_t longest_segment = 0;   // tokens; positions run below it
  std::string digest;            // of the content (tokens and flags): what a resume compares
  std::string tokenizer_digest;  // of the tokenizer.json that made the tokens; "" when none did
  Json provenance;               // sources and settings as forebay-data recorded them
};

// True when the file starts as packed files do (the rest may still be damaged).
bool IsPackedFile(const std::string& path);

// Tokens per row of a packed file, by its header alone (the rest may still be damaged); nullopt
// when it is none.
std::optional<int64_t> PackedRowTokens(const std::string& path);

// Reads rows from the file as they are asked for, and holds a shared flock on it. Owned by one
// thread, as ReadRows uses scratch memory.
class PackedFile {
 public:
  // Checks the header, the size, the digest of the content, and every token and flag.
  // BadInputError.
  static absl::StatusOr<std::unique_ptr<PackedFile>> Open(const std::string& path);
  ~PackedFile();
  const PackedFileInfo& info() const;
  const std::string& path() const;
  // Fills `batch` (reusing its memory: no allocation once it has held as many rows and segments)
  // with these rows, one after another. Requires: every row is in [0, num_rows). BadInputError when
  // the file has changed since Open.
  absl::Status ReadRows(std::span<const int64_t> rows, MicroBatch& batch) const;

 private:
  struct Impl;
  explicit PackedFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay
