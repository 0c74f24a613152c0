#include "forebay/train/infer/generate_text.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/data/data_program.h"
#include "forebay/model/cuda_decoder/cuda_sequences.h"
#include "forebay/model/sequences.h"
#include "forebay/train/infer/gpu_session.h"
#include "forebay/train/infer/model_session.h"

namespace forebay {
namespace {

// Prompt tokens that go through the layers together: enough to keep the matrix products busy.
constexpr int64_t kMaxPromptChunk = 512;
// The same on a GPU, where a pass copies all weights.
constexpr int64_t kMaxPromptChunkOnGpu = 2048;

// The room that the prompt leaves of the model's positions. The last token is never fed back, so it
// needs none.
absl::StatusOr<int64_t> RoomFor(int64_t prompt_tokens, int64_t wanted,
                                const DecoderConfig& config) {
  if (prompt_tokens > config.max_positions) {
    return BadInputError(
        fmt::format("the prompt has {} tokens, but the model has {} positions. Shorten the prompt",
                    prompt_tokens, config.max_positions));
  }
  return std::min(wanted, config.max_positions - prompt_tokens + 1);
}

// Prompts, how to continue them, and who is told.
struct Task {
  const InferOptions& infer;
  const DecoderConfig& config;
  std::vector<std::vector<int32_t>> prompts;
  GenerateOptions options;
  std::function<absl::Status()> before_generation;
  std::function<absl::Status(size_t, int32_t)> on_token;

  int64_t prompt_tokens() const {
    int64_t all = 0;
    for (const std::vector<int32_t>& prompt : prompts) all += std::ssize(prompt);
    return all;
  }
  // Tokens of each sequence, at most.
  std::vector<int64_t> max_lengths() const {
    std::vector<int64_t> lengths;
    for (const std::vector<int32_t>& prompt : prompts) {
      lengths.push_back(GenerationLength(std::ssize(prompt), options));
    }
    return lengths;
  }
  // Tokens of a pass: one of each sequence at least.
  int64_t PassTokens(int64_t most) const {
    return std::max(std::min(prompt_tokens(), most), std::ssize(prompts));
  }
  absl::StatusOr<GenerateResult> Run(Sequences& sequences, ParamSource& source) const {
    if (before_generation) FOREBAY_RETURN_IF_ERROR(before_generation());
    return Generate(sequences, source, prompts, options, on_token);
  }
};

absl::StatusOr<GenerateResult> GenerateOnCpu(const Task& task, const MachineLimits& limits) {
  const std::vector<int64_t> max_lengths = task.max_lengths();
  ModelSessionOptions options;
  options.infer = task.infer;
  options.max_tokens = task.PassTokens(kMaxPromptChunk);
  for (const int64_t length : max_lengths) {
    options.other_bytes += KvCache::BytesFor(task.config, length);
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<ModelSession> session,
                           ModelSession::Open(options, limits, task.config));
  FOREBAY_ASSIGN_OR_RETURN(
      const std::unique_ptr<Sequences> sequences,
      CreateCpuSequences(&session->decoder(), max_lengths, &session->budget()));
  return task.Run(*sequences, session->source());
}

absl::StatusOr<GenerateResult> GenerateOnGpu(const Task& task, const MachineLimits& limits) {
  const CudaSequencesOptions options = {.dtype = cpu::WeightDType(task.infer.precision),
                                        .max_tokens = task.PassTokens(kMaxPromptChunkOnGpu),
                                        .max_lengths = task.max_lengths()};
  const CudaSequencesMemory memory = CudaSequencesMemoryFor(task.config, options);
  const GpuNeeds needs = {
      .terms = {{"keys and values", memory.cache_bytes,
                 "--max_tokens, or fewer or shorter prompts"},
                {"decoder workspace", memory.workspace_bytes, "fewer or shorter prompts"},
                {"new tokens and logits", memory.token_bytes, "fewer prompts"}},
      .host_bytes = CudaSequencesHostBytes(task.config, options)};
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<GpuSession> session,
                           GpuSession::Open(task.infer, limits, task.config, needs));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Sequences> sequences,
                           CreateCudaSequences(task.config, options, session->device(),
                                               session->device_budget(), session->host_budget()));
  FOREBAY_ASSIGN_OR_RETURN(GpuSession::Weights weights, session->OpenWeights());
  FOREBAY_ASSIGN_OR_RETURN(GenerateResult result, task.Run(*sequences, weights.source()));
  result.copied_bytes = weights.copied_bytes();
  return result;
}

// The text of an answer, as a child process that knows the tokenizer puts it together.
class AnswerText {
 public:
  // `eos`, `on_text` and `text` outlive it.
  static absl::StatusOr<std::unique_ptr<AnswerText>> Start(
      const std::string& model, std::span<const int64_t> eos,
      const std::function<void(std::string_view)>& on_text, std::string* text) {
    std::unique_ptr<AnswerText> answer(new AnswerText(eos, on_text, text));
    FOREBAY_ASSIGN_OR_RETURN(answer->decoder_, TokenDecoder::Start(model));
    return answer;
  }
  absl::Status AwaitReady() { return decoder_->AwaitReady(); }
  absl::Status Push(int32_t token) {
    // The token that ends the text is not part of it, whether the tokenizer calls it special or
    // not.
    if (std::ranges::count(eos_, token) > 0) return absl::OkStatus();
    FOREBAY_ASSIGN_OR_RETURN(const std::string piece, decoder_->Push(token));
    Add(piece);
    return absl::OkStatus();
  }
  absl::Status Finish() {
    FOREBAY_ASSIGN_OR_RETURN(const std::string rest, decoder_->Finish());
    Add(rest);
    return absl::OkStatus();
  }

 private:
  AnswerText(std::span<const int64_t> eos, const std::function<void(std::string_view)>& on_text,
             std::string* text)
      : eos_(eos), on_text_(on_text), text_(*text) {}
  void Add(const std::string& piece) {
    text_ += piece;
    if (on_text_ && !piece.empty()) on_text_(piece);
  }

  std::unique_ptr<TokenDecoder> decoder_;
  const std::span<const int64_t> eos_;
  const std::function<void(std::string_view)>& on_text_;
  std::string& text_;
};

absl::StatusOr<std::string> TextOf(const GeneratedTokens& answer, const std::string& model,
                                   std::span<const int64_t> eos) {
  std::string text;
  const std::function<void(std::string_view)> nobody_reads_along;
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<AnswerText> answer_text,
                           AnswerText::Start(model, eos, nobody_reads_along, &text));
  FOREBAY_RETURN_IF_ERROR(answer_text->AwaitReady());
  for (const int32_t token : answer.tokens) FOREBAY_RETURN_IF_ERROR(answer_text->Push(token));
  FOREBAY_RETURN_IF_ERROR(answer_text->Finish());
  return text;
}

Json AnswerJson(const std::string& text, const GeneratedTokens& answer) {
  Json json;
  json["text"] = text;
  json["tokens"] = answer.tokens;
  json["prompt_tokens"] = answer.prompt_tokens;
  json["ended"] = answer.ended;
  return json;
}

}  // namespace

absl::StatusOr<GeneratedText> GenerateText(const GenerateTextOptions& options,
                                           const std::function<void(std::string_view)>& on_text) {
  const std::string& model = options.infer.model;
  FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig config, ReadDecoderConfig(model));
  Task task = {.infer = options.infer, .config = config};
  task.options.max_tokens = options.max_tokens;
  task.options.sampling = options.sampling;
  for (const std::string& text : options.prompts) {
    FOREBAY_ASSIGN_OR_RETURN(EncodedPrompt prompt, EncodePrompt(model, text, options.chat));
    FOREBAY_ASSIGN_OR_RETURN(task.options.max_tokens,
                             RoomFor(std::ssize(prompt.tokens), task.options.max_tokens, config));
    task.prompts.push_back(std::move(prompt.tokens));
    task.options.eos_token_ids = std::move(prompt.eos_token_ids);
  }

  GeneratedText generated;
  generated.texts.resize(options.prompts.size());
  const bool reads_along = options.prompts.size() == 1;
  std::unique_ptr<AnswerText> answer_text;
  if (reads_along) {
    // It starts while the model is opened.
    FOREBAY_ASSIGN_OR_RETURN(answer_text, AnswerText::Start(model, task.options.eos_token_ids,
                                                            on_text, &generated.texts.front()));
    // The speed that is reported is the model's, so Generate must not wait for it.
    task.before_generation = [&] { return answer_text->AwaitReady(); };
    task.on_token = [&](size_t, int32_t token) { return answer_text->Push(token); };
  }
  const MachineLimits limits = LimitsFor(options.infer);
  FOREBAY_ASSIGN_OR_RETURN(generated.result, IsForGpu(options.infer, limits)
                                                 ? GenerateOnGpu(task, limits)
                                                 : GenerateOnCpu(task, limits));
  if (reads_along) {
    FOREBAY_RETURN_IF_ERROR(answer_text->Finish());
    return generated;
  }
  for (size_t i = 0; i < generated.texts.size(); ++i) {
    FOREBAY_ASSIGN_OR_RETURN(
        generated.texts[i], TextOf(generated.result.answers[i], model, task.options.eos_token_ids));
  }
  return generated;
}

Json ToJson(const GeneratedText& generated) {
  const GenerateResult& result = generated.result;
  Json json;
  if (result.answers.size() == 1) {
    json = AnswerJson(generated.texts.front(), result.answers.front());
  } else {
    json["s_per_answer"] = result.SecondsPerAnswer();
    for (size_t i = 0; i < result.answers.size(); ++i) {
      json["answers"].push_back(AnswerJson(generated.texts[i], result.answers[i]));
    }
  }
  json["prompt_tokens_per_s"] = result.PromptTokensPerSecond();
  json["tokens_per_s"] = result.TokensPerSecond();
  if (result.copied_bytes > 0) {
    json["copied_bytes_per_token"] = result.copied_bytes / result.num_tokens();
  }
  return json;
}

}  // namespace forebay
