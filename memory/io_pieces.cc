#include "forebay/memory/io_pieces.h"

#include <algorithm>

#include "forebay/base/check.h"

namespace forebay {
namespace {

void Cut(std::span<std::byte> memory, int64_t step_bytes,
         std::vector<std::span<std::byte>>& pieces) {
  while (!memory.empty()) {
    const size_t size = std::min(memory.size(), static_cast<size_t>(step_bytes));
    pieces.push_back(memory.first(size));
    memory = memory.subspan(size);
  }
}

}  // namespace

std::vector<std::span<std::byte>> CutIoPieces(std::span<std::byte> memory, int64_t huge_bytes,
                                              int64_t unit_bytes) {
  FOREBAY_CHECK(huge_bytes >= 0 && unit_bytes > 0);
  const int64_t step_bytes = unit_bytes <= kMaxIoPieceBytes
                                 ? kMaxIoPieceBytes / unit_bytes * unit_bytes
                                 : kMaxIoPieceBytes;
  const auto huge_units_bytes = static_cast<size_t>(huge_bytes / unit_bytes * unit_bytes);
  const size_t body = std::min(memory.size(), huge_units_bytes);
  std::vector<std::span<std::byte>> pieces;
  Cut(memory.first(body), step_bytes, pieces);
  Cut(memory.subspan(body), step_bytes, pieces);
  return pieces;
}

}  // namespace forebay
