// A folder of its own for a test, removed at its end. TMPDIR chooses where.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "forebay/base/check.h"
#include "forebay/base/file.h"

namespace forebay {

class TemporaryFolder {
 public:
  TemporaryFolder() : TemporaryFolder(std::filesystem::temp_directory_path()) {}
  explicit TemporaryFolder(const std::filesystem::path& parent) {
    path_ = (parent / "forebay-test-XXXXXX").string();
    FOREBAY_CHECK(::mkdtemp(path_.data()) != nullptr);
  }
  ~TemporaryFolder() { FOREBAY_CHECK(RemoveTree(path_).ok()); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return JoinPath(path_, name); }

 private:
  std::string path_;
};

}  // namespace forebay
