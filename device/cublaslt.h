// The functions of cuBLASLt that forebay calls, found when a GPU is first used: so nothing is
// linked with it, and none of NVIDIA's headers is needed (its library has 541 MB). Types and values
// are those of cublasLt.h of CUDA 12 and 13.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace forebay {

struct CublasLt {
  using Handle = void*;
  using MatmulDesc = void*;
  using Layout = void*;
  using Preference = void*;
  // May be kept and used again, by the same version of the library alone.
  struct Algorithm {
    uint64_t data[8];
    auto operator<=>(const Algorithm&) const = default;
  };
  struct Heuristic {
    Algorithm algorithm;
    size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
  };
  static constexpr int kSuccess = 0;
  static constexpr int kInvalidValue = 7;
  // cudaDataType
  static constexpr int kF32 = 0;
  static constexpr int kF16 = 2;
  static constexpr int kBf16 = 14;
  // cublasComputeType_t
  static constexpr int kComputeF32 = 68;
  static constexpr int kComputeTf32 = 77;
  // Attributes of cublasLtMatmulDesc_t: int32, int32, uint32 and an address. cublasOperation_t,
  // cublasLtEpilogue_t.
  static constexpr int kTransposeA = 3;
  static constexpr int kTransposeB = 4;
  static constexpr int kEpilogue = 7;
  static constexpr int kBiasPointer = 8;
  static constexpr int32_t kPlain = 0;
  static constexpr int32_t kTransposed = 1;
  static constexpr uint32_t kNoEpilogue = 1;
  static constexpr uint32_t kAddBias = 4;
  // Attributes of cublasLtMatmulPreference_t: uint64, and uint32 for the others. Alignments are
  // those of addresses, 256 where nothing is said.
  static constexpr int kMostWorkspaceBytes = 1;
  static constexpr int kReductionSchemes = 3;
  static constexpr int kAlignmentOfA = 5;
  static constexpr int kAlignmentOfB = 6;
  static constexpr int kAlignmentOfC = 7;
  static constexpr int kAlignmentOfD = 8;
  // Sums of parts go through a workspace, in one order: any other scheme may add as parts come.
  static constexpr uint32_t kReduceInOrder = 2 | 4;

  size_t (*GetVersion)();  // 130001 is 13.0.1
  int (*Create)(Handle*);
  int (*Destroy)(Handle);
  int (*MatmulDescCreate)(MatmulDesc*, int compute, int scale_type);
  int (*MatmulDescDestroy)(MatmulDesc);
  int (*MatmulDescSetAttribute)(MatmulDesc, int attribute, const void* value, size_t size);
  int (*MatrixLayoutCreate)(Layout*, int type, uint64_t rows, uint64_t columns, int64_t stride);
  int (*MatrixLayoutDestroy)(Layout);
  int (*MatmulPreferenceCreate)(Preference*);
  int (*MatmulPreferenceDestroy)(Preference);
  int (*MatmulPreferenceSetAttribute)(Preference, int attribute, const void* value, size_t size);
  int (*MatmulAlgoGetHeuristic)(Handle, MatmulDesc, Layout a, Layout b, Layout c, Layout d,
                                Preference, int most, Heuristic*, int* found);
  // Whether the product can be had by an algorithm, and what that takes.
  int (*MatmulAlgoCheck)(Handle, MatmulDesc, Layout a, Layout b, Layout c, Layout d,
                         const Algorithm*, Heuristic*);
  int (*Matmul)(Handle, MatmulDesc, const void* alpha, const void* a, Layout, const void* b, Layout,
                const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*,
                void* workspace, size_t workspace_bytes, void* stream);
};

// The library: the one that FOREBAY_CUBLASLT names, or else the first of the loader's, of a CUDA
// Toolkit, and of the Python packages that PyTorch brings (of an active environment, and of the
// user). It is opened once. EnvironmentError, which says where it was looked for. Thread-safe.
absl::StatusOr<const CublasLt*> LoadCublasLt();
// The file that LoadCublasLt opened, or its error.
absl::StatusOr<std::string> CublasLtFile();

}  // namespace forebay
