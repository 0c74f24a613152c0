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
#include "forebay/train/infer/answer_texts.h"
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

absl::Status CheckPrompt(const EncodedPrompt& prompt, const GenerateTextOptions& options,
                         const DecoderConfig& config) {
  const auto prompt_tokens = std::ssize(prompt.tokens);
  if (prompt_tokens <= config.max_positions) return absl::OkStatus();
  const std::string where =
      prompt.line > 0 ? fmt::format("{}:{}: ", options.prompt_file, prompt.line) : "";
  return BadInputError(
      fmt::format("{}the prompt has {} tokens, but the model has {} positions. Shorten the prompt",
                  where, prompt_tokens, config.max_positions));
}

// A source that tells, by the blocks that are acquired, how much of the first passes is made.
class FirstPasses final : public ParamSource {
 public:
  FirstPasses(ParamSource& source, int64_t num_passes, const DecoderConfig& config,
              const std::function<void(double)>& progress)
      : source_(source),
        head_(HeadLayer(config)),
        num_blocks_(num_passes * config.num_layers),
        progress_(progress) {}
  void Expect(std::span<const int> layers) override { source_.Expect(layers); }
  absl::StatusOr<WeightsLease> Acquire(int layer) override {
    const bool is_block = layer != EmbedLayer() && layer != head_;
    if (progress_ && is_block && num_acquired_ < num_blocks_) {
      progress_(static_cast<double>(num_acquired_++) / static_cast<double>(num_blocks_));
    }
    return source_.Acquire(layer);
  }

 protected:
  void Release(int /*layer*/, Event* /*done*/) override {
    FOREBAY_CHECK(false);  // leases are the inner source's
  }

 private:
  ParamSource& source_;
  const int head_;
  const int64_t num_blocks_;  // of all these passes
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
  OnToken on_token;
  OnProgress on_progress;
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
      lengths.push_back(GenerationLength(std::ssize(prompt), options, config));
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
    FirstPasses first_passes(source, num_passes, config, on_prompts);
    return Generate(sequences, first_passes, prompts, options, {on_token, on_progress});
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
    FOREBAY_RETURN_IF_ERROR(CheckPrompt(prompt, options, config));
    if (prompt.line > 0) generated.lines.push_back(prompt.line);
    task.prompts.push_back(std::move(prompt.tokens));
    task.options.eos_token_ids = std::move(prompt.eos_token_ids);
  }

  AnswerTexts::Options of_texts = {
      .num_answers = prompts.size(), .eos = task.options.eos_token_ids, .stops = options.stops};
  if (prompts.size() == 1) of_texts.on_text = listener.on_text;
  // It starts while the model is opened.
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<AnswerTexts> texts,
                           AnswerTexts::Start(model, of_texts));
  // The speed that is reported is the model's, so Generate must not wait for it.
  task.before_generation = [&] { return texts->AwaitReady(); };
  task.on_token = [&](size_t answer, int32_t token) { return texts->Push(answer, token); };
  task.on_progress = listener.on_progress;
  task.on_prompts = listener.on_prompts;
  const MachineLimits limits = LimitsFor(options.infer);
  FOREBAY_ASSIGN_OR_RETURN(generated.result, IsForGpu(options.infer, limits)
                                                 ? GenerateOnGpu(task, limits)
                                                 : GenerateOnCpu(task, limits));
  FOREBAY_ASSIGN_OR_RETURN(generated.texts, texts->Finish());
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
