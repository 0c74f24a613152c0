// A DeepSpeed configuration read by the table of keys: what is used, and what is to be said of the
// rest. forebay.deepspeed reads documents by the same rules, in the same words
// (python/forebay/deepspeed/_table.py).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "forebay/base/json.h"

namespace forebay {

// Thread-compatible.
class DeepSpeedValues {
 public:
  // Reads `document` by the keys of one section. `section`: its path with a dot at the end, or
  // empty.
  void Take(const Json& document, const Json& keys, const std::string& section);

  // What the document says, or the default of `keys` (the table's); null: neither.
  Json Get(const std::string& path) const;
  bool IsSaid(const std::string& path) const { return used_.contains(path); }
  bool IsAuto(const std::string& path) const { return autos_.contains(path); }
  std::vector<std::string> Autos() const;  // as the document calls them
  // The keys of a section that are said, or have a default in `keys`.
  Json Under(const std::string& section, const Json& keys) const;

  std::vector<std::string> notes;     // of what is ignored
  std::vector<std::string> problems;  // each with the key, its value and the cure

 private:
  struct Place {
    const Json& keys;     // of the section
    std::string section;  // its path
    std::string path;     // of the key
    std::string said;     // the same, as it is written
  };
  void Visit(const Json& node, const Place& place, const Json& given);
  void TakeSection(const Json& keys, const Place& place, const Json& value);
  void TakeValue(const Json& node, const Place& place, const Json& value);
  void TakeKeys(const Json& document, const Json& keys, const std::string& section,
                const std::string& said);

  std::map<std::string, Json> used_;          // by path
  std::map<std::string, std::string> said_;   // how the document calls them
  std::map<std::string, std::string> autos_;  // the same of keys that are "auto", and so not said
};

}  // namespace forebay
