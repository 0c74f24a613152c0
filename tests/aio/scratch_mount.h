// A small file system in a file, mounted where only the calling process sees it. Needs root and
// loop devices; says why it could not.
#pragma once

#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"

namespace forebay {

struct ScratchMount {
  std::string image;  // made, with this size
  int64_t image_bytes = int64_t{64} << 20;
  std::string directory;           // exists; the file system appears there
  uint32_t sector_bytes = 512;     // of the loop device
  std::string mount_options = "";  // of ext4
  std::string features = "";       // of mkfs.ext4 -O: "^extent"
};

// "" when an ext4 is mounted, else why it cannot be. Call it in a child process (InChild): the
// mount ends with the process.
inline std::string MountScratch(const ScratchMount& wanted) {
  if (::geteuid() != 0) return "mounting needs root";
  if (::unshare(CLONE_NEWNS) != 0) return "no private mounts here: " + ErrnoText(errno);
  ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
  const UniqueFd image(::open(wanted.image.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!image.valid() || ::ftruncate(image.get(), wanted.image_bytes) != 0) {
    return "making the image failed: " + ErrnoText(errno);
  }
  const std::string features = wanted.features.empty() ? "" : "-O '" + wanted.features + "' ";
  const std::string make =
      "mkfs.ext4 -q -F -b 4096 " + features + "'" + wanted.image + "' >/dev/null 2>&1";
  if (std::system(make.c_str()) != 0) return "there is no mkfs.ext4 that works";
  const UniqueFd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control.valid()) return "no loop devices: " + ErrnoText(errno);
  const int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
  const std::string device = "/dev/loop" + std::to_string(number);
  const UniqueFd loop(::open(device.c_str(), O_RDWR | O_CLOEXEC));
  if (!loop.valid()) return "opening " + device + " failed: " + ErrnoText(errno);
  struct loop_config config = {};
  config.fd = static_cast<uint32_t>(image.get());
  config.block_size = wanted.sector_bytes;
  config.info.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
  if (::ioctl(loop.get(), LOOP_CONFIGURE, &config) != 0) {
    return "setting up " + device + " failed: " + ErrnoText(errno);
  }
  if (::mount(device.c_str(), wanted.directory.c_str(), "ext4", 0, wanted.mount_options.c_str()) !=
      0) {
    return "mounting " + device + " failed: " + ErrnoText(errno);
  }
  return "";
}

}  // namespace forebay
