#include "forebay/train/infer/answer_texts.h"

#include <algorithm>
#include <utility>

#include "forebay/base/errors.h"

namespace forebay {

std::string StoppedText::Add(std::string_view piece) {
  if (is_stopped_) return "";
  held_ += piece;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  is_stopped_ = end != std::string::npos;
  if (!is_stopped_) {
    end = held_.size();
    for (const std::string& stop : stops_) {
      // The longest end of the text that this one may begin with.
      for (size_t size = std::min(held_.size(), stop.size() - 1); size > 0; --size) {
        if (!held_.ends_with(std::string_view(stop).substr(0, size))) continue;
        end = std::min(end, held_.size() - size);
        break;
      }
    }
  }
  std::string text = held_.substr(0, end);
  held_ = is_stopped_ ? "" : held_.substr(end);
  return text;
}

std::string StoppedText::Finish() {
  return std::exchange(held_, "");
}

AnswerTexts::AnswerTexts(const Options& options)
    : options_(options),
      stopped_(options.num_answers, StoppedText(options.stops)),
      texts_(options.num_answers) {}

absl::StatusOr<std::unique_ptr<AnswerTexts>> AnswerTexts::Start(const std::string& model,
                                                                const Options& options) {
  std::unique_ptr<AnswerTexts> texts(new AnswerTexts(options));
  FOREBAY_ASSIGN_OR_RETURN(texts->decoder_, TokenDecoder::Start(model));
  return texts;
}

void AnswerTexts::Append(size_t answer, const std::string& piece) {
  texts_[answer] += piece;
  if (options_.on_text && !piece.empty()) options_.on_text(piece);
}

absl::StatusOr<bool> AnswerTexts::Push(size_t answer, int32_t token) {
  // The token that ends the text is not part of it, whether the tokenizer calls it special or not.
  if (std::ranges::count(options_.eos, token) > 0) return false;
  FOREBAY_ASSIGN_OR_RETURN(const std::string piece, decoder_->Push(token, answer));
  Append(answer, stopped_[answer].Add(piece));
  return stopped_[answer].is_stopped();
}

absl::StatusOr<std::vector<std::string>> AnswerTexts::Finish() {
  for (size_t answer = 0; answer < texts_.size(); ++answer) {
    FOREBAY_ASSIGN_OR_RETURN(const std::string rest, decoder_->Finish(answer));
    Append(answer, stopped_[answer].Add(rest));
    Append(answer, stopped_[answer].Finish());
  }
  return std::move(texts_);
}

}  // namespace forebay
