// model.safetensors.index.json. What is accepted: docs/formats.md, "safetensors".
#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/model/json_scanner.h"
#include "forebay/model/safetensors.h"

namespace forebay {
namespace {

constexpr size_t kMaxFileNameBytes = 255;  // NAME_MAX
constexpr int kMaxUnknownIndexDepth = 8;

// Whether `name` can only be a file of the model's own folder.
bool IsBareFileName(std::string_view name) {
  if (name.size() > kMaxFileNameBytes || !name.ends_with(".safetensors") || name.front() == '.')
    return false;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '/' || c == '\\' || byte < 0x20 || byte == 0x7F) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string, std::less<>>> ParseSafetensorsIndex(
    std::string_view text, std::string_view source) {
  JsonScanner scanner(text);
  std::map<std::string, std::string, std::less<>> weight_map;
  bool has_weight_map = false;
  const auto add_tensor = [&](std::string name) {
    std::string file;
    if (!scanner.String(&file)) return false;
    if (!IsBareFileName(file)) {
      return scanner.Fail(fmt::format(
          "the file '{}' of tensor '{}' is not the bare name of a .safetensors file in the "
          "same folder, and nothing else is read",
          Printable(file), Printable(name)));
    }
    const auto [position, added] = weight_map.try_emplace(std::move(name), std::move(file));
    return added || scanner.Fail(fmt::format("tensor '{}' appears twice in weight_map",
                                             Printable(position->first)));
  };
  const bool parsed = scanner.Object([&](const std::string& key) {
    if (key != "weight_map") return scanner.SkipValue(kMaxUnknownIndexDepth);
    if (has_weight_map) return scanner.Fail("the key 'weight_map' appears twice");
    has_weight_map = true;
    return scanner.Object(add_tensor);
  });
  if (parsed && scanner.End() && weight_map.empty())
    scanner.Fail("it has no weight_map that names tensors and files");
  if (!scanner.ok()) {
    return BadInputError(fmt::format("{}: invalid at byte {}: {}. Download the file again", source,
                                     scanner.offset(), scanner.problem()));
  }
  return weight_map;
}

}  // namespace forebay
