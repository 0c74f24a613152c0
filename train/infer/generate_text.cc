#include "forebay/train/infer/generate_text.h"

#include <algorithm>
#include <memory>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/data/data_program.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/train/infer/gpu_session.h"
#include "forebay/train/infer/model_session.h"

namespace forebay {
namespace {

// Prompt tokens that go through the layers together: enough to keep the matrix products busy.
constexpr int64_t kMaxPromptChunk = 512;

// What the prompt leaves of the model's positions. The last token is never fed back, so it needs
// none.
absl::StatusOr<int64_t> RoomFor(int64_t prompt_tokens, int64_t wanted,
                                const DecoderConfig& config) {
  if (prompt_tokens > config.max_positions) {
    return BadInputError(
        fmt::format("the prompt has {} tokens, but the model has {} positions. Shorten the prompt",
                    prompt_tokens, config.max_positions));
  }
  return std::min(wanted, config.max_positions - prompt_tokens + 1);
}

}  // namespace

absl::StatusOr<GeneratedText> GenerateText(const GenerateTextOptions& options,
                                           const std::function<void(std::string_view)>& on_text) {
  FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig config, ReadDecoderConfig(options.infer.model));
  FOREBAY_ASSIGN_OR_RETURN(const EncodedPrompt prompt,
                           EncodePrompt(options.infer.model, options.prompt, options.chat));
  const auto prompt_tokens = static_cast<int64_t>(prompt.tokens.size());
  GenerateOptions generate;
  FOREBAY_ASSIGN_OR_RETURN(generate.max_tokens, RoomFor(prompt_tokens, options.max_tokens, config));
  generate.sampling = options.sampling;
  generate.eos_token_ids = prompt.eos_token_ids;

  // It starts while the model is opened.
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<TokenDecoder> decoder,
                           TokenDecoder::Start(options.infer.model));
  ModelSessionOptions session_options;
  session_options.infer = options.infer;
  session_options.max_tokens = std::clamp<int64_t>(prompt_tokens, 1, kMaxPromptChunk);
  session_options.other_bytes =
      KvCache::BytesFor(config, GenerationLength(prompt_tokens, generate));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<ModelSession> session,
                           ModelSession::Open(session_options, LimitsFor(options.infer), config));
  // The speed that is reported is the model's, so Generate must not wait for it.
  FOREBAY_RETURN_IF_ERROR(decoder->AwaitReady());

  GeneratedText generated;
  const auto add = [&](const std::string& piece) {
    generated.text += piece;
    if (on_text && !piece.empty()) on_text(piece);
  };
  const auto on_token = [&](int32_t token) -> absl::Status {
    // What ends the text is not part of it, whether the tokenizer calls it special or not.
    if (std::ranges::count(generate.eos_token_ids, token) > 0) return absl::OkStatus();
    FOREBAY_ASSIGN_OR_RETURN(const std::string piece, decoder->Push(token));
    add(piece);
    return absl::OkStatus();
  };
  FOREBAY_ASSIGN_OR_RETURN(generated.result,
                           Generate(session->decoder(), session->source(), prompt.tokens, generate,
                                    &session->budget(), on_token));
  FOREBAY_ASSIGN_OR_RETURN(const std::string rest, decoder->Finish());
  add(rest);
  return generated;
}

Json ToJson(const GeneratedText& generated) {
  Json json;
  json["text"] = generated.text;
  json["tokens"] = generated.result.tokens;
  json["prompt_tokens"] = generated.result.prompt_tokens;
  json["ended"] = generated.result.ended;
  json["prompt_tokens_per_s"] = generated.result.PromptTokensPerSecond();
  json["tokens_per_s"] = generated.result.TokensPerSecond();
  return json;
}

}  // namespace forebay
