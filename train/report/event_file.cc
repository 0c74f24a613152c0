#include "forebay/train/report/event_file.h"

#include <array>
#include <bit>
#include <type_traits>

namespace forebay {
namespace {

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78U : 0U);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

// Field numbers, with the wire type in the lowest three bits.
constexpr char kEventTime = 1 << 3 | 1;
constexpr char kEventStep = 2 << 3 | 0;
constexpr char kEventVersion = 3 << 3 | 2;
constexpr char kEventSummary = 5 << 3 | 2;
constexpr char kSummaryValue = 1 << 3 | 2;
constexpr char kValueTag = 1 << 3 | 2;
constexpr char kValueSimple = 2 << 3 | 5;

template <typename T>
void AppendLittleEndian(T value, std::string& bytes) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes += static_cast<char>(static_cast<uint8_t>(value >> (8 * i)));
  }
}

void AppendVarint(uint64_t value, std::string& bytes) {
  for (; value >= 128; value >>= 7) bytes += static_cast<char>(value | 128);
  bytes += static_cast<char>(value);
}

void AppendField(char field, std::string_view value, std::string& bytes) {
  bytes += field;
  AppendVarint(value.size(), bytes);
  bytes += value;
}

std::string EventAt(double time_s) {
  std::string event(1, kEventTime);
  AppendLittleEndian(std::bit_cast<uint64_t>(time_s), event);
  return event;
}

}  // namespace

uint32_t Crc32c(std::string_view data) {
  uint32_t crc = ~0U;
  for (const char c : data) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 255];
  return ~crc;
}

uint32_t MaskedCrc32c(std::string_view data) {
  return std::rotr(Crc32c(data), 15) + 0xa282ead8U;
}

EventFile::EventFile(double time_s) {
  std::string event = EventAt(time_s);
  AppendField(kEventVersion, "brain.Event:2", event);
  AddRecord(event);
}

void EventFile::Add(double time_s, int64_t step,
                    const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    AppendField(kValueTag, tag, value);
    value += kValueSimple;
    AppendLittleEndian(std::bit_cast<uint32_t>(static_cast<float>(number)), value);
    AppendField(kSummaryValue, value, summary);
  }
  std::string event = EventAt(time_s);
  event += kEventStep;
  AppendVarint(static_cast<uint64_t>(step), event);
  AppendField(kEventSummary, summary, event);
  AddRecord(event);
}

// The length, its checksum, the event, its checksum.
void EventFile::AddRecord(std::string_view event) {
  std::string length;
  AppendLittleEndian(static_cast<uint64_t>(event.size()), length);
  contents_ += length;
  AppendLittleEndian(MaskedCrc32c(length), contents_);
  contents_ += event;
  AppendLittleEndian(MaskedCrc32c(event), contents_);
}

}  // namespace forebay
