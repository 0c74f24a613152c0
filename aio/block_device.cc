#include "forebay/aio/block_device.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>

#include "fmt/format.h"

namespace forebay {

std::string DeviceName(dev_t device) {
  const std::string number = fmt::format("{}:{}", ::major(device), ::minor(device));
  std::error_code error;
  // The link ends in the device's folder, whose name is the device's.
  const auto target = std::filesystem::read_symlink("/sys/dev/block/" + number, error);
  return error ? "device " + number : target.filename().string();
}

std::string DeviceNameOf(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 ? DeviceName(info.st_dev) : "unknown";
}

}  // namespace forebay
