#include "forebay/data/data_program.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_split.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/base/json_fields.h"
#include "forebay/base/process/child_process.h"
#include "forebay/data/packed_file.h"

namespace forebay {
namespace {

constexpr char kProgramName[] = "forebay-data";
// One JSON document on standard output; errors too, which whoever calls us reports.
constexpr std::array<const char*, 2> kReplies = {"--format=json", "--errors=document"};
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// The error that the program printed as its document, or what can be said without one.
absl::Status ErrorFrom(int exit_code, const std::string& output) {
  const absl::StatusOr<Json> document = ParseJson(output, kProgramName);
  if (document.ok() && document->is_object() && document->contains("error")) {
    const Json& error = (*document)["error"];
    if (error.is_object() && error.contains("message") && error["message"].is_string()) {
      return ErrorOf(static_cast<ExitCode>(exit_code), error["message"].get<std::string>());
    }
  }
  if (EndedByStopSignal(exit_code) || exit_code == static_cast<int>(ExitCode::kInterrupted)) {
    return InterruptedError("forebay-data was interrupted");
  }
  if (exit_code == 137) {
    return OutOfMemoryError(
        "forebay-data was killed, most likely because memory ran out: split the data into several "
        "files");
  }
  return ErrorOf(static_cast<ExitCode>(exit_code),
                 fmt::format("forebay-data ended with exit code {}; what it printed above says why",
                             exit_code));
}

absl::StatusOr<std::unique_ptr<ChildProcess>> StartDataProgram(std::vector<std::string> args,
                                                               ChildStreams streams) {
  FOREBAY_ASSIGN_OR_RETURN(std::string program, FindDataProgram());
  args.insert(args.begin(), std::move(program));
  return ChildProcess::Start(args, streams);
}

absl::StatusOr<Json> ParseReply(const std::string& text) {
  absl::StatusOr<Json> reply = ParseJson(text, "the answer of forebay-data");
  if (!reply.ok()) return absl::InternalError(MessageOf(reply.status()));
  return reply;
}

absl::Status UnexpectedReply(std::string_view what) {
  return absl::InternalError(
      fmt::format("forebay-data's answer has no {}: the two programs are of different versions; "
                  "build both again",
                  what));
}

// An answer of `encode`.
absl::StatusOr<EncodedPrompt> PromptOf(const Json& reply) {
  EncodedPrompt encoded;
  try {
    for (const Json& token : reply.at("tokens")) {
      const std::optional<int64_t> id = IntegerOf(token);
      if (!id.has_value() || *id < 0 || *id > std::numeric_limits<int32_t>::max()) {
        return UnexpectedReply("tokens");
      }
      encoded.tokens.push_back(static_cast<int32_t>(*id));
    }
    for (const Json& token : reply.at("eos")) {
      const std::optional<int64_t> id = IntegerOf(token);
      if (!id.has_value()) return UnexpectedReply("tokens");
      encoded.eos_token_ids.push_back(*id);
    }
    if (reply.contains("line")) encoded.line = IntegerOf(reply["line"]).value_or(0);
  } catch (const Json::exception&) {
    return UnexpectedReply("tokens");
  }
  return encoded;
}

// The limit that the first of `keys` in config.json states.
std::optional<int64_t> LimitIn(const Json& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (!config.contains(key)) continue;
    if (const auto limit = WholeNumberOf(config[key]); limit.has_value()) return limit;
  }
  return std::nullopt;
}

// Tokens of another tokenizer are numbers without a meaning. Where no tokenizer made them, or the
// model has none, nobody can tell.
absl::Status CheckTokenizer(const PackRequest& request, const PackedFileInfo& info) {
  const std::string path = JoinPath(request.model, "tokenizer.json");
  if (info.tokenizer_digest.empty() || !FileExists(path)) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const std::string contents, ReadWholeFile(path, kMaxTokenizerBytes));
  if (Xxh3_128Hex(contents) == info.tokenizer_digest) return absl::OkStatus();
  return BadInputError(
      fmt::format("'{}' was packed with another tokenizer than '{}': pack the text again with this "
                  "model, or give --model the model that it was packed for",
                  request.data, path));
}

// A packed file needs no Python: only a look at whether it fits.
absl::StatusOr<PackResult> AcceptPackedFile(const PackRequest& request) {
  FOREBAY_ASSIGN_OR_RETURN(const auto file, PackedFile::Open(request.data));
  const PackedFileInfo& info = file->info();
  if (info.seq != request.seq) {
    return BadInputError(fmt::format(
        "'{}' is packed in rows of {} tokens, but --seq={}: pack the text again, or use "
        "--seq={}",
        request.data, info.seq, request.seq, info.seq));
  }
  FOREBAY_RETURN_IF_ERROR(CheckTokenizer(request, info));
  const std::string config_path = JoinPath(request.model, "config.json");
  FOREBAY_ASSIGN_OR_RETURN(const Json config, ReadJsonFile(config_path, kMaxConfigFileBytes));
  if (!config.is_object())
    return BadInputError(fmt::format("'{}' holds no JSON object", config_path));
  const int64_t vocab_size = LimitIn(config, {"vocab_size"}).value_or(0);
  if (info.vocab_size > vocab_size) {
    return BadInputError(
        fmt::format("'{}' was packed for a vocabulary of {}, the model has {}: pack the text again "
                    "with this model",
                    request.data, info.vocab_size, vocab_size));
  }
  const int64_t positions =
      LimitIn(config, {"max_position_embeddings", "n_positions"}).value_or(kNoLimit);
  if (info.longest_segment > positions) {
    return BadInputError(
        fmt::format("'{}' has a sample of {} tokens in a row, the model has {} positions: pack the "
                    "text again with --seq={}",
                    request.data, info.longest_segment, positions, positions));
  }
  Json report = {{"path", request.data},
                 {"rows", info.num_rows},
                 {"seq", info.seq},
                 {"tokens", info.num_tokens},
                 {"trained", info.num_trained},
                 {"samples", info.num_samples},
                 {"digest", info.digest},
                 {"tokenizer_digest", info.tokenizer_digest},
                 {"cached", true}};
  return PackResult{request.data, true, {}, std::move(report)};
}

}  // namespace

absl::StatusOr<std::string> FindDataProgram() {
  const std::string beside = JoinPath(ProgramDirectory(), kProgramName);
  if (IsExecutable(beside)) return beside;
  if (const char* named = std::getenv("FOREBAY_DATA"); named != nullptr && named[0] != '\0') {
    if (IsExecutable(named)) return std::string(named);
    return EnvironmentError(
        fmt::format("FOREBAY_DATA names '{}', which is no executable program: unset it or correct "
                    "it",
                    named));
  }
  if (std::string found = FindInPath(kProgramName); !found.empty()) return found;
  return EnvironmentError(
      fmt::format("the program '{}', which turns text into tokens, is neither at '{}' nor in PATH: "
                  "run scripts/build, or set FOREBAY_DATA to its path",
                  kProgramName, beside));
}

absl::StatusOr<Json> RunDataProgram(const std::vector<std::string>& args, const std::string& input,
                                    const std::function<bool()>& stop) {
  std::vector<std::string> all_args = args;
  all_args.insert(all_args.end(), kReplies.begin(), kReplies.end());
  FOREBAY_ASSIGN_OR_RETURN(const auto child,
                           StartDataProgram(std::move(all_args), ChildStreams::kOurs));
  child->Send(input);  // a child that stops reading has an error to tell
  child->EndInput();
  const std::string output = child->ReadAll(stop);
  if (stop && stop()) {
    child->Terminate();
    return InterruptedError("stopped on request");
  }
  if (const int exit_code = child->Wait(); exit_code != 0) return ErrorFrom(exit_code, output);
  return ParseReply(output);
}

absl::StatusOr<int> RunDataProgramOnTerminal(const std::vector<std::string>& args) {
  // A terminal sends Ctrl-C to both; what it means is the child's to decide and its code to say.
  // Ignored before there is a child, which starts with the default whatever this process does.
  const auto before = std::signal(SIGINT, SIG_IGN);
  auto child = StartDataProgram(args, ChildStreams::kShared);
  absl::StatusOr<int> exit_code =
      child.ok() ? absl::StatusOr<int>((*child)->Wait()) : absl::StatusOr<int>(child.status());
  std::signal(SIGINT, before);
  return exit_code;
}

std::string WithAbsolutePaths(const std::string& data,
                              const std::function<std::string(const std::string&)>& make_absolute) {
  std::vector<std::string> paths = {data};
  if (!FileExists(data)) paths = absl::StrSplit(data, ',');
  std::ranges::transform(paths, paths.begin(), make_absolute);
  return fmt::format("{}", fmt::join(paths, ","));
}

absl::StatusOr<PackResult> PackedPathFor(const PackRequest& request,
                                         const std::function<bool()>& stop) {
  if (IsPackedFile(request.data)) return AcceptPackedFile(request);
  std::vector<std::string> args = {"pack", "--data=" + request.data, "--model=" + request.model,
                                   fmt::format("--seq={}", request.seq),
                                   "--cache=" + request.cache};
  if (request.truncate) args.push_back("--truncate");
  FOREBAY_ASSIGN_OR_RETURN(Json report, RunDataProgram(args, "", stop));
  if (!report.is_object() || !report.contains("path") || !report["path"].is_string())
    return UnexpectedReply("path");
  PackResult result;
  result.path = report["path"].get<std::string>();
  result.cached = report.value("cached", false);
  for (const Json& note : report.value("notes", Json::array())) {
    if (!note.is_string()) return UnexpectedReply("notes");
    result.notes.push_back(note.get<std::string>());
  }
  result.report = std::move(report);
  return result;
}

absl::StatusOr<EncodedPrompt> EncodePrompt(const std::string& model, const std::string& prompt,
                                           bool chat) {
  std::vector<std::string> args = {"encode", "--model=" + model};
  if (chat) args.push_back("--chat");
  const std::string line =
      Json({{"prompt", prompt}}).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  FOREBAY_ASSIGN_OR_RETURN(const Json reply, RunDataProgram(args, line));
  return PromptOf(reply);
}

absl::StatusOr<std::vector<EncodedPrompt>> EncodePromptFile(const std::string& model,
                                                            const std::string& path) {
  FOREBAY_ASSIGN_OR_RETURN(const Json reply,
                           RunDataProgram({"encode", "--model=" + model, "--prompts=" + path}));
  if (!reply.is_array() || reply.empty()) return UnexpectedReply("prompts");
  std::vector<EncodedPrompt> prompts;
  for (const Json& each : reply) {
    FOREBAY_ASSIGN_OR_RETURN(EncodedPrompt prompt, PromptOf(each));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

struct TokenDecoder::Impl {
  std::unique_ptr<ChildProcess> child;

  // The next answer: a JSON string, or the program's error.
  absl::StatusOr<std::string> ReadText() {
    std::string line;
    if (!child->ReadLine(line)) return ErrorFrom(child->Wait(), child->ReadAll());
    FOREBAY_ASSIGN_OR_RETURN(const Json reply, ParseReply(line));
    if (reply.is_string()) return reply.get<std::string>();
    child->EndInput();
    return ErrorFrom(child->Wait(), line);
  }
};

TokenDecoder::TokenDecoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TokenDecoder::~TokenDecoder() = default;

absl::StatusOr<std::unique_ptr<TokenDecoder>> TokenDecoder::Start(const std::string& model) {
  auto impl = std::make_unique<Impl>();
  FOREBAY_ASSIGN_OR_RETURN(impl->child, StartDataProgram({"decode", "--model=" + model, "--stream",
                                                          kReplies[0], kReplies[1]},
                                                         ChildStreams::kOurs));
  return std::unique_ptr<TokenDecoder>(new TokenDecoder(std::move(impl)));
}

absl::Status TokenDecoder::AwaitReady() {
  return impl_->ReadText().status();
}

absl::StatusOr<std::string> TokenDecoder::Push(int32_t token, size_t text) {
  impl_->child->Send(
      fmt::format("{} {}\n", text, token));  // a child that stops reading has an error to tell
  return impl_->ReadText();
}

absl::StatusOr<std::string> TokenDecoder::Finish(size_t text) {
  impl_->child->Send(fmt::format("{} end\n", text));
  return impl_->ReadText();
}

}  // namespace forebay
