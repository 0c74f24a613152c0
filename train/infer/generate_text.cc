#include "forebay/train/infer/generate_text.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/round_up.h"
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

absl::StatusOr<std::vector<EncodedPrompt>> EncodedPrompts(const GenerateTextOptions& options) {
  const std::string& model = options.infer.model;
  if (!options.prompt_file.empty()) return EncodePromptFile(model, options.prompt_file);
  std::vector<EncodedPrompt> prompts;
  for (const std::string& text : options.prompts) {
    FOREBAY_ASSIGN_OR_RETURN(EncodedPrompt prompt, EncodePrompt(model, text, options.chat));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// The room that a prompt leaves of the model's positions. The last token is never fed back, so it
// needs none.
absl::StatusOr<int64_t> RoomFor(const EncodedPrompt& prompt, const GenerateTextOptions& options,
                                const DecoderConfig& config) {
  const auto prompt_tokens = std::ssize(prompt.tokens);
  if (prompt_tokens > config.max_positions) {
    const std::string where =
        prompt.line > 0 ? fmt::format("{}:{}: ", options.prompt_file, prompt.line) : "";
    return BadInputError(fmt::format(
        "{}the prompt has {} tokens, but the model has {} positions. Shorten the prompt", where,
        prompt_tokens, config.max_positions));
  }
  return config.max_positions - prompt_tokens + 1;
}

// A source that tells, by the layers that are acquired, how much of the first passes is made.
class FirstPasses final : public ParamSource {
 public:
  FirstPasses(ParamSource& source, int64_t num_layers, const std::function<void(double)>& progress)
      : source_(source), num_layers_(num_layers), progress_(progress) {}
  void Expect(std::span<const int> layers) override { source_.Expect(layers); }
  absl::StatusOr<WeightsLease> Acquire(int layer) override {
    if (progress_ && num_acquired_ < num_layers_) {
      progress_(static_cast<double>(num_acquired_) / static_cast<double>(num_layers_));
    }
    ++num_acquired_;
    return source_.Acquire(layer);
  }

 protected:
  void Release(int /*layer*/, Event* /*done*/) override {
    FOREBAY_CHECK(false);  // leases are the inner source's
  }

 private:
  ParamSource& source_;
  const int64_t num_layers_;  // of all these passes
  const std::function<void(double)>& progress_;
  int64_t num_acquired_ = 0;
};

// Prompts, how to continue them, and who is told.
struct Task {
  const InferOptions& infer;
  const DecoderConfig& config;
  std::vector<std::vector<int32_t>> prompts;
  GenerateOptions options;
  std::function<absl::Status()> before_generation;
  std::function<absl::Status(size_t, int32_t)> on_token;
  std::function<void(double)> on_prompts;

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
  // `pass_tokens`: of one pass.
  absl::StatusOr<GenerateResult> Run(Sequences& sequences, ParamSource& source,
                                     int64_t pass_tokens) const {
    if (before_generation) FOREBAY_RETURN_IF_ERROR(before_generation());
    const int64_t num_passes = RoundUp(prompt_tokens(), pass_tokens) / pass_tokens;
    FirstPasses first_passes(source, num_passes * config.num_layers, on_prompts);
    return Generate(sequences, first_passes, prompts, options, on_token);
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
  FOREBAY_ASSIGN_OR_RETURN(GenerateResult result,
                           task.Run(*sequences, session->source(), options.max_tokens));
  result.read_bytes = session->source().read_bytes();
  return result;
}

GpuNeeds NeedsOfSequences(const DecoderConfig& config, const CudaSequencesOptions& options) {
  const CudaSequencesMemory memory = CudaSequencesMemoryFor(config, options);
  return {.terms = {{"keys and values", memory.cache_bytes,
                     "--max_tokens, or fewer or shorter prompts"},
                    {"decoder workspace", memory.workspace_bytes, "fewer or shorter prompts"},
                    {"new tokens and logits", memory.token_bytes, "fewer prompts"}},
          .host_bytes = CudaSequencesHostBytes(config, options)};
}

// Keys and values lie on the GPU as far as they fit there beside a window of weights.
absl::StatusOr<GenerateResult> GenerateOnGpu(const Task& task, const MachineLimits& limits) {
  CudaSequencesOptions options = {.dtype = cpu::WeightDType(task.infer.precision),
                                  .max_tokens = task.PassTokens(kMaxPromptChunkOnGpu),
                                  .max_lengths = task.max_lengths()};
  GpuNeeds needs = NeedsOfSequences(task.config, options);
  while (options.num_cached_in_ram < task.config.num_layers &&
         !PlanOnGpu(task.infer, limits, task.config, needs).ok()) {
    ++options.num_cached_in_ram;
    needs = NeedsOfSequences(task.config, options);
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<GpuSession> session,
                           GpuSession::Open(task.infer, limits, task.config, needs));
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<Sequences> sequences,
                           CreateCudaSequences(task.config, options, session->device(),
                                               session->device_budget(), session->host_budget()));
  FOREBAY_ASSIGN_OR_RETURN(GpuSession::Weights weights, session->OpenWeights());
  FOREBAY_ASSIGN_OR_RETURN(GenerateResult result,
                           task.Run(*sequences, weights.source(), options.max_tokens));
  result.copied_bytes = weights.copied_bytes();
  result.read_bytes = weights.read_bytes();
  return result;
}

// The texts of answers, one after another, as a child process that knows the tokenizer puts them
// together.
class AnswerTexts {
 public:
  // `eos` and `on_text` outlive it.
  static absl::StatusOr<std::unique_ptr<AnswerTexts>> Start(
      const std::string& model, std::span<const int64_t> eos,
      const std::function<void(std::string_view)>& on_text) {
    std::unique_ptr<AnswerTexts> answer(new AnswerTexts(eos, on_text));
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
  // The text of the tokens since the last one.
  absl::StatusOr<std::string> Finish() {
    FOREBAY_ASSIGN_OR_RETURN(const std::string rest, decoder_->Finish());
    Add(rest);
    return std::exchange(text_, "");
  }

 private:
  AnswerTexts(std::span<const int64_t> eos, const std::function<void(std::string_view)>& on_text)
      : eos_(eos), on_text_(on_text) {}
  void Add(const std::string& piece) {
    text_ += piece;
    if (on_text_ && !piece.empty()) on_text_(piece);
  }

  std::unique_ptr<TokenDecoder> decoder_;
  const std::span<const int64_t> eos_;
  const std::function<void(std::string_view)>& on_text_;
  std::string text_;
};

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
                                           const GenerateListener& listener) {
  const std::string& model = options.infer.model;
  FOREBAY_ASSIGN_OR_RETURN(const DecoderConfig config, ReadDecoderConfig(model));
  FOREBAY_ASSIGN_OR_RETURN(std::vector<EncodedPrompt> prompts, EncodedPrompts(options));
  Task task = {.infer = options.infer, .config = config};
  task.options.max_tokens = options.max_tokens;
  task.options.sampling = options.sampling;
  GeneratedText generated;
  for (EncodedPrompt& prompt : prompts) {
    FOREBAY_ASSIGN_OR_RETURN(const int64_t room, RoomFor(prompt, options, config));
    task.options.max_tokens = std::min(task.options.max_tokens, room);
    if (prompt.line > 0) generated.lines.push_back(prompt.line);
    task.prompts.push_back(std::move(prompt.tokens));
    task.options.eos_token_ids = std::move(prompt.eos_token_ids);
  }

  const bool reads_along = prompts.size() == 1;
  const std::function<void(std::string_view)> nobody_reads_along;
  // It starts while the model is opened.
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<AnswerTexts> texts,
                           AnswerTexts::Start(model, task.options.eos_token_ids,
                                              reads_along ? listener.on_text : nobody_reads_along));
  // The speed that is reported is the model's, so Generate must not wait for it.
  task.before_generation = [&] { return texts->AwaitReady(); };
  int64_t num_tokens = 0;
  task.on_token = [&](size_t, int32_t token) -> absl::Status {
    if (listener.on_progress) {
      listener.on_progress(++num_tokens, std::ssize(prompts) * task.options.max_tokens);
    }
    return reads_along ? texts->Push(token) : absl::OkStatus();
  };
  task.on_prompts = listener.on_prompts;
  const MachineLimits limits = LimitsFor(options.infer);
  FOREBAY_ASSIGN_OR_RETURN(generated.result, IsForGpu(options.infer, limits)
                                                 ? GenerateOnGpu(task, limits)
                                                 : GenerateOnCpu(task, limits));
  for (const GeneratedTokens& answer : generated.result.answers) {
    for (size_t i = 0; i < answer.tokens.size() && !reads_along; ++i) {
      FOREBAY_RETURN_IF_ERROR(texts->Push(answer.tokens[i]));
    }
    FOREBAY_ASSIGN_OR_RETURN(generated.texts.emplace_back(), texts->Finish());
  }
  return generated;
}

Json ToJson(const GeneratedText& generated) {
  const GenerateResult& result = generated.result;
  Json json;
  if (result.answers.size() == 1 && generated.lines.empty()) {
    json = AnswerJson(generated.texts.front(), result.answers.front());
  } else {
    for (size_t i = 0; i < result.answers.size(); ++i) {
      Json answer = AnswerJson(generated.texts[i], result.answers[i]);
      if (!generated.lines.empty()) answer["line"] = generated.lines[i];
      json["answers"].push_back(std::move(answer));
    }
  }
  json["prompt_tokens_per_s"] = result.PromptTokensPerSecond();
  json["tokens_per_s"] = result.TokensPerSecond();
  json["s_per_answer"] = result.SecondsPerAnswer();
  json["read_bytes_per_token"] = result.read_bytes / result.num_tokens();
  if (result.copied_bytes) {
    json["copied_bytes_per_token"] = *result.copied_bytes / result.num_tokens();
  }
  return json;
}

}  // namespace forebay
