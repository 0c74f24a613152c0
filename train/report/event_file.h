// Files that TensorBoard reads: records of TensorFlow's TFRecord format, each an Event of its
// protocol buffers (tensorflow/core/util/event.proto), of which scalars are all that is written
// here. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace forebay {

// CRC-32C (Castagnoli) of `data`, and as a TFRecord has it: rotated right by 15, plus 0xa282ead8.
uint32_t Crc32c(std::string_view data);
uint32_t MaskedCrc32c(std::string_view data);

class EventFile {
 public:
  // Begins with the record that says the version. Times are seconds since 1970.
  explicit EventFile(double time_s);
  // One event. Values are stored as fp32.
  void Add(double time_s, int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  const std::string& contents() const { return contents_; }

 private:
  void AddRecord(std::string_view event);

  std::string contents_;
};

}  // namespace forebay
