// Which file systems are no disk.
#pragma once

#include <string>

namespace forebay {

// In a sentence, why figures from a file system of this name (base/file_system.h) are not those of
// a disk below it: the network, another program or other folders are in between. "": nothing known.
std::string WhatStandsBetween(const std::string& fs);

}  // namespace forebay
