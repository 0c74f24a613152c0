// How memory is cut for registration with io_uring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace forebay {

// io_uring_register_buffers refuses a longer one (EFAULT).
inline constexpr int64_t kMaxIoPieceBytes = int64_t{1} << 30;

// `memory` in consecutive pieces of at most kMaxIoPieceBytes, cut at multiples of `unit_bytes`
// (what one transfer moves at most: a transfer can use a registered buffer only when it lies within
// one piece; units above 1 GiB are cut all the same). The first `huge_bytes` are in huge pages.
// They share no piece with the 4 KiB pages behind them, except in a unit that has both: the kernel
// treats a registered buffer as 2 MiB segments only when all of it is in huge pages.
std::vector<std::span<std::byte>> CutIoPieces(std::span<std::byte> memory, int64_t huge_bytes,
                                              int64_t unit_bytes);

}  // namespace forebay
