#include "forebay/train/export/export_manifest.h"

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/base/json.h"
#include "forebay/base/shared_file.h"
#include "forebay/swap/records/store_manifest.h"
#include "forebay/train/files/export_files.h"

namespace forebay {
namespace {

constexpr int64_t kManifestBytesMax = int64_t{1} << 20;
constexpr int64_t kPieceBytes = int64_t{4} << 20;

absl::StatusOr<std::string> DigestOfFile(const std::string& path, int64_t size_bytes,
                                         const std::function<void(int64_t)>& read_bytes) {
  FOREBAY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenFile(path, O_RDONLY));
  std::vector<std::byte> piece(static_cast<size_t>(std::min(size_bytes, kPieceBytes)));
  Xxh3_128 hash;
  for (int64_t done = 0; done < size_bytes;) {
    const auto bytes = std::span(piece).first(
        static_cast<size_t>(std::min<int64_t>(kPieceBytes, size_bytes - done)));
    FOREBAY_RETURN_IF_ERROR(PreadAll(fd.get(), bytes, done, path));
    hash.Update(bytes);
    done += static_cast<int64_t>(bytes.size());
    read_bytes(static_cast<int64_t>(bytes.size()));
  }
  return hash.Hex();
}

}  // namespace

absl::Status WriteExportManifest(const std::string& folder, const ExportOrigin& origin,
                                 const std::map<std::string, std::string>& known_digests) {
  FOREBAY_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(folder));
  std::ranges::sort(names);
  Json files = Json::array();
  for (const std::string& name : names) {
    const std::string path = JoinPath(folder, name);
    FOREBAY_ASSIGN_OR_RETURN(const int64_t bytes, FileSize(path));
    std::string digest;
    if (const auto known = known_digests.find(name); known != known_digests.end()) {
      digest = known->second;
    } else {
      FOREBAY_ASSIGN_OR_RETURN(digest, DigestOfFile(path, bytes, [](int64_t) {}));
    }
    files.push_back({{"name", name}, {"bytes", bytes}, {"xxh3_128", digest}});
  }
  const Json json = {{"format", kExportFormat},
                     {"step", origin.step},
                     {"store_uuid", ToHex(origin.store)},
                     {"files", files}};
  return WriteSharedFileAtomically(JoinPath(folder, kExportManifestName), json.dump(2) + "\n");
}

absl::StatusOr<ExportCheck> CheckExport(
    const std::string& folder, const std::function<void(int64_t done, int64_t all)>& progress) {
  const std::string manifest = JoinPath(folder, kExportManifestName);
  if (!FileExists(manifest)) {
    return BadInputError(
        fmt::format("'{}' has no '{}', so there is nothing to compare it with: only what forebay "
                    "exports has one",
                    folder, kExportManifestName));
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(manifest, kManifestBytesMax));
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<ExportedFile> files, ParseExportFiles(text, manifest));
  int64_t all_bytes = 0;
  for (const ExportedFile& file : files) all_bytes += file.bytes;
  ExportCheck check;
  for (const ExportedFile& file : files) {
    const std::string path = JoinPath(folder, file.name);
    const auto damaged = [&](const std::string& what) {
      check.damaged.push_back(
          {path, fmt::format("'{}' {}. Copy it again, or export the model again", path, what)});
    };
    const absl::StatusOr<int64_t> bytes = FileSize(path);
    if (!bytes.ok() || *bytes != file.bytes) {
      damaged(bytes.ok() ? fmt::format("has {} bytes, and {} were exported", *bytes, file.bytes)
                         : std::string("is missing"));
      continue;
    }
    const absl::StatusOr<std::string> digest = DigestOfFile(path, file.bytes, [&](int64_t read) {
      check.bytes += read;
      if (progress) progress(check.bytes, all_bytes);
    });
    if (!digest.ok()) {
      damaged(fmt::format("cannot be read: {}", MessageOf(digest.status())));
    } else if (*digest != file.digest) {
      damaged("does not hold what was exported");
    }
  }
  return check;
}

}  // namespace forebay
