// manifest.json: what a store holds, and which of its folders this one is; fixed when the store is
// created (docs/formats.md, "manifest.json").
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/base/tensor_spec.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/tiles/layout.h"
#include "forebay/swap/tiles/stripes.h"

namespace forebay {

struct StoreManifest {
  StoreUuid uuid = {};
  Layout layout = Layout::kBf16;
  MomentSet moment_set;
  int64_t tile_elems = 0;
  int num_slots = kMostSlots;
  Inventory inventory;
  StripeWeights stripe_weights = {1};  // one for each folder of the store
  int stripe = 0;                      // whose folder it is; the one thing in which they differ
};

// EnvironmentError when the kernel has no random bytes.
absl::StatusOr<StoreUuid> NewStoreUuid();
// 32 hexadecimal digits, as the manifest has it.
std::string ToHex(const StoreUuid& uuid);

// Hashes the part that the manifests of all folders of a store share. Every commit record carries
// it, so a manifest of another store, or a changed one, is not believed.
uint64_t HashOfManifest(StoreManifest manifest);

// With a checksum over all of it. Ends with a newline.
std::string EncodeManifest(const StoreManifest& manifest);

// CorruptError for damage, foreign content and unknown versions; `source` names the file.
absl::StatusOr<StoreManifest> DecodeManifest(std::string_view text, std::string_view source);

}  // namespace forebay
