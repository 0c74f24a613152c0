// Where the swap area of a run lies: the folders of its store, as names.
#pragma once

#include <string>
#include <vector>

#include "forebay/base/json.h"
#include "forebay/train/options/options.h"

namespace forebay {

// Normal, links as they are; `path` itself where the working directory is gone.
std::string NormalPath(const std::string& path);
// Without links, however it was spelled; parts of it may not be there yet.
std::string CanonicalPath(const std::string& path);
// Whether the name `path` lies in `folder`, wherever links in it lead to.
bool IsInside(const std::string& folder, const std::string& path);

// Where the store of a new run goes: OUT/swap, or a folder of its own inside each --nvme.
std::vector<std::string> NewStoreDirectories(const TrainOptions& options);
// As run.json records them: relative when they lie inside the run, so that the run can be moved.
// That is so when their name does, wherever a link in it leads to, and when they do by another
// name.
Json RecordedStoreDirectories(const std::string& out, const std::vector<std::string>& directories);
// What --nvme has to name for a new run in the same places as a store in `directories`: the folders
// that those lie in, but for one that has another name than a run gives, or shares its place.
std::vector<std::string> FoldersToName(const std::vector<std::string>& directories);

}  // namespace forebay
