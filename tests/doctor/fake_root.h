// The files of /proc and /sys of a machine that is not there.
#pragma once

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"

namespace forebay {

class FakeRoot {
 public:
  const std::string& path() const { return folder_.path(); }

  void Write(const std::string& name, std::string_view text) {
    const std::string file = path() + name;
    FOREBAY_CHECK(MakeDirectories(file.substr(0, file.rfind('/'))).ok());
    FOREBAY_CHECK(WriteFileAtomically(file, text).ok());
  }
  void MakeFolder(const std::string& name) { FOREBAY_CHECK(MakeDirectories(path() + name).ok()); }
  // Both names in the root.
  void Link(const std::string& name, const std::string& target) {
    std::filesystem::create_directories(std::filesystem::path(path() + name).parent_path());
    std::filesystem::create_directory_symlink(path() + target, path() + name);
  }
  // The device that the files of `folder`, a real one, are on is to be the one in `device`.
  void PutOnDevice(const std::string& folder, const std::string& device, std::string_view fs,
                   std::string_view options) {
    struct stat info = {};
    FOREBAY_CHECK(::stat(folder.c_str(), &info) == 0);
    const std::string number = fmt::format("{}:{}", ::major(info.st_dev), ::minor(info.st_dev));
    Link("/sys/dev/block/" + number, device);
    Write("/proc/self/mountinfo",
          fmt::format("30 1 {} / / {} shared:1 - {} /dev/disk rw\n", number, options, fs));
  }

 private:
  const TemporaryFolder folder_;
};

}  // namespace forebay
