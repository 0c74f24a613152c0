// The files of a store: made, opened, made anew where they are lost, and looked for at each commit.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/store_lock.h"
#include "forebay/swap/store/tensor_store_impl.h"

namespace forebay {

namespace {

constexpr char kMissing[] = "is missing";

}  // namespace

absl::Status TensorStore::Impl::AddFile(DirectFile file, const std::string& path, int& number) {
  if (access == StoreAccess::kReadWrite) {
    FOREBAY_RETURN_IF_ERROR(LockOpenFile(file.fd.get(), path));
  } else if (access == StoreAccess::kReadOnly) {
    FOREBAY_RETURN_IF_ERROR(ShareOpenFile(file.fd.get(), path));
  }
  if (!file.direct) why_not_direct = file.why_not_direct;
  if (file.space > space) {
    space = file.space;
    space_note = fmt::format(
        "'{}': {}. Should others fill the disk, the run ends there, and resumes once there is "
        "room. ext4 and XFS reserve all of it at the start (--nvme)",
        path, file.why_unreserved);
  }
  struct stat info = {};
  if (::fstat(file.fd.get(), &info) != 0) {
    return StorageErrorWithAdvice(fmt::format("stat of '{}' failed", path), errno);
  }
  number = engine->AddFile(std::move(file.fd), path);
  files.push_back(number);
  known_files.push_back({number, path, info.st_dev, info.st_ino});
  NoteLinks(known_files.back(), static_cast<int64_t>(info.st_nlink));
  return absl::OkStatus();
}

// Without those that a stripe has no use for, as there may be fewer tiles than folders.
std::vector<TensorStore::Impl::FileSpec> TensorStore::Impl::FilesOf(int index) {
  Stripe& stripe = stripes[index];
  const int64_t num_slots = manifest.num_slots;
  std::vector<FileSpec> specs = {
      {kWeightsName, on_disk.weights ? num_slots * tiles.weight_area_bytes(index) : 0,
       &stripe.weights_file},
      {kStateName, on_disk.state ? num_slots * tiles.state_area_bytes(index) : 0,
       &stripe.state_file}};
  for (int copy = 0; on_disk.records && copy < kNumCopies; ++copy) {
    specs.push_back({kSealsNames[copy], num_slots * TileSeals::TableBytes(tiles, index),
                     &stripe.seals_files[copy], kSealsNames[1 - copy]});
    specs.push_back(
        {kCommitNames[copy], kCommitFileBytes, &stripe.commit_files[copy], kCommitNames[1 - copy]});
  }
  std::erase_if(specs, [](const FileSpec& spec) { return spec.size_bytes == 0; });
  return specs;
}

absl::Status TensorStore::Impl::CreateFiles() {
  for (int index = 0; index < tiles.num_stripes(); ++index) {
    if (on_disk.records) {
      FOREBAY_RETURN_IF_ERROR(MakeDirectories(JoinPath(directories[index], kCopyFolderName)));
    }
    for (const FileSpec& spec : FilesOf(index)) {
      const std::string path = JoinPath(directories[index], spec.name);
      FOREBAY_ASSIGN_OR_RETURN(DirectFile file, OpenDirectFile(path, {.create = true,
                                                                      .size_bytes = spec.size_bytes,
                                                                      .reserve = reserve_space,
                                                                      .direct = engine->direct()}));
      FOREBAY_RETURN_IF_ERROR(AddFile(std::move(file), path, *spec.number));
    }
  }
  return absl::OkStatus();
}

// "has 5 bytes" or "is missing": what is wrong with the length of a file; "" when nothing is.
std::string TensorStore::Impl::LengthProblem(int index, const char* name,
                                             int64_t size_bytes) const {
  const std::string path = JoinPath(directories[index], name);
  const absl::StatusOr<bool> is_there = ProbePath(path);
  if (is_there.ok() && !*is_there) return kMissing;
  const absl::StatusOr<int64_t> found_bytes = FileSize(path);
  if (!found_bytes.ok()) return "cannot be looked at: " + MessageOf(found_bytes.status());
  return *found_bytes == size_bytes ? "" : fmt::format("has {} bytes", *found_bytes);
}

// Before anything is opened: a name may be that of a folder or a link, and then what belongs there
// is elsewhere.
absl::Status TensorStore::Impl::CheckKinds() {
  for (int index = 0; index < tiles.num_stripes(); ++index) {
    for (const FileSpec& spec : FilesOf(index)) {
      const std::string path = JoinPath(directories[index], spec.name);
      struct stat info = {};
      if (::lstat(path.c_str(), &info) != 0) {
        if (errno == ENOENT) continue;
        return StorageErrorWithAdvice(fmt::format("looking at '{}' failed", path), errno);
      }
      if (S_ISREG(info.st_mode)) continue;
      return CorruptError(fmt::format(
          "'{}' is {}, and the store's file has to be there. Nothing was changed. Put the file "
          "back, or restore the store from a copy",
          path,
          S_ISLNK(info.st_mode)   ? "a symbolic link"
          : S_ISDIR(info.st_mode) ? "a folder"
                                  : "no regular file"));
    }
  }
  return absl::OkStatus();
}

// Before anything is opened, and so before anything is made anew: a file of a wrong length may be
// another one that took its name.
absl::Status TensorStore::Impl::CheckLengths(TileFiles tile_files) {
  bool tiles_are_whole = true;
  bool copies_are_whole = true;
  std::string problems;
  for (int index = 0; index < tiles.num_stripes(); ++index) {
    for (const FileSpec& spec : FilesOf(index)) {
      const std::string problem = LengthProblem(index, spec.name, spec.size_bytes);
      if (problem.empty()) continue;
      problems += fmt::format("{}the store's file '{}' {}, but the manifest says {} bytes",
                              problems.empty() ? "" : "; ", JoinPath(directories[index], spec.name),
                              problem, spec.size_bytes);
      (spec.other_copy == nullptr ? tiles_are_whole : copies_are_whole) = false;
    }
  }
  if (tiles_are_whole || (tile_files == TileFiles::kAnyLength && copies_are_whole)) {
    return absl::OkStatus();
  }
  if (copies_are_whole) {
    return CorruptError(fmt::format(
        "{}. 'forebay inspect RUN --repair' finds out whether a step is whole in what is there; "
        "else restore it from a copy, or start the run again",
        problems));
  }
  return CorruptError(fmt::format(
      "{}. Nothing was changed, as files may have each other's names. Put back those that belong "
      "there, restore them from a copy, or start the run again",
      problems));
}

// Before one of them is made anew from the other.
absl::Status TensorStore::Impl::CheckCopies() {
  for (int index = 0; index < tiles.num_stripes(); ++index) {
    for (const FileSpec& spec : FilesOf(index)) {
      if (spec.other_copy == nullptr) continue;
      const std::string problem = LengthProblem(index, spec.name, spec.size_bytes);
      if (problem.empty() || LengthProblem(index, spec.other_copy, spec.size_bytes).empty()) {
        continue;
      }
      return CorruptError(fmt::format(
          "the store's file '{}' {}, and its copy '{}' is as bad. 'forebay inspect RUN --repair' "
          "makes them anew where that is possible; else restore the store from a copy",
          JoinPath(directories[index], spec.name), problem,
          JoinPath(directories[index], spec.other_copy)));
    }
  }
  return absl::OkStatus();
}

// Opens the files that need no repair first: if one cannot be opened, its error comes before any
// other file is created again.
absl::Status TensorStore::Impl::OpenFiles(TileFiles tile_files) {
  FOREBAY_RETURN_IF_ERROR(CheckKinds());
  FOREBAY_RETURN_IF_ERROR(CheckLengths(tile_files));
  if (tile_files == TileFiles::kWhole) FOREBAY_RETURN_IF_ERROR(CheckCopies());
  for (const bool as_they_are : {true, false}) {
    for (int index = 0; index < tiles.num_stripes(); ++index) {
      for (const FileSpec& spec : FilesOf(index)) {
        const bool is_whole = LengthProblem(index, spec.name, spec.size_bytes).empty();
        if ((is_whole || spec.other_copy == nullptr) != as_they_are) continue;
        if (*spec.number < 0) FOREBAY_RETURN_IF_ERROR(OpenFile(index, spec));
      }
    }
  }
  return absl::OkStatus();
}

// A file of which there is another copy is made anew where it is not there, or brought to its
// length, and done without by who only reads; what belongs into it is written when it is known
// (RepairCopies, RepairTable).
absl::Status TensorStore::Impl::OpenFile(int index, const FileSpec& spec) {
  const std::string path = JoinPath(directories[index], spec.name);
  const std::string problem = LengthProblem(index, spec.name, spec.size_bytes);
  const bool is_missing = problem == kMissing;
  const bool has_copy = spec.other_copy != nullptr;
  if (is_missing && !has_copy) {
    return CorruptError(fmt::format(
        "the store's file '{}' is missing, and nothing else has what was in it. Restore it from a "
        "copy, or start the run again",
        path));
  }
  const bool writes = access == StoreAccess::kReadWrite;
  if (!problem.empty() && has_copy && writes) return RemakeFile(index, spec, is_missing);
  if (!problem.empty() && has_copy) {
    NoteMended(fmt::format("'{}' {}", path, problem));
    return absl::OkStatus();
  }
  FOREBAY_ASSIGN_OR_RETURN(
      DirectFile file, OpenDirectFile(path, {.read_only = !writes, .direct = engine->direct()}));
  return AddFile(std::move(file), path, *spec.number);
}

// Makes a missing file, or gives one its right length. The contents stay up to that length, as they
// may be whole.
absl::Status TensorStore::Impl::RemakeFile(int index, const FileSpec& spec, bool is_missing) {
  const std::string& directory = directories[index];
  const std::string path = JoinPath(directory, spec.name);
  FOREBAY_RETURN_IF_ERROR(MakeDirectories(JoinPath(directory, kCopyFolderName)));
  FOREBAY_ASSIGN_OR_RETURN(DirectFile file, OpenDirectFile(path, {.create = is_missing,
                                                                  .size_bytes = spec.size_bytes,
                                                                  .reserve = reserve_space,
                                                                  .direct = engine->direct()}));
  if (::ftruncate(file.fd.get(), spec.size_bytes) != 0) {
    return StorageErrorWithAdvice(fmt::format("giving '{}' {} bytes failed", path, spec.size_bytes),
                                  errno);
  }
  FOREBAY_RETURN_IF_ERROR(AddFile(std::move(file), path, *spec.number));
  remade_files.push_back(*spec.number);
  notes.push_back(fmt::format("'{}' {} and is made anew from '{}'", path,
                              is_missing ? "was missing" : "had a wrong length",
                              JoinPath(directory, spec.other_copy)));
  FOREBAY_RETURN_IF_ERROR(SyncDirectory(JoinPath(directory, kCopyFolderName)));
  return SyncDirectory(directory);
}

// A copy is written anew from the other one, or will be. What a reader finds beside a writer may be
// whole a moment later, and is not worth a word.
void TensorStore::Impl::NoteMended(const std::string& problem) {
  if (access == StoreAccess::kBesideWriter) return;
  notes.push_back(fmt::format("{}: {}", problem,
                              access == StoreAccess::kReadWrite
                                  ? "written anew from the other copy"
                                  : "the next --resume, or --repair, writes it anew from the other "
                                    "copy"));
}

// ---- What becomes of them while they are in use

void TensorStore::Impl::NoteLinks(KnownFile& file, int64_t num_links) {
  if (num_links <= 1 || std::exchange(file.links_are_noted, true)) return;
  notes.push_back(
      fmt::format("'{}' has {} names (hard links): what is written to it changes under all of "
                  "them, so the others are no copies",
                  file.path, num_links));
}

// `newest_step`: that the files on the disk may hold.
absl::Status TensorStore::Impl::CheckFiles(int64_t newest_step) {
  for (KnownFile& file : known_files) {
    struct stat info = {};
    const bool is_there = ::lstat(file.path.c_str(), &info) == 0;
    if (!is_there && errno != ENOENT && errno != ENOTDIR) {
      return StorageErrorWithAdvice(fmt::format("looking for '{}' failed", file.path), errno);
    }
    if (!is_there || info.st_dev != file.device || info.st_ino != file.inode) {
      return StorageError(fmt::format(
          "the store's file '{}' {} while it was in use, so what is written to it is lost. The run "
          "ends. What is there now can be at most as new as step {}: 'forebay inspect RUN "
          "--verify' says whether it is whole; else restore the run from a copy",
          file.path, is_there ? "was replaced by another file" : "was removed or moved away",
          newest_step));
    }
    NoteLinks(file, static_cast<int64_t>(info.st_nlink));
  }
  return absl::OkStatus();
}

absl::Status TensorStore::CheckFiles() {
  return impl_->CheckFiles(impl_->has_commit ? impl_->committed.step : 0);
}

// ---- Manifests, and what a repair leaves right

std::string TensorStore::Impl::ManifestText(int index) const {
  StoreManifest of_stripe = manifest;
  of_stripe.stripe = index;
  return EncodeManifest(of_stripe);
}

// The manifests last, because they are what makes these files a store, and that of the first folder
// behind all others.
absl::Status TensorStore::Impl::WriteManifests() {
  if (!on_disk.records) return absl::OkStatus();
  for (int index = tiles.num_stripes() - 1; index >= 0; --index) {
    for (const char* name : {kManifestNames[1], kManifestNames[0]}) {
      FOREBAY_RETURN_IF_ERROR(
          WriteFileAtomically(JoinPath(directories[index], name), ManifestText(index)));
    }
  }
  return absl::OkStatus();
}

absl::Status TensorStore::Impl::RepairManifests() {
  for (int index = 0; index < tiles.num_stripes(); ++index) {
    for (const std::string& path : std::exchange(stripes[index].damaged_manifests, {})) {
      if (access != StoreAccess::kReadWrite) {
        NoteMended(fmt::format("'{}' is missing or damaged", path));
        continue;
      }
      FOREBAY_RETURN_IF_ERROR(MakeDirectories(JoinPath(directories[index], kCopyFolderName)));
      FOREBAY_RETURN_IF_ERROR(WriteFileAtomically(path, ManifestText(index)));
      notes.push_back(fmt::format("'{}' was missing or damaged and was made anew", path));
    }
  }
  return absl::OkStatus();
}

// Gives the files that Repair took as they were their right lengths.
absl::Status TensorStore::Impl::RepairLengths() {
  for (int index = 0; index < tiles.num_stripes(); ++index) {
    for (const FileSpec& spec : FilesOf(index)) {
      const std::string problem = LengthProblem(index, spec.name, spec.size_bytes);
      if (problem.empty()) continue;
      const std::string path = JoinPath(directories[index], spec.name);
      FOREBAY_ASSIGN_OR_RETURN(
          const DirectFile file,
          OpenDirectFile(
              path, {.size_bytes = spec.size_bytes, .reserve = reserve_space, .direct = false}));
      if (::ftruncate(file.fd.get(), spec.size_bytes) != 0) {
        return StorageError(fmt::format("giving '{}' {} bytes failed", path, spec.size_bytes),
                            errno);
      }
      FOREBAY_RETURN_IF_ERROR(SyncFile(file.fd.get(), path));
      notes.push_back(fmt::format("'{}' {} and has {} again", path, problem, spec.size_bytes));
    }
  }
  return absl::OkStatus();
}

}  // namespace forebay
