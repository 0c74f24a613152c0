// model.safetensors.index.json. What is accepted: docs/formats.md, "safetensors".
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/model/files/json_reader.h"
#include "forebay/model/files/safetensors.h"

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
  JsonReader reader;
  std::map<std::string, std::string, std::less<>> weight_map;
  auto position = weight_map.end();  // of the tensor whose file comes next
  JsonRule file_rule, weight_map_rule, unknown_rule, index_rule;
  file_rule.string = [&](std::string& file) {
    if (!IsBareFileName(file)) {
      return reader.Fail(fmt::format(
          "the file '{}' of tensor '{}' is not the bare name of a .safetensors file in the "
          "same folder, and nothing else is read",
          Printable(file), Printable(position->first)));
    }
    position->second = std::move(file);
    return true;
  };
  const auto refuse = [&](std::string problem) -> const JsonRule* {
    reader.Fail(std::move(problem));
    return nullptr;
  };
  weight_map_rule.member = [&](std::string& tensor) {
    bool added = false;
    std::tie(position, added) = weight_map.try_emplace(std::move(tensor));
    return added ? &file_rule
                 : refuse(fmt::format("tensor '{}' appears twice in weight_map",
                                      Printable(position->first)));
  };
  unknown_rule.any_depth = kMaxUnknownIndexDepth;
  bool has_weight_map = false;
  index_rule.member = [&](const std::string& key) -> const JsonRule* {
    if (key != "weight_map") return &unknown_rule;
    const bool seen = std::exchange(has_weight_map, true);
    return seen ? refuse("the key 'weight_map' appears twice") : &weight_map_rule;
  };
  index_rule.end = [&] {
    return !weight_map.empty() || reader.Fail("it has no weight_map that names tensors and files");
  };
  if (!reader.Read(text, index_rule)) {
    return BadInputError(
        fmt::format("{}: invalid: {}. Download the file again", source, reader.problem()));
  }
  return weight_map;
}

}  // namespace forebay
