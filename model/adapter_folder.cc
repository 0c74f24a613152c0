#include "forebay/model/adapter_folder.h"

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"

namespace forebay {

absl::Status RefuseAdapter(const std::string& directory) {
  const std::string path = JoinPath(directory, "adapter_config.json");
  if (!FileExists(path)) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path, kMaxConfigFileBytes));
  constexpr char kBase[] = "base_model_name_or_path";
  const bool has_base = json.is_object() && json.contains(kBase) && json[kBase].is_string();
  return BadInputError(fmt::format(
      "'{}' has an adapter (adapter_config.json) and no model: merge it with the model that it was "
      "made for{} (merge_and_unload of PEFT, then save_pretrained)",
      directory, has_base ? fmt::format(", '{}'", json[kBase].get<std::string>()) : ""));
}

}  // namespace forebay
