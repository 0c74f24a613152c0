// The files of a run: what `train` leaves in OUT, and what inspect, resume, clean and init --run
// read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/aio/engine.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {

struct RunPaths {
  explicit RunPaths(std::string out_directory)
      : out(std::move(out_directory)),
        lock(JoinPath(out, "run.lock")),
        run_json(JoinPath(out, "run.json")),
        resolved_config(JoinPath(out, "resolved_config.json")),
        files(JoinPath(out, "files")),
        run_json_copy(JoinPath(files, "run.json")),
        resolved_config_copy(JoinPath(files, "resolved_config.json")),
        plan(JoinPath(out, "plan.json")),
        algorithms(JoinPath(out, "algorithms.json")),
        metrics(JoinPath(out, "metrics.jsonl")),
        written(JoinPath(out, "written.json")),
        events(JoinPath(out, "events.log")),
        model(JoinPath(out, "model")),
        exports(JoinPath(out, "exports")) {}

  std::string out;
  std::string lock;      // of whoever makes, trains, repairs or cleans the run (run_lock.h)
  std::string run_json;  // where the store is, model folder, fingerprint: what a resume compares
  std::string resolved_config;  // resolved_config.json
  std::string files;            // the run's own copies of its model's small files (run_files.h)
  std::string run_json_copy;    // second copies of the two above, in files
  std::string resolved_config_copy;  // the same
  std::string plan;                  // plan.json
  std::string algorithms;            // algorithms.json (run_algorithms.h)
  std::string metrics;               // metrics.jsonl
  std::string written;               // written.json (written_record.h)
  std::string events;                // events.log
  std::string model;                 // model/: the result
  std::string exports;               // exports/
};

inline constexpr int kRunFormat = 2;
inline constexpr char kRunCreating[] = "creating";
inline constexpr char kRunReady[] = "ready";
inline constexpr char kRunUnkept[] = "unkept";

// run.json of a run folder, with every field checked; where it is lost or damaged, its copy, and
// why in `note` (may be nullptr; left alone otherwise). BadInputError when there is no run,
// CorruptError names the field of a run.json that is damaged, StorageError.
//   format       kRunFormat
//   state        kRunCreating until the store holds its first commit, then kRunReady; kRunUnkept
//                if it is never on disk (CheckIsKept)
//   stores       folders of the store: relative to the run when they lie inside, else absolute
//   store_uuid   of the store, by which its folders are known
//   model        the model folder that the run started from: relative when it lies in the run
//   fingerprint  what changes the result (fingerprint.h); null until the first training session
//   files        the run's own copies (run_files.h); null until the first training session
absl::StatusOr<Json> ReadRunJson(const std::string& run_directory, std::string* note = nullptr);
// One of its two copies alone.
absl::StatusOr<Json> ReadRunJsonAt(const std::string& path);
// Both copies, as far as they are not so already. The second one first: what it says of a run is
// never older than what run.json says. StorageError; UsageError where OUT/files is a link.
absl::Status WriteRunJson(const RunPaths& paths, const Json& json);
// One line for the user: `why` a file is not used, and which copy is.
std::string NoteOfCopy(const absl::Status& why, const std::string& copy);

// 32 hexadecimal digits, as digests and identities are written.
bool IsHexDigest(const Json& value);
// Whether `directory` is a run folder (has a run.json, or its copy).
bool IsRunFolder(const std::string& directory);
// The folder that the run started from, as run.json (`json`) has it: a path, or one in the run.
std::string ModelOf(const std::string& run_directory, const Json& json);
// The store's uuid as run.json (`json`) has it.
std::string StoreUuidOf(const Json& json);
// The store's folders as run.json records them.
absl::StatusOr<std::vector<std::string>> StoreDirectoriesOf(const std::string& run_directory);
std::vector<std::string> StoreDirectoriesOf(const std::string& run_directory, const Json& json);
// The same, but for those folders that lie in `folders` (or in a forebay-* folder there) by now: a
// run that was moved. BadInputError when one of `folders` holds none of the store's, or when a
// folder of the store is nowhere; the message names it. CorruptError or StorageError instead when
// there is something that cannot be read and may be what is missing.
absl::StatusOr<std::vector<std::string>> FindStoreDirectories(
    const std::string& run_directory, const std::vector<std::string>& folders);
// BadInputError if the run keeps nothing that could be read or gone on from.
absl::Status CheckIsKept(const std::string& run_directory, const Json& json);
// Opens the store that lies in `directories`. BadInputError of CheckIsKept, and names those that
// are not there; CorruptError if another store lies there than that of run.json: another run may
// have taken the folders of one that was moved. StorageError; otherwise as TensorStore::Open.
absl::StatusOr<std::unique_ptr<TensorStore>> OpenRunStore(
    const std::string& run_directory, const std::vector<std::string>& directories, Engine* engine,
    StoreAccess access);
// As run.json records them.
absl::StatusOr<std::unique_ptr<TensorStore>> OpenRunStore(
    const std::string& run_directory, Engine* engine, StoreAccess access = StoreAccess::kReadWrite);

// CorruptError, naming the file that should have the record, where `store` has no committed step.
absl::Status CheckHasCommit(const TensorStore& store);

// In values that are hashed.
using DigestProgress = std::function<void(int64_t done, int64_t all)>;

// One XXH3-128 over the committed state: for every tensor in the order of its Hugging Face name:
// name, shape, fp32 master, and of m and v those that there are (stored codes and scales in lossy
// layouts); then the step. Independent of tiles, tiers and layout of the
// files. Holds one tensor at a time. `progress` may be empty, here and below.
absl::StatusOr<std::string> StateDigest(TensorStore& store, const DigestProgress& progress = {});
// The same of a state that `parts` have of each layer of `whole`, in order: to the bit that of one
// store. Requires: they belong together, and are at one step.
absl::StatusOr<std::string> StateDigest(const Inventory& whole, std::span<TensorStore* const> parts,
                                        const DigestProgress& progress = {});
// The same over a model folder: names, shapes and fp32 values (no moments, no step).
absl::StatusOr<std::string> ModelDigest(const std::string& model_directory,
                                        const DigestProgress& progress = {});

struct CleanedRun {
  struct Left {
    std::string folder;
    std::string why;  // in words
  };
  std::string note;  // one line where run.json is lost and its copy was read; else ""
  int64_t freed_bytes = 0;
  std::vector<std::string> not_there;  // folders of the swap area of which nothing was found
  std::vector<Left> of_others;  // and those whose files are not this run's, or not known to be
};
// Removes what is left of the store `uuid` (as ToHex has it) from those of `directories` that are
// known to be the run's own. By whoever holds the run's lock. The errors of CleanRun.
absl::StatusOr<CleanedRun> RemoveOwnParts(const std::string& run_directory, const std::string& uuid,
                                          const std::vector<std::string>& directories);
// Removes the run's swap area from all of its folders that hold anything of it; what others hold,
// and what nothing identifies as the run's, is not touched. The trained model and logs stay.
// EnvironmentError when it is in use, StorageError when a folder cannot be looked at; nothing was
// removed then.
absl::StatusOr<CleanedRun> CleanRun(const std::string& run_directory);

}  // namespace forebay
