// Whose a store is. Each folder of a run's store has an owner.json that says which run folder it
// belongs to, by what a copy of that folder cannot share (docs/formats.md, "owner.json"): a copied
// run finds the store of the original at the place that its run.json names, and must not take it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/swap/records/commit_record.h"

namespace forebay {

enum class Ownership : uint8_t {
  kOurs,
  kOfAnother,  // the run folder that it belongs to is there, and is another one
  kUnknown,    // it says nothing that holds: its run is gone or was moved to another file system
};

struct StoreOwner {
  Ownership ownership = Ownership::kUnknown;
  std::string why;  // unless it is ours: in words, with the run folder that it belongs to
};

// Finds whose the folder `store` of a store is, as seen by the run in `run_directory`. The run's
// store has the uuid `uuid` (as ToHex has it). A folder that lies in the run's is the run's.
// Changes nothing.
StoreOwner FindOwner(const std::string& store, const std::string& run_directory,
                     const std::string& uuid);
// CorruptError when `store` is of another run.
absl::Status CheckIsNotOfAnother(const std::string& store, const std::string& run_directory,
                                 const std::string& uuid);
// Makes `store` that of the run in `run_directory`. StorageError.
absl::Status WriteOwner(const std::string& store, const std::string& run_directory,
                        const std::string& uuid);
// Whether WriteOwner would change nothing.
bool IsOwner(const std::string& store, const std::string& run_directory, const std::string& uuid);

}  // namespace forebay
