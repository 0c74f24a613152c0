// The texts of answers while their tokens come, and where a text that is to stop one begins.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/data/data_program.h"

namespace forebay {

// A text that ends before the first of some others that comes in it. Owned by one thread.
class StoppedText {
 public:
  // `stops`: none of them empty; it outlives this.
  explicit StoppedText(std::span<const std::string> stops) : stops_(stops) {}
  // Appends `piece`, and returns what is known to be text by now: not what a stop may begin with.
  std::string Add(std::string_view piece);
  // The rest, when nothing more comes.
  std::string Finish();
  bool is_stopped() const { return is_stopped_; }

 private:
  std::span<const std::string> stops_;
  std::string held_;  // begins with the beginning of a stop, or is empty
  bool is_stopped_ = false;
};

// The texts of several answers, as a child process that knows the tokenizer puts them together.
// Owned by one thread.
class AnswerTexts {
 public:
  struct Options {
    size_t num_answers = 1;
    std::span<const int64_t> eos;        // is no part of a text; outlives this
    std::span<const std::string> stops;  // outlives this
    // Told of each piece. May be empty.
    std::function<void(std::string_view)> on_text;
  };
  static absl::StatusOr<std::unique_ptr<AnswerTexts>> Start(const std::string& model,
                                                            const Options& options);
  absl::Status AwaitReady() { return decoder_->AwaitReady(); }
  // Whether the text of that answer ends with it, by a stop.
  absl::StatusOr<bool> Push(size_t answer, int32_t token);
  // All of them, by answer.
  absl::StatusOr<std::vector<std::string>> Finish();

 private:
  explicit AnswerTexts(const Options& options);
  void Append(size_t answer, const std::string& piece);

  const Options options_;
  std::unique_ptr<TokenDecoder> decoder_;
  std::vector<StoppedText> stopped_;  // by answer
  std::vector<std::string> texts_;
};

}  // namespace forebay
