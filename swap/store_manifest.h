// manifest.json: what a store holds, fixed when it is created (docs/formats.md, "manifest.json").
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/swap/commit_record.h"
#include "forebay/swap/layout.h"

namespace forebay {

struct StoreManifest {
  StoreUuid uuid = {};
  Layout layout = Layout::kBf16;
  int64_t tile_elems = 0;
  Inventory inventory;
};

// With a checksum over all of it. Ends with a newline.
std::string EncodeManifest(const StoreManifest& manifest);

// CorruptError for damage, foreign content and unknown versions; `source` names the file.
absl::StatusOr<StoreManifest> DecodeManifest(std::string_view text, std::string_view source);

}  // namespace forebay
