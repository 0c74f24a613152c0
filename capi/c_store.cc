#include "forebay/capi/c_store.h"

#include <array>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/capi/c_status.h"

namespace forebay::capi {

absl::StatusOr<std::vector<std::string>> FoldersOf(const char* const* folders, size_t num_folders) {
  FOREBAY_RETURN_IF_ERROR(CheckPointer(folders, "folders"));
  std::vector<std::string> paths;
  for (size_t i = 0; i < num_folders; ++i) {
    FOREBAY_RETURN_IF_ERROR(CheckPointer(folders[i], "a folder"));
    paths.emplace_back(folders[i]);
  }
  return AbsolutePaths(paths);
}

absl::StatusOr<EngineKind> EngineOf(int32_t engine) {
  return Choice(engine,
                std::array{EngineKind::kAuto, EngineKind::kIoUring, EngineKind::kLibaio,
                           EngineKind::kThreads},
                "engine");
}

Layout LayoutOf(DType dtype) {
  return dtype == DType::kF32    ? Layout::kFp32
         : dtype == DType::kBF16 ? Layout::kBf16
                                 : Layout::kFp16;
}

absl::StatusOr<TensorPlane> PlaneOf(int32_t plane) {
  return Choice(plane,
                std::array{TensorPlane::kMaster, TensorPlane::kM, TensorPlane::kV,
                           TensorPlane::kW16, TensorPlane::kRaw},
                "plane");
}

absl::StatusOr<const TensorSpec*> TensorOf(const Inventory& inventory, int32_t tensor) {
  const std::vector<TensorSpec>& tensors = inventory.tensors();
  if (tensor >= 0 && tensor < static_cast<int32_t>(tensors.size())) {
    return &tensors[static_cast<size_t>(tensor)];
  }
  return UsageError(fmt::format("there is no tensor {}: there are {}", tensor, tensors.size()));
}

absl::Status CheckRange(const TensorSpec& spec, int64_t first, int64_t num_elems) {
  if (first >= 0 && num_elems >= 0 && first <= spec.num_elems &&
      num_elems <= spec.num_elems - first) {
    return absl::OkStatus();
  }
  return UsageError(fmt::format("'{}' has {} elements, and {} are asked for from {} on", spec.name,
                                spec.num_elems, num_elems, first));
}

}  // namespace forebay::capi
