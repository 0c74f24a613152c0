#include "forebay/train/files/store_owner.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <filesystem>
#include <optional>
#include <string_view>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/swap/store/store_folders.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/files/swap_area.h"

namespace forebay {
namespace {

constexpr int64_t kMaxOwnerBytes = 1 << 16;

// Identifies a folder: a rename keeps it, a copy has its own. It is the inode and the moment it was
// made. Where the file system does not know that moment, it is the inode and the file system (not
// the device, which another mount may number otherwise). "" where there is no folder.
std::string IdentityOf(const std::string& path) {
  struct statx info = {};
  constexpr unsigned kWanted = STATX_INO | STATX_BTIME;
  if (::statx(AT_FDCWD, path.c_str(), 0, kWanted, &info) != 0) return "";
  if ((info.stx_mask & STATX_BTIME) != 0) {
    return fmt::format("{} made {}.{:09}", info.stx_ino, info.stx_btime.tv_sec,
                       info.stx_btime.tv_nsec);
  }
  struct statfs system = {};
  if (::statfs(path.c_str(), &system) != 0) return "";
  return fmt::format("{} on {:x}:{:x}:{:x}", info.stx_ino, static_cast<uint64_t>(system.f_type),
                     system.f_fsid.__val[0], system.f_fsid.__val[1]);
}

struct OwnerRecord {
  std::string uuid;
  std::string run;           // path of the run folder
  std::string run_folder;    // IdentityOf it
  std::string store_folder;  // and of the folder that the record lies in
};

Json ToJson(const OwnerRecord& record) {
  return {{kOwnersStoreKey, record.uuid},
          {"run", record.run},
          {"run_folder", record.run_folder},
          {"store_folder", record.store_folder}};
}

OwnerRecord RecordOf(const std::string& store, const std::string& run_directory,
                     const std::string& uuid) {
  return {uuid, CanonicalPath(run_directory), IdentityOf(run_directory), IdentityOf(store)};
}

std::optional<OwnerRecord> ReadOwner(const std::string& store) {
  const absl::StatusOr<Json> json = ReadJsonFile(JoinPath(store, kOwnerName), kMaxOwnerBytes);
  if (!json.ok() || !json->is_object()) return std::nullopt;
  for (const char* const key : {kOwnersStoreKey, "run", "run_folder", "store_folder"}) {
    if (!json->contains(key) || !(*json)[key].is_string()) return std::nullopt;
  }
  return OwnerRecord{(*json)[kOwnersStoreKey], (*json)["run"], (*json)["run_folder"],
                     (*json)["store_folder"]};
}

bool IsTheRun(const std::string& directory, const OwnerRecord& record) {
  if (record.run_folder.empty() || IdentityOf(directory) != record.run_folder) return false;
  const absl::StatusOr<Json> run = ReadRunJson(directory);
  return run.ok() && StoreUuidOf(*run) == record.uuid;
}

// The run folder that the record was written for: where it was, or beside that by another name. ""
// where it is in neither.
std::string FindRun(const OwnerRecord& record) {
  if (IsTheRun(record.run, record)) return record.run;
  const std::string parent = std::filesystem::path(record.run).parent_path().string();
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(parent);
  if (!names.ok()) return "";
  for (const std::string& name : *names) {
    std::string beside = JoinPath(parent, name);
    if (IsTheRun(beside, record)) return beside;
  }
  return "";
}

}  // namespace

StoreOwner FindOwner(const std::string& store, const std::string& run_directory,
                     const std::string& uuid) {
  // Behind a link the same store may be that of several copies.
  if (IsInside(CanonicalPath(run_directory), CanonicalPath(store))) return {Ownership::kOurs, ""};
  const std::optional<OwnerRecord> record = ReadOwner(store);
  if (!record.has_value() || record->uuid != uuid) {
    return {Ownership::kUnknown,
            fmt::format("its '{}' does not say whose it is", JoinPath(store, kOwnerName))};
  }
  if (IdentityOf(run_directory) == record->run_folder) return {Ownership::kOurs, ""};
  // The record of a copied store speaks of the store that it is a copy of.
  if (IdentityOf(store) != record->store_folder) {
    return {Ownership::kUnknown,
            fmt::format("it is a copy of that of the run in '{}', or was moved "
                        "to another file system since",
                        record->run)};
  }
  const std::string other = FindRun(*record);
  if (!other.empty()) {
    return {Ownership::kOfAnother,
            fmt::format("it belongs to the run in '{}', of which '{}' is a copy", other,
                        run_directory)};
  }
  return {Ownership::kUnknown,
          fmt::format("it belongs to a run that was in '{}', and '{}' may be that one or a copy of "
                      "it",
                      record->run, run_directory)};
}

absl::Status CheckIsNotOfAnother(const std::string& store, const std::string& run_directory,
                                 const std::string& uuid) {
  const StoreOwner owner = FindOwner(store, run_directory, uuid);
  if (owner.ownership != Ownership::kOfAnother) return absl::OkStatus();
  return CorruptError(fmt::format(
      "the swap area '{}' belongs to another run: {}. Nothing was touched. Go on with that run, or "
      "copy its swap area as well and name the copy ('forebay train --resume' with --nvme)",
      store, owner.why));
}

absl::Status WriteOwner(const std::string& store, const std::string& run_directory,
                        const std::string& uuid) {
  const Json record = ToJson(RecordOf(store, run_directory, uuid));
  return WriteFileAtomically(JoinPath(store, kOwnerName), record.dump(2) + "\n");
}

bool IsOwner(const std::string& store, const std::string& run_directory, const std::string& uuid) {
  const std::optional<OwnerRecord> record = ReadOwner(store);
  return record.has_value() && ToJson(*record) == ToJson(RecordOf(store, run_directory, uuid));
}

}  // namespace forebay
