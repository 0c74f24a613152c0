#include "forebay/train/export/export_weights.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/model/files/convert_floats.h"
#include "forebay/model/files/safetensors.h"

namespace forebay {
namespace {

// The elements of a tensor, in order, as bytes of the file.
class ChunkReader {
 public:
  ChunkReader(const WeightsSource& source, DType dtype)
      : source_(source),
        dtype_(dtype),
        is_stored_(dtype == DType::kBF16 && WeightDType(source.layout()) == dtype),
        chunk_elems_(kExportChunkBytes / (4 + SizeOf(dtype))),
        masters_(is_stored_ ? 0 : chunk_elems_),
        bytes_(chunk_elems_ * SizeOf(dtype)) {}

  int64_t chunk_elems() const { return chunk_elems_; }

  // Valid until the next call. Requires: count <= chunk_elems().
  absl::StatusOr<std::span<const std::byte>> Read(const TensorSpec& tensor, int64_t first_elem,
                                                  int64_t count) {
    const std::span<std::byte> bytes = std::span(bytes_).first(count * SizeOf(dtype_));
    if (is_stored_) {
      const std::span w16(reinterpret_cast<uint16_t*>(bytes.data()), count);
      FOREBAY_RETURN_IF_ERROR(source_.ReadW16(tensor, first_elem, w16));
      return bytes;
    }
    const std::span<float> masters = std::span(masters_).first(count);
    FOREBAY_RETURN_IF_ERROR(source_.ReadMasters(tensor, first_elem, masters));
    if (dtype_ == DType::kF16) FOREBAY_RETURN_IF_ERROR(CheckFitsFp16(tensor, masters));
    ConvertF32(masters, dtype_, bytes);
    return bytes;
  }

 private:
  static absl::Status CheckFitsFp16(const TensorSpec& tensor, std::span<const float> masters) {
    const std::optional<float> too_large = FirstBeyondFp16(masters);
    if (!too_large.has_value()) return absl::OkStatus();
    return UsageError(fmt::format(
        "'{}' has a weight of {}, and fp16 ends at {}. Export the model as bf16 or fp32: 'forebay "
        "export RUN --dtype=bf16'",
        tensor.name, *too_large, kLargestFp16));
  }

  const WeightsSource& source_;
  const DType dtype_;
  const bool is_stored_;  // as w16
  const int64_t chunk_elems_;
  std::vector<float> masters_;
  std::vector<std::byte> bytes_;
};

std::vector<const TensorSpec*> TensorsByName(const WeightsSource& source) {
  std::vector<const TensorSpec*> tensors;
  for (const TensorSpec& tensor : source.inventory().tensors()) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, &TensorSpec::name);
  return tensors;
}

// Calls take(bytes, done_elems) for each chunk of each tensor.
template <typename Take>
absl::Status ForEachChunk(const WeightsSource& source, DType dtype, const Take& take) {
  ChunkReader reader(source, dtype);
  int64_t done = 0;
  for (const TensorSpec* tensor : TensorsByName(source)) {
    for (int64_t first = 0; first < tensor->num_elems; first += reader.chunk_elems()) {
      const int64_t count = std::min(reader.chunk_elems(), tensor->num_elems - first);
      FOREBAY_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                               reader.Read(*tensor, first, count));
      done += count;
      FOREBAY_RETURN_IF_ERROR(take(bytes, done));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> WriteWeights(const WeightsSource& source, DType dtype,
                                         const std::string& path,
                                         const std::function<absl::Status(double)>& progress) {
  std::vector<SafetensorsWriter::Planned> planned;
  for (const TensorSpec* tensor : TensorsByName(source)) {
    planned.push_back({tensor->name, dtype, tensor->shape});
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(path, planned, {{"format", "pt"}}));
  const auto all = static_cast<double>(source.inventory().num_params());
  const auto write = [&](std::span<const std::byte> bytes, int64_t done) -> absl::Status {
    FOREBAY_RETURN_IF_ERROR(writer->Append(bytes));
    return progress(static_cast<double>(done) / all);
  };
  FOREBAY_RETURN_IF_ERROR(ForEachChunk(source, dtype, write));
  return writer->Finish();
}

absl::Status ReadAllWeights(const WeightsSource& source, DType dtype) {
  return ForEachChunk(source, dtype,
                      [](std::span<const std::byte>, int64_t) { return absl::OkStatus(); });
}

}  // namespace forebay
