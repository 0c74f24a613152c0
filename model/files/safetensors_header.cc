// The header of a safetensors file. What is accepted: docs/formats.md, "safetensors".
#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/model/files/json_reader.h"
#include "forebay/model/files/safetensors.h"

namespace forebay {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors is little-endian, and so is what follows");

constexpr int64_t kLengthBytes = 8;
// Ours; published models have 10^5 tensors of 4 dimensions and names of 100 bytes at most.
constexpr size_t kMaxTensors = size_t{1} << 20;
constexpr size_t kMaxRank = 64;
constexpr size_t kMaxNameBytes = 4096;
constexpr int kMaxUnknownDepth =
    2;  // of unknown fields of an entry, which lies two levels deep itself

struct DTypeBits {
  std::string_view name;
  int bits;
};
constexpr DTypeBits kDTypes[] = {
    {"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6},
    {"F4", 4},      {"I16", 16},        {"U16", 16},        {"F16", 16},    {"BF16", 16},
    {"I32", 32},    {"U32", 32},        {"F32", 32},        {"I64", 64},    {"U64", 64},
    {"F64", 64},    {"C64", 64}};

// 0 for an unknown name.
int BitsOf(std::string_view dtype_name) {
  for (const DTypeBits& dtype : kDTypes) {
    if (dtype.name == dtype_name) return dtype.bits;
  }
  return 0;
}

bool HasControlCharacter(std::string_view name) {
  return std::any_of(name.begin(), name.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; });
}

class HeaderParser {
 public:
  HeaderParser(std::string_view json, int64_t data_bytes, std::string_view source)
      : json_(json), data_bytes_(data_bytes), source_(source) {
    header_rule_.member = [this](std::string& key) { return Member(key); };
    metadata_rule_.allows_null = true;
    metadata_rule_.member = [this](std::string& key) { return MetadataMember(key); };
    metadata_text_rule_.string = [this](std::string& text) {
      return MoveTo(*metadata_text_, text);
    };
    entry_rule_.member = [this](std::string& field) { return Field(field); };
    entry_rule_.end = [this] { return EndEntry(); };
    dtype_rule_.string = [this](std::string& text) { return MoveTo(entry_.dtype_name, text); };
    shape_rule_.element = &extent_rule_;
    extent_rule_.number = [this](int64_t extent) { return Extent(extent); };
    offsets_rule_.element = &offset_rule_;
    offset_rule_.number = [this](int64_t offset) { return Offset(offset); };
    offsets_rule_.end = [this] {
      return num_offsets_ == 2 || reader_.Fail("data_offsets needs two numbers");
    };
    unknown_rule_.any_depth = kMaxUnknownDepth;
  }

  absl::StatusOr<SafetensorsHeader> Parse() {
    if (!reader_.Read(json_, header_rule_)) {
      return BadInputError(fmt::format("{}: the safetensors header is invalid{}: {}. {}", source_,
                                       Where(), reader_.problem(), kAdvice));
    }
    FOREBAY_RETURN_IF_ERROR(CheckLayout());
    return std::move(header_);
  }

 private:
  static constexpr std::string_view kAdvice =
      "Download the file again, or save it again with the safetensors library";

  std::string Where() const {
    return entry_.name.empty()
               ? ""
               : fmt::format(", in the entry of tensor '{}'", Printable(entry_.name));
  }

  static bool MoveTo(std::string& target, std::string& text) {
    target = std::move(text);
    return true;
  }
  const JsonRule* Refuse(std::string problem) {
    reader_.Fail(std::move(problem));
    return nullptr;
  }

  const JsonRule* Member(std::string& key) {
    if (key.size() > kMaxNameBytes)
      return Refuse(fmt::format("a name has more than {} bytes", kMaxNameBytes));
    if (!names_.insert(key).second)
      return Refuse(fmt::format("the key '{}' appears twice", Printable(key)));
    if (key == "__metadata__") return &metadata_rule_;
    if (key.empty()) return Refuse("a tensor has an empty name");
    if (HasControlCharacter(key))
      return Refuse(fmt::format("the name '{}' has control characters", Printable(key)));
    if (header_.entries.size() >= kMaxTensors)
      return Refuse(fmt::format("there are more than {} tensors", kMaxTensors));
    entry_.name = std::move(key);
    return &entry_rule_;
  }

  const JsonRule* MetadataMember(std::string& key) {
    const auto [position, added] = header_.metadata.try_emplace(std::move(key));
    if (!added) {
      return Refuse(
          fmt::format("the key '{}' appears twice in __metadata__", Printable(position->first)));
    }
    metadata_text_ = &position->second;
    return &metadata_text_rule_;
  }

  const JsonRule* Field(std::string_view field) {
    const auto first_time = [&](bool& seen, const JsonRule& rule) {
      if (seen) return Refuse(fmt::format("the field '{}' appears twice", field));
      seen = true;
      return &rule;
    };
    if (field == "dtype") return first_time(has_dtype_, dtype_rule_);
    if (field == "shape") return first_time(has_shape_, shape_rule_);
    if (field == "data_offsets") return first_time(has_offsets_, offsets_rule_);
    return &unknown_rule_;
  }

  bool Extent(int64_t extent) {
    if (entry_.shape.size() >= kMaxRank)
      return reader_.Fail(fmt::format("it has more than {} dimensions", kMaxRank));
    entry_.shape.push_back(extent);
    return true;
  }

  bool Offset(int64_t offset) {
    if (++num_offsets_ > 2) return reader_.Fail("data_offsets has more than two numbers");
    (num_offsets_ == 1 ? entry_.begin_bytes : entry_.end_bytes) = offset;
    return true;
  }

  bool EndEntry() {
    if (!has_dtype_ || !has_shape_ || !has_offsets_)
      return reader_.Fail("it needs dtype, shape and data_offsets");
    if (!CheckSize(entry_)) return false;
    header_.entries.push_back(std::exchange(entry_, {}));
    has_dtype_ = has_shape_ = has_offsets_ = false;
    num_offsets_ = 0;
    return true;
  }

  // The size that dtype and shape give must be that of the byte range. Zero extents are left out of
  // the product, so that whether it overflows does not depend on their place.
  bool CheckSize(const SafetensorsEntry& entry) {
    const int bits = BitsOf(entry.dtype_name);
    if (bits == 0)
      return reader_.Fail(fmt::format("the dtype '{}' is unknown", Printable(entry.dtype_name)));
    int64_t size_bits = bits;
    bool empty = false;
    for (const int64_t extent : entry.shape) {
      empty = empty || extent == 0;
      if (extent != 0 && __builtin_mul_overflow(size_bits, extent, &size_bits)) {
        return reader_.Fail(
            fmt::format("the shape {} has too many elements", ToString(entry.shape)));
      }
    }
    if (empty) size_bits = 0;
    if (size_bits % 8 != 0) return reader_.Fail("its elements do not fill whole bytes");
    if (entry.begin_bytes > entry.end_bytes)
      return reader_.Fail("data_offsets ends before it begins");
    if (entry.end_bytes > data_bytes_) {
      return reader_.Fail(fmt::format("data_offsets ends at {}, but the file has {} bytes of data",
                                      entry.end_bytes, data_bytes_));
    }
    if (entry.end_bytes - entry.begin_bytes != size_bits / 8) {
      return reader_.Fail(fmt::format("{} of shape {} takes {} bytes, but data_offsets spans {}",
                                      entry.dtype_name, ToString(entry.shape), size_bits / 8,
                                      entry.end_bytes - entry.begin_bytes));
    }
    return true;
  }

  // Tensors must cover the data without holes or overlaps, so that no byte has two meanings and
  // none is hidden.
  absl::Status CheckLayout() {
    std::sort(header_.entries.begin(), header_.entries.end(), [](const auto& a, const auto& b) {
      return std::tie(a.begin_bytes, a.end_bytes, a.name) <
             std::tie(b.begin_bytes, b.end_bytes, b.name);
    });
    int64_t end = 0;
    for (const SafetensorsEntry& entry : header_.entries) {
      if (entry.begin_bytes != end) {
        return BadInputError(fmt::format(
            "{}: tensor '{}' begins at {} of the data, but the one before it ends at {}: "
            "tensors {}. {}",
            source_, Printable(entry.name), entry.begin_bytes, end,
            entry.begin_bytes < end ? "overlap" : "leave a hole", kAdvice));
      }
      end = entry.end_bytes;
    }
    if (end != data_bytes_) {
      return BadInputError(fmt::format(
          "{}: the tensors end at {} of the data, but the file has {} bytes of data. {}", source_,
          end, data_bytes_, kAdvice));
    }
    return absl::OkStatus();
  }

  const std::string_view json_;
  const int64_t data_bytes_;
  const std::string_view source_;
  JsonReader reader_;
  JsonRule header_rule_, metadata_rule_, metadata_text_rule_, entry_rule_, dtype_rule_, shape_rule_,
      extent_rule_, offsets_rule_, offset_rule_, unknown_rule_;
  std::string* metadata_text_ = nullptr;
  SafetensorsEntry entry_;  // that is being read
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int num_offsets_ = 0;
  std::unordered_set<std::string> names_;
  SafetensorsHeader header_;
};

}  // namespace

absl::StatusOr<int64_t> SafetensorsHeaderBytes(std::span<const std::byte> prefix,
                                               int64_t file_size_bytes, std::string_view source) {
  if (file_size_bytes < kLengthBytes || prefix.size() < static_cast<size_t>(kLengthBytes)) {
    return BadInputError(
        fmt::format("{}: {} bytes are too few for a safetensors file. Download it again", source,
                    file_size_bytes));
  }
  uint64_t length = 0;
  std::memcpy(&length, prefix.data(), sizeof(length));
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return BadInputError(
        fmt::format("{}: it says that its header has {} bytes; at most {} are accepted. This is no "
                    "safetensors file, or it is damaged",
                    source, length, kMaxSafetensorsHeaderBytes));
  }
  const auto header_bytes = static_cast<int64_t>(length);
  if (header_bytes > file_size_bytes - kLengthBytes) {
    return BadInputError(
        fmt::format("{}: its header has {} bytes, but the file ends after {}: it is truncated. "
                    "Download it again",
                    source, header_bytes, file_size_bytes));
  }
  return header_bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> prefix,
                                                         int64_t file_size_bytes,
                                                         std::string_view source) {
  FOREBAY_ASSIGN_OR_RETURN(const int64_t header_bytes,
                           SafetensorsHeaderBytes(prefix, file_size_bytes, source));
  const int64_t data_begin_bytes = kLengthBytes + header_bytes;
  if (static_cast<int64_t>(prefix.size()) < data_begin_bytes) {
    return BadInputError(fmt::format("{}: only {} of {} bytes of its header could be read", source,
                                     prefix.size(), data_begin_bytes));
  }
  const std::string_view json(reinterpret_cast<const char*>(prefix.data()) + kLengthBytes,
                              static_cast<size_t>(header_bytes));
  if (json.empty() || json.front() != '{') {
    return BadInputError(fmt::format(
        "{}: its header does not start with '{{'. This is no safetensors file, or it is "
        "damaged",
        source));
  }
  HeaderParser parser(json, file_size_bytes - data_begin_bytes, source);
  FOREBAY_ASSIGN_OR_RETURN(SafetensorsHeader header, parser.Parse());
  header.data_begin_bytes = data_begin_bytes;
  return header;
}

}  // namespace forebay
