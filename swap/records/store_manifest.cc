#include "forebay/swap/records/store_manifest.h"

#include <sys/random.h>

#include <cerrno>

#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"

namespace forebay {
namespace {

constexpr char kFormat[] = "forebay-store";
constexpr int64_t kManifestVersion = 6;
// A store with raw layers has this one, as a program that knows none must not take them for others.
// A store without them is what it always was.
constexpr int64_t kRawManifestVersion = 7;
constexpr char kChecksumKey[] = "xxh3_128";
constexpr int64_t kMaxElems = int64_t{1} << 48;

// Of the object without its checksum, as one line: blanks may change, values may not.
std::string ChecksumOf(Json json) {
  json.erase(kChecksumKey);
  return Xxh3_128Hex(json.dump());
}

bool FromHex(const std::string& hex, StoreUuid& uuid) {
  if (hex.size() != 2 * uuid.size()) return false;
  if (hex.find_first_not_of("0123456789abcdef") != std::string::npos) return false;
  for (size_t i = 0; i < uuid.size(); ++i) {
    uuid[i] = static_cast<uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return true;
}

int64_t VersionFor(const Inventory& inventory) {
  return inventory.has_raw_layer() ? kRawManifestVersion : kManifestVersion;
}

Json TensorToJson(const TensorSpec& tensor) {
  if (tensor.raw) {
    return {{"name", tensor.name},
            {"num_bytes", tensor.num_elems},
            {"offset_elems", tensor.offset_elems}};
  }
  return {{"name", tensor.name},
          {"shape", tensor.shape},
          {"role", tensor.role},
          {"decay", tensor.decay},
          {"offset_elems", tensor.offset_elems}};
}

Json LayersToJson(const Inventory& inventory) {
  Json layers = Json::array();
  for (const LayerSpec& layer : inventory.layers()) {
    Json tensors = Json::array();
    for (int i = 0; i < layer.num_tensors; ++i) {
      tensors.push_back(TensorToJson(inventory.tensors()[layer.first_tensor + i]));
    }
    Json& json = layers.emplace_back();
    json = {{"name", layer.name}, {"num_elems", layer.num_elems}};
    if (layer.raw) json["raw"] = true;
    json["tensors"] = std::move(tensors);
  }
  return layers;
}

// Whether the shape's element count is sane, so that no product of ours overflows.
bool IsSane(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return false;
  }
  return count <= kMaxElems;
}

// Whether tiles can be counted with int and bytes with int64: nothing that a model could need is
// more.
bool IsSane(const Inventory& inventory, int64_t tile_elems) {
  int64_t num_elems = 0;
  int64_t num_tiles = 0;
  for (const LayerSpec& layer : inventory.layers()) {
    num_elems += layer.num_elems;
    num_tiles += layer.num_elems / tile_elems + 2;
    if (num_elems > kMaxElems || num_tiles > std::numeric_limits<int>::max()) return false;
  }
  return true;
}

// Instead of an integer that is none: fits nowhere in a manifest.
constexpr int64_t kNoInteger = -1;

int64_t IntegerAt(const Json& object, const char* key) {
  return IntegerOf(object.at(key)).value_or(kNoInteger);
}

// With kNoInteger for an extent that is none, which no shape has.
Shape ShapeFromJson(const Json& json) {
  Shape shape;
  for (const Json& extent : json) shape.push_back(IntegerOf(extent).value_or(kNoInteger));
  return shape;
}

int64_t ElemsOf(const Inventory& inventory) {
  return inventory.num_params() + inventory.num_raw_bytes();
}

// The four below throw Json::exception on keys that are missing or of a wrong type, and return
// false on values that do not fit together.
bool RawTensorFromJson(const Json& tensor, Inventory& inventory) {
  const int64_t num_bytes = IntegerAt(tensor, "num_bytes");
  if (!IsSane(Shape{num_bytes})) return false;
  inventory.AddRaw(tensor.at("name").get<std::string>(), num_bytes);
  return true;
}

bool TensorFromJson(const Json& tensor, Inventory& inventory) {
  Shape shape = ShapeFromJson(tensor.at("shape"));
  const int64_t role = IntegerAt(tensor, "role");
  if (!IsSane(shape) || role < 0 || role > std::numeric_limits<int>::max()) return false;
  inventory.Add(tensor.at("name").get<std::string>(), std::move(shape), static_cast<int>(role),
                tensor.at("decay").get<bool>());
  return true;
}

bool LayersFromJson(const Json& layers, Inventory& inventory) {
  for (const Json& layer : layers) {
    const bool raw = layer.contains("raw");
    if (raw && layer.at("raw") != true) return false;
    auto name = layer.at("name").get<std::string>();
    if (raw) {
      inventory.BeginRawLayer(std::move(name));
    } else {
      inventory.BeginLayer(std::move(name));
    }
    for (const Json& tensor : layer.at("tensors")) {
      // So that no offset or sum of what follows overflows.
      if (ElemsOf(inventory) > kMaxElems) return false;
      if (!(raw ? RawTensorFromJson : TensorFromJson)(tensor, inventory)) return false;
    }
    const LayerSpec& spec = inventory.layers().back();
    for (int i = 0; i < spec.num_tensors; ++i) {
      const TensorSpec& tensor = inventory.tensors()[spec.first_tensor + i];
      if (tensor.offset_elems != IntegerAt(layer.at("tensors")[i], "offset_elems")) return false;
    }
    if (spec.num_elems != IntegerAt(layer, "num_elems")) return false;
  }
  return ElemsOf(inventory) > 0;
}

bool StripesFromJson(const Json& json, StoreManifest& manifest) {
  manifest.stripe_weights.clear();
  const Json& weights = json.at("stripe_weights");
  if (!weights.is_array()) return false;
  for (const Json& entry : weights) {
    const int64_t weight = IntegerOf(entry).value_or(kNoInteger);
    if (weight < 1 || weight > kMaxStripeWeight) return false;
    manifest.stripe_weights.push_back(weight);
  }
  const auto num_stripes = static_cast<int64_t>(manifest.stripe_weights.size());
  const int64_t stripe = IntegerAt(json, "stripe");
  if (num_stripes < 1 || num_stripes > kMaxStripes || stripe < 0 || stripe >= num_stripes) {
    return false;
  }
  manifest.stripe = static_cast<int>(stripe);
  return true;
}

Json MomentsToJson(MomentSet moments) {
  Json json = Json::array();
  if (moments.m) json.push_back("m");
  if (moments.v) json.push_back("v");
  return json;
}

bool MomentsFromJson(const Json& json, MomentSet& moments) {
  for (const bool m : {false, true}) {
    for (const bool v : {false, true}) {
      moments = {m, v};
      if (json == MomentsToJson(moments)) return true;
    }
  }
  return false;
}

bool FieldsFromJson(const Json& json, StoreManifest& manifest) {
  const std::optional<Layout> layout = LayoutOf(json.at("layout").get<std::string>());
  if (!layout.has_value() || !MomentsFromJson(json.at("moments"), manifest.moment_set)) {
    return false;
  }
  manifest.layout = *layout;
  manifest.tile_elems = IntegerAt(json, "tile_elems");
  const int64_t num_slots = IntegerAt(json, "slots");
  if (num_slots < 1 || num_slots > kMostSlots) return false;
  manifest.num_slots = static_cast<int>(num_slots);
  return FromHex(json.at("uuid").get<std::string>(), manifest.uuid) && manifest.tile_elems > 0 &&
         manifest.tile_elems % kLayerAlignElems == 0 && StripesFromJson(json, manifest) &&
         LayersFromJson(json.at("layers"), manifest.inventory) &&
         IsSane(manifest.inventory, manifest.tile_elems);
}

}  // namespace

absl::StatusOr<StoreUuid> NewStoreUuid() {
  StoreUuid uuid;
  if (::getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    return EnvironmentError("the kernel gave no random bytes for the store's identity: " +
                            ErrnoText(errno));
  }
  return uuid;
}

std::string ToHex(const StoreUuid& uuid) {
  std::string hex;
  for (const uint8_t byte : uuid) hex += fmt::format("{:02x}", byte);
  return hex;
}

std::string EncodeManifest(const StoreManifest& manifest) {
  Json json = {{"format", kFormat},
               {"version", VersionFor(manifest.inventory)},
               {"uuid", ToHex(manifest.uuid)},
               {"layout", NameOf(manifest.layout)},
               {"moments", MomentsToJson(manifest.moment_set)},
               {"tile_elems", manifest.tile_elems},
               {"slots", manifest.num_slots},
               {"stripe", manifest.stripe},
               {"stripe_weights", manifest.stripe_weights},
               {"layers", LayersToJson(manifest.inventory)}};
  json[kChecksumKey] = ChecksumOf(json);
  return json.dump(1) + "\n";
}

uint64_t HashOfManifest(StoreManifest manifest) {
  manifest.stripe = 0;
  const std::string text = EncodeManifest(manifest);
  return Xxh3_64(std::as_bytes(std::span(text)));
}

absl::StatusOr<StoreManifest> DecodeManifest(std::string_view text, std::string_view source) {
  const auto corrupt = [&](std::string_view why) {
    return CorruptError(fmt::format(
        "the manifest '{}' {}. Restore it from a copy, or start the run again", source, why));
  };
  const absl::StatusOr<Json> json = ParseJson(text, source);
  if (!json.ok()) return corrupt(fmt::format("is damaged ({})", MessageOf(json.status())));
  try {
    if (!json->is_object() || json->value("format", "") != kFormat) {
      return corrupt("is not that of a forebay store");
    }
    const int64_t version = IntegerAt(*json, "version");
    if (version == kNoInteger) return corrupt("has no valid version");
    if (version != kManifestVersion && version != kRawManifestVersion) {
      return CorruptError(
          fmt::format("the store of '{}' has format version {}; this program reads version {}, and "
                      "{} where tensors are raw. Use the forebay that wrote it",
                      source, version, kManifestVersion, kRawManifestVersion));
    }
    if (json->at(kChecksumKey).get<std::string>() != ChecksumOf(*json)) {
      return corrupt("is damaged: its checksum does not fit its contents");
    }
    StoreManifest manifest;
    if (!FieldsFromJson(*json, manifest) || version != VersionFor(manifest.inventory)) {
      return corrupt("has values that do not fit together");
    }
    return manifest;
  } catch (const Json::exception& error) {
    return corrupt(fmt::format("is damaged ({})", error.what()));
  }
}

}  // namespace forebay
