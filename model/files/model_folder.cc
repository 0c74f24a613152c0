#include "forebay/model/files/model_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/base/round_up.h"
#include "forebay/base/shared_file.h"
#include "forebay/model/config_fields.h"
#include "forebay/model/families.h"

namespace forebay {
namespace {

// Everything that transformers may read of a tokenizer.
constexpr std::array<std::string_view, 7> kTokenizerFiles = {kTokenizerName,
                                                             "tokenizer_config.json",
                                                             "special_tokens_map.json",
                                                             "added_tokens.json",
                                                             "vocab.json",
                                                             "merges.txt",
                                                             "chat_template.jinja"};

absl::Status CopyFile(const std::string& from, const std::string& to, std::string_view name) {
  FOREBAY_ASSIGN_OR_RETURN(const std::string contents,
                           ReadWholeFile(JoinPath(from, name), kMaxTokenizerBytes));
  return WriteSharedFileAtomically(JoinPath(to, name), contents);
}

absl::Status CopyConfig(const std::string& from, const std::string& to, DType dtype) {
  FOREBAY_ASSIGN_OR_RETURN(Json json,
                           ReadJsonFile(JoinPath(from, kConfigName), kMaxConfigFileBytes));
  if (!json.is_object()) {
    return BadInputError(fmt::format("{}: a JSON object is expected", JoinPath(from, kConfigName)));
  }
  return WriteConfig(std::move(json), dtype, to);
}

// Names of the sentencepiece models ("tokenizer.model") in the folder, sorted.
absl::StatusOr<std::vector<std::string>> SentencePieceModels(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".model") && it->is_regular_file(error)) names.push_back(name);
  }
  if (error) return StorageError(fmt::format("listing '{}' failed", directory), error.value());
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::vector<std::string>> TokenizerFiles(const std::string& directory) {
  std::vector<std::string> names;
  for (const std::string_view name : kTokenizerFiles) {
    if (FileExists(JoinPath(directory, name))) names.emplace_back(name);
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> models, SentencePieceModels(directory));
  names.insert(names.end(), models.begin(), models.end());
  return names;
}

// All but config.json, which is written anew.
absl::StatusOr<std::vector<std::string>> FilesToCopy(const std::string& directory) {
  FOREBAY_ASSIGN_OR_RETURN(std::vector<std::string> names, TokenizerFiles(directory));
  if (FileExists(JoinPath(directory, kGenerationConfig))) names.emplace_back(kGenerationConfig);
  return names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> NamesOfModelFiles(const std::string& model_directory) {
  if (!IsDirectory(model_directory)) return std::vector<std::string>();
  FOREBAY_ASSIGN_OR_RETURN(std::vector<std::string> names, FilesToCopy(model_directory));
  if (FileExists(JoinPath(model_directory, kConfigName))) names.emplace_back(kConfigName);
  return names;
}

absl::StatusOr<std::vector<ModelFile>> ReadModelFiles(const std::string& model_directory) {
  std::vector<ModelFile> files;
  FOREBAY_ASSIGN_OR_RETURN(std::string config, ReadWholeFile(JoinPath(model_directory, kConfigName),
                                                             kMaxConfigFileBytes));
  files.push_back({kConfigName, std::move(config)});
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesToCopy(model_directory));
  for (const std::string& name : names) {
    FOREBAY_ASSIGN_OR_RETURN(std::string contents,
                             ReadWholeFile(JoinPath(model_directory, name), kMaxTokenizerBytes));
    files.push_back({name, std::move(contents)});
  }
  return files;
}

absl::StatusOr<std::vector<int64_t>> ReadGenerationStopTokens(const std::string& model_directory) {
  const std::string path = JoinPath(model_directory, kGenerationConfig);
  if (!FileExists(path)) return std::vector<int64_t>();
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path, kMaxConfigFileBytes));
  if (!json.is_object()) return BadInputError(fmt::format("{}: a JSON object is expected", path));
  std::vector<std::string> problems;
  std::vector<int64_t> tokens = ReadTokenIds(ConfigFields(json, "", &problems), "eos_token_id");
  if (!problems.empty())
    return BadInputError(fmt::format("{}: {}. Correct the file", path, problems.front()));
  return tokens;
}

absl::StatusOr<std::vector<int64_t>> ReadStopTokens(const std::string& model_directory,
                                                    const DecoderConfig& config) {
  FOREBAY_ASSIGN_OR_RETURN(std::vector<int64_t> tokens, ReadGenerationStopTokens(model_directory));
  return tokens.empty() ? config.eos_token_ids : tokens;
}

absl::Status WriteConfig(Json config, DType dtype, const std::string& directory) {
  // transformers 5 writes `dtype` and still reads `torch_dtype`, which is all that older ones know.
  for (const char* const key : {"dtype", "torch_dtype"}) {
    if (config.contains(key)) config[key] = TorchName(dtype);
  }
  if (!config.contains("dtype") && !config.contains("torch_dtype"))
    config["torch_dtype"] = TorchName(dtype);
  // Without it transformers does not know the model; this program goes by `architectures` first.
  if (!config.contains("model_type")) {
    const Json& names = config["architectures"];
    const Family* family = names.is_array() && !names.empty() && names[0].is_string()
                               ? FindFamily(names[0].get<std::string>())
                               : nullptr;
    if (family != nullptr) config["model_type"] = family->model_type;
  }
  return WriteSharedFileAtomically(
      JoinPath(directory, kConfigName),
      config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

absl::StatusOr<int64_t> BytesOfSidecarFiles(const std::string& from) {
  constexpr int64_t kBlockBytes = 4096;
  FOREBAY_ASSIGN_OR_RETURN(std::vector<std::string> names, FilesToCopy(from));
  names.emplace_back(kConfigName);
  // The folder and the one that it is in, the manifest of the export, and what each is before it
  // has its name.
  int64_t bytes = 8 * kBlockBytes;
  for (const std::string& name : names) {
    FOREBAY_ASSIGN_OR_RETURN(const int64_t file_bytes, FileSize(JoinPath(from, name)));
    bytes += RoundUp(file_bytes, kBlockBytes);
  }
  return bytes;
}

absl::Status CopySidecarFiles(const std::string& from, const std::string& to, DType dtype) {
  FOREBAY_RETURN_IF_ERROR(CopyConfig(from, to, dtype));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesToCopy(from));
  for (const std::string& name : names) {
    FOREBAY_RETURN_IF_ERROR(CopyFile(from, to, name));
  }
  return absl::OkStatus();
}

}  // namespace forebay
