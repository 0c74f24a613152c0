// The weights of a committed step as a safetensors file, a chunk of a tensor at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/swap/records/tile_seals.h"
#include "forebay/train/export/weights_source.h"

namespace forebay {

// What WriteWeights reads at once, with what it makes of it.
inline constexpr int64_t kExportChunkBytes = int64_t{4} << 20;
// What it allocates at most, for budgets: its chunk, and the part of a tile that it is read from.
inline constexpr int64_t kExportBytes = kExportChunkBytes + kSealElems * 4;

// Makes the file `path`: the tensors in the order of their Hugging Face names, all as `dtype`. BF16
// of the layout bf16 are w16 as they are stored; everything else is of the fp32 masters, rounded to
// nearest, ties to even. Returns the digest of the file. UsageError where a weight is too large for
// FP16; the errors of SafetensorsWriter and of the source. `progress(fraction)`: its error ends it.
absl::StatusOr<std::string> WriteWeights(const WeightsSource& source, DType dtype,
                                         const std::string& path,
                                         const std::function<absl::Status(double)>& progress);
// Makes the reads that WriteWeights makes, and nothing of them. UsageError as there; the errors of
// the source.
absl::Status ReadAllWeights(const WeightsSource& source, DType dtype);

}  // namespace forebay
