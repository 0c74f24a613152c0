#include "forebay/train/files/run_files.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/base/output_folder.h"
#include "forebay/base/shared_file.h"

namespace forebay {
namespace {

// Without the others an exported model is one all the same.
bool IsEssential(const std::string& name) {
  return name == kConfigName || name == kTokenizerName;
}

// CorruptError where the file in `folder` is missing or another.
absl::StatusOr<std::string> ReadRunFile(const std::string& folder, const ExportedFile& file) {
  const std::string path = JoinPath(folder, file.name);
  absl::StatusOr<std::string> contents = ReadWholeFile(path, kMaxTokenizerBytes);
  if (contents.ok() && Xxh3_128Hex(*contents) == file.digest) return contents;
  if (ExitCodeOf(contents.status()) == ExitCode::kStorage) return contents;
  return CorruptError(fmt::format("the run's own copy '{}' {}", path,
                                  contents.ok()
                                      ? "is not what it was when the run began"
                                      : "cannot be used: " + MessageOf(contents.status())));
}

// `why`: of ReadRunFile. `tried`: the folder that does not have the file either; "" when none was.
std::string LostText(const absl::Status& why, const ExportedFile& file, const std::string& tried) {
  return fmt::format(
      "{}{}. Put back what it was (xxh128sum {}): {}", MessageOf(why),
      IsEssential(file.name) ? "" : ", so exported models go without it", file.digest,
      tried.empty()
          ? "'forebay inspect RUN --repair' takes it from the folder that the run began with, "
            "'forebay train --resume --model=FOLDER' from another"
          : fmt::format("'{}' does not have it; 'forebay train --resume --model=FOLDER' takes it "
                        "from a folder that has",
                        tried));
}

// Keeps the line of a file that a model can do without. Otherwise the error.
absl::Status ReportLost(const absl::Status& why, const ExportedFile& file, const std::string& tried,
                        std::vector<std::string>& lost) {
  if (!IsEssential(file.name)) {
    lost.push_back(LostText(why, file, tried));
    return absl::OkStatus();
  }
  return ExitCodeOf(why) == ExitCode::kStorage ? why : CorruptError(LostText(why, file, tried));
}

absl::Status RemoveOthers(const std::string& folder, const std::vector<ModelFile>& files) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOfModelFiles(folder));
  for (const std::string& name : names) {
    if (std::ranges::count(files, name, &ModelFile::name) > 0) continue;
    const std::string path = JoinPath(folder, name);
    if (::unlink(path.c_str()) != 0) {
      return StorageError(fmt::format("removing '{}' failed", path), errno);
    }
  }
  return absl::OkStatus();
}

}  // namespace

RunFiles DescribeFiles(const std::vector<ModelFile>& files) {
  RunFiles described;
  for (const ModelFile& file : files) {
    described.push_back(
        {file.name, static_cast<int64_t>(file.contents.size()), Xxh3_128Hex(file.contents)});
  }
  return described;
}

Json ToJson(const RunFiles& files) {
  Json json = Json::array();
  for (const ExportedFile& file : files) {
    json.push_back({{"name", file.name},
                    {"bytes", static_cast<uint64_t>(file.bytes)},
                    {"xxh3_128", file.digest}});
  }
  return json;
}

RunFiles RunFilesOf(const Json& run_json) {
  if (!run_json.contains("files") || run_json["files"].is_null()) return {};
  return ParseFileList(run_json["files"]).value_or(RunFiles());
}

std::string DigestOf(const RunFiles& files) {
  Xxh3_128 hash;
  for (const ExportedFile& file : files) {
    hash.UpdateInt(static_cast<int64_t>(file.name.size()));
    hash.Update(file.name);
    hash.Update(file.digest);
  }
  return hash.Hex();
}

absl::Status WriteRunFiles(const std::string& folder, const std::vector<ModelFile>& files) {
  FOREBAY_RETURN_IF_ERROR(MakeOwnDirectory(folder));
  FOREBAY_RETURN_IF_ERROR(RemoveOthers(folder, files));
  for (const ModelFile& file : files) {
    FOREBAY_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(folder, file.name), file.contents));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> CheckRunFiles(const std::string& folder,
                                                       const RunFiles& files) {
  std::vector<std::string> lost;
  for (const ExportedFile& file : files) {
    const absl::Status own = ReadRunFile(folder, file).status();
    if (!own.ok()) FOREBAY_RETURN_IF_ERROR(ReportLost(own, file, "", lost));
  }
  return lost;
}

absl::StatusOr<RestoredFiles> RestoreRunFiles(const std::string& folder, const RunFiles& files,
                                              const std::string& model, bool dry_run) {
  RestoredFiles restored;
  const auto restore = [&](const ExportedFile& file) -> absl::Status {
    const absl::Status own = ReadRunFile(folder, file).status();
    if (own.ok()) return absl::OkStatus();
    const absl::StatusOr<std::string> contents = ReadRunFile(model, file);
    if (!contents.ok()) return ReportLost(own, file, model, restored.lost);
    const std::string path = JoinPath(folder, file.name);
    if (!dry_run) {
      FOREBAY_RETURN_IF_ERROR(MakeOwnDirectory(folder));
      FOREBAY_RETURN_IF_ERROR(WriteFileAtomically(path, *contents));
    }
    restored.written.push_back(path);
    return absl::OkStatus();
  };
  absl::Status first_error;
  for (const ExportedFile& file : files) first_error.Update(restore(file));
  FOREBAY_RETURN_IF_ERROR(first_error);
  return restored;
}

absl::Status ExportRunFiles(const std::string& folder, const RunFiles& files, DType dtype,
                            const std::string& to) {
  for (const ExportedFile& file : files) {
    const absl::StatusOr<std::string> contents = ReadRunFile(folder, file);
    if (!contents.ok()) {
      // Whoever resumes or exports was told (CheckRunFiles, RestoreRunFiles).
      std::vector<std::string> lost;
      FOREBAY_RETURN_IF_ERROR(ReportLost(contents.status(), file, "", lost));
      continue;
    }
    if (file.name != kConfigName) {
      FOREBAY_RETURN_IF_ERROR(WriteSharedFileAtomically(JoinPath(to, file.name), *contents));
      continue;
    }
    FOREBAY_ASSIGN_OR_RETURN(Json config, ParseJson(*contents, JoinPath(folder, file.name)));
    FOREBAY_RETURN_IF_ERROR(WriteConfig(std::move(config), dtype, to));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> CompareModelFiles(const std::string& model,
                                                           const RunFiles& files) {
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<ModelFile> there, ReadModelFiles(model));
  std::vector<std::string> different;
  for (const ExportedFile& theirs : DescribeFiles(there)) {
    const auto own = std::ranges::find(files, theirs.name, &ExportedFile::name);
    if (own != files.end() && own->digest == theirs.digest) continue;
    if (own == files.end() || !IsEssential(theirs.name)) {
      different.push_back(theirs.name);
      continue;
    }
    return UsageError(fmt::format(
        "cannot resume: the {} in --model is not the one that the run was started with ('{}' "
        "differs from the run's own copy). Leave --model out: the run goes on with its copy; or "
        "start a new run with another --out",
        theirs.name == kConfigName ? "configuration" : "tokenizer", JoinPath(model, theirs.name)));
  }
  return different;
}

absl::Status CheckWeightsAreOf(const Inventory& wanted, const Inventory& stored,
                               const std::string& config_path) {
  const auto& asked = wanted.tensors();
  const auto& there = stored.tensors();
  const auto [of_config, of_store] =
      std::ranges::mismatch(asked, there, [](const TensorSpec& a, const TensorSpec& b) {
        return a.name == b.name && a.shape == b.shape;
      });
  if (of_config == asked.end() && of_store == there.end()) return absl::OkStatus();
  const auto text = [](const auto& at, const auto& all) {
    return at == all.end() ? std::string("no tensor more")
                           : fmt::format("'{}' [{}]", at->name, fmt::join(at->shape, ", "));
  };
  return CorruptError(fmt::format(
      "'{}' is not the configuration of the run's weights: it asks for {}, where the swap area has "
      "{}. Put back the file that the run began with",
      config_path, text(of_config, asked), text(of_store, there)));
}

}  // namespace forebay
