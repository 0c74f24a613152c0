#include "forebay/train/export.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/model/model_folder.h"
#include "forebay/model/safetensors.h"

namespace forebay {
namespace {

constexpr int64_t kExportChunkElems = int64_t{1} << 20;

absl::Status WriteTensor(TensorStore& store, const TensorSpec& tensor, SafetensorsWriter& writer,
                         std::vector<float>& chunk) {
  const bool bf16 = store.tiles().layout() == Layout::kBf16;
  for (int64_t first = 0; first < tensor.num_elems; first += kExportChunkElems) {
    const int64_t count = std::min(kExportChunkElems, tensor.num_elems - first);
    if (bf16) {
      const std::span<uint16_t> out(reinterpret_cast<uint16_t*>(chunk.data()), count);
      FOREBAY_RETURN_IF_ERROR(store.ReadTensorW16(tensor, first, out));
      FOREBAY_RETURN_IF_ERROR(writer.Append(std::as_bytes(out)));
    } else {
      const std::span<float> out(chunk.data(), count);
      FOREBAY_RETURN_IF_ERROR(store.ReadTensor(tensor, Plane::kMaster, first, out));
      FOREBAY_RETURN_IF_ERROR(writer.Append(std::as_bytes(out)));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteWeights(TensorStore& store, const std::string& directory,
                          const std::function<void(double)>& progress) {
  const DType dtype = WeightDType(store.tiles().layout());
  std::vector<const TensorSpec*> tensors;
  for (const TensorSpec& tensor : store.inventory().tensors()) tensors.push_back(&tensor);
  std::ranges::sort(tensors, {}, &TensorSpec::name);
  std::vector<SafetensorsWriter::Planned> planned;
  for (const TensorSpec* tensor : tensors) planned.push_back({tensor->name, dtype, tensor->shape});
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(JoinPath(directory, "model.safetensors"),
                                                     planned, {{"format", "pt"}}));
  std::vector<float> chunk(kExportChunkElems);
  int64_t done = 0;
  for (const TensorSpec* tensor : tensors) {
    FOREBAY_RETURN_IF_ERROR(WriteTensor(store, *tensor, *writer, chunk));
    done += tensor->num_elems;
    progress(static_cast<double>(done) / static_cast<double>(store.inventory().num_params()));
  }
  return writer->Finish();
}

// `from` takes the place of `to`. There is a moment without `to` when one existed; never one with
// half of it.
absl::Status ReplaceDirectory(const std::string& from, const std::string& to) {
  FOREBAY_RETURN_IF_ERROR(RemoveTree(to));
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    return StorageError(fmt::format("renaming '{}' to '{}' failed", from, to), errno);
  }
  const std::string parent = std::filesystem::path(to).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

// The exports of a run with their steps, oldest first.
absl::StatusOr<std::vector<std::pair<int64_t, std::string>>> ExportsIn(
    const std::string& exports_directory) {
  constexpr std::string_view kPrefix = "step-";
  std::vector<std::pair<int64_t, std::string>> exports;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(exports_directory));
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix)) continue;
    int64_t step = 0;
    const char* end = name.data() + name.size();
    const auto [rest, code] = std::from_chars(name.data() + kPrefix.size(), end, step);
    if (code == std::errc() && rest == end) {
      exports.emplace_back(step, JoinPath(exports_directory, name));
    }
  }
  std::ranges::sort(exports);
  return exports;
}

}  // namespace

absl::Status ExportModel(TensorStore& store, const std::string& model_directory,
                         const std::string& destination,
                         const std::function<void(double)>& progress) {
  const std::string temporary = destination + ".tmp";
  FOREBAY_RETURN_IF_ERROR(RemoveTree(temporary));
  FOREBAY_RETURN_IF_ERROR(MakeDirectories(temporary));
  FOREBAY_RETURN_IF_ERROR(WriteWeights(store, temporary, progress));
  FOREBAY_RETURN_IF_ERROR(
      CopySidecarFiles(model_directory, temporary, WeightDType(store.tiles().layout())));
  FOREBAY_RETURN_IF_ERROR(SyncDirectory(temporary));
  return ReplaceDirectory(temporary, destination);
}

absl::StatusOr<std::optional<std::string>> NewestExport(const std::string& exports_directory) {
  FOREBAY_ASSIGN_OR_RETURN(const auto exports, ExportsIn(exports_directory));
  if (exports.empty()) return std::nullopt;
  return exports.back().second;
}

absl::Status PruneExports(const std::string& exports_directory, int64_t keep) {
  FOREBAY_ASSIGN_OR_RETURN(const auto exports, ExportsIn(exports_directory));
  for (size_t i = 0; static_cast<int64_t>(exports.size() - i) > keep; ++i) {
    FOREBAY_RETURN_IF_ERROR(RemoveTree(exports[i].second));
  }
  return absl::OkStatus();
}

}  // namespace forebay
