// Runs the Python program `forebay-data` (text to tokens, chat templates, GGUF), as git runs
// `git-foo`: a child process, no shell, JSON over its standard streams. Commands and keys:
// docs/formats.md, "forebay-data". Not for: reading what it wrote (packed_file.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

// The program's path: beside the running binary, then $FOREBAY_DATA, then in $PATH.
// EnvironmentError with what to do when it is nowhere.
absl::StatusOr<std::string> FindDataProgram();

// Runs `forebay-data ARGS --format=json` to its end and returns the one JSON document that it
// printed. Its progress goes to our standard error. `input` becomes its standard input. A failure
// carries the program's own message and the exit code that it chose (3 for bad data, ...);
// InterruptedError when a signal ended it. `stop` (may be empty) is polled some times a second;
// true ends the program at once, with InterruptedError.
absl::StatusOr<Json> RunDataProgram(const std::vector<std::string>& args,
                                    const std::string& input = "",
                                    const std::function<bool()>& stop = {});

// Runs `forebay-data ARGS` on our own terminal: all three streams are shared, so that colours and
// progress work. Returns its exit code; what went wrong it has already said. Ctrl-C is the
// program's: this process ignores it meanwhile.
absl::StatusOr<int> RunDataProgramOnTerminal(const std::vector<std::string>& args);

// What --data names (python/forebay_data/sources.py), as absolute paths: `make_absolute` of each.
std::string WithAbsolutePaths(const std::string& data,
                              const std::function<std::string(const std::string&)>& make_absolute);

struct PackRequest {
  std::string data;       // files and folders with weights, or one packed file
  std::string model;      // Hugging Face folder
  int64_t seq = 0;        // tokens per row
  bool truncate = false;  // cut over-long prompts and chats instead of refusing them
  std::string cache;      // folder for the packed result, made when missing
};
struct PackResult {
  std::string path;                // of the packed file; `data` itself when it was packed already
  bool cached = false;             // nothing had to be done
  std::vector<std::string> notes;  // what became of the data that whoever gave it may not expect
  Json report;                     // rows, tokens, trained, samples, padding_share, ...
};
// Text as a packed file that fits `model` and `seq`. `stop` and errors as RunDataProgram.
absl::StatusOr<PackResult> PackedPathFor(const PackRequest& request,
                                         const std::function<bool()>& stop = {});

struct EncodedPrompt {
  std::vector<int32_t> tokens;
  std::vector<int64_t>
      eos_token_ids;  // where generation stops: generation_config's list, else the tokenizer's
  int64_t line = 0;   // of a file of prompts; 0: it is from none
};
// Tokens of `prompt` as the tokenizer makes them; with `chat`, of one user turn through the model's
// chat template, ready for the assistant's.
absl::StatusOr<EncodedPrompt> EncodePrompt(const std::string& model, const std::string& prompt,
                                           bool chat);
// The tokens of each prompt in the file at `path`, one per line: of a .txt file the text of each
// line that is not blank, of a .jsonl file {"prompt"}, or {"messages"} for the chat template. At
// least one. BadInputError that names the line.
absl::StatusOr<std::vector<EncodedPrompt>> EncodePromptFile(const std::string& model,
                                                            const std::string& path);

// Turns tokens into text one at a time, of several texts at once, through one child process that
// lives as long as this object. Owned by one thread.
class TokenDecoder {
 public:
  // Returns while the child still starts.
  static absl::StatusOr<std::unique_ptr<TokenDecoder>> Start(const std::string& model);
  ~TokenDecoder();  // ends the child
  TokenDecoder(const TokenDecoder&) = delete;
  TokenDecoder& operator=(const TokenDecoder&) = delete;

  // Waits until the child has loaded the tokenizer, so that no later call waits for its start. Call
  // once, before the first Push.
  absl::Status AwaitReady();
  // The text that became complete with `token`: empty while a multi-byte character is unfinished,
  // and for special tokens.
  absl::StatusOr<std::string> Push(int32_t token, size_t text);
  // The rest when no more tokens of this text come (an unfinished character becomes U+FFFD).
  // Another text may follow under its number.
  absl::StatusOr<std::string> Finish(size_t text);

 private:
  struct Impl;
  explicit TokenDecoder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay
