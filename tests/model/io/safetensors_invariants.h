// What must hold of every header that ParseSafetensorsHeader accepts. Shared by the mutation test
// and the fuzz target.
#pragma once

#include <set>
#include <string>

#include "forebay/model/files/safetensors.h"

namespace forebay {

// "" when all hold.
inline std::string BrokenInvariant(const SafetensorsHeader& header, int64_t file_size_bytes) {
  if (header.data_begin_bytes < 8 || header.data_begin_bytes > file_size_bytes)
    return "data begins within the file";
  std::set<std::string> names;
  int64_t end = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.name.empty() || entry.name == "__metadata__") return "tensors have names";
    if (!names.insert(entry.name).second) return "names are unique";
    if (entry.begin_bytes != end || entry.end_bytes < end) return "tensors follow one another";
    end = entry.end_bytes;
    // In floating point, so that an overflow of integers cannot hide.
    double num_elems = 1;
    for (const int64_t extent : entry.shape) {
      if (extent < 0) return "extents are not negative";
      num_elems *= static_cast<double>(extent);
    }
    const double size_bytes = static_cast<double>(entry.end_bytes - entry.begin_bytes);
    if (num_elems * 0.5 > size_bytes || num_elems * 8 < size_bytes)
      return "the range fits the shape";
    if (entry.dtype_name == "F32" && num_elems * 4 != size_bytes)
      return "the range is that of the shape";
  }
  return end == file_size_bytes - header.data_begin_bytes ? "" : "tensors cover the file";
}

}  // namespace forebay
