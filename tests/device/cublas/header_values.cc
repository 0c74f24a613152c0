// What device/cublaslt.h says of NVIDIA's cublasLt.h, which is compiled with it here. Nothing of it
// runs (wheels_test.py).
#include <cublasLt.h>

#include <type_traits>

#include "forebay/device/cublaslt.h"

namespace forebay {
namespace {

// ---- Values, and the types of attributes as the header's comments have them.
static_assert(CublasLt::kSuccess == CUBLAS_STATUS_SUCCESS);
static_assert(CublasLt::kInvalidValue == CUBLAS_STATUS_INVALID_VALUE);
static_assert(CublasLt::kF32 == CUDA_R_32F);
static_assert(CublasLt::kF16 == CUDA_R_16F);
static_assert(CublasLt::kBf16 == CUDA_R_16BF);
static_assert(CublasLt::kComputeF32 == CUBLAS_COMPUTE_32F);
static_assert(CublasLt::kComputeTf32 == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(CublasLt::kTransposeA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(CublasLt::kTransposeB == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(CublasLt::kEpilogue == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(CublasLt::kBiasPointer == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(CublasLt::kPlain == CUBLAS_OP_N);
static_assert(CublasLt::kTransposed == CUBLAS_OP_T);
static_assert(CublasLt::kNoEpilogue == CUBLASLT_EPILOGUE_DEFAULT);
static_assert(CublasLt::kAddBias == CUBLASLT_EPILOGUE_BIAS);
static_assert(CublasLt::kMostWorkspaceBytes == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(CublasLt::kReductionSchemes == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(CublasLt::kAlignmentOfA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(CublasLt::kAlignmentOfB == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(CublasLt::kAlignmentOfC == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(CublasLt::kAlignmentOfD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
static_assert(CublasLt::kReduceInOrder ==
              (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE));

// ---- Layouts of what is passed.
using Theirs = cublasLtMatmulHeuristicResult_t;
using Ours = CublasLt::Heuristic;
static_assert(sizeof(CublasLt::Algorithm) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(Ours) == sizeof(Theirs));
static_assert(offsetof(Ours, algorithm) == offsetof(Theirs, algo));
static_assert(offsetof(Ours, workspace_bytes) == offsetof(Theirs, workspaceSize));
static_assert(offsetof(Ours, status) == offsetof(Theirs, state));
static_assert(offsetof(Ours, waves) == offsetof(Theirs, wavesCount));

// ---- Parameters: as many, and of the same kind each. An enumeration is an int here, and a handle
// or a stream an untyped address.
template <typename T>
constexpr char KindOf() {
  if constexpr (std::is_pointer_v<T>) return 'p';
  if constexpr (std::is_enum_v<T>) return sizeof(T) == sizeof(int) ? 'i' : '?';
  if constexpr (std::is_integral_v<T>) return sizeof(T) == sizeof(int) ? 'i' : 'l';
  return '?';
}
template <typename Function>
struct Kinds;
template <typename Result, typename... Parameters>
struct Kinds<Result (*)(Parameters...)> {
  static constexpr char values[] = {KindOf<Result>(), KindOf<Parameters>()..., 0};
};
template <typename A, typename B>
constexpr bool AreAlike(A*, B*) {
  constexpr const auto& a = Kinds<A*>::values;
  constexpr const auto& b = Kinds<B*>::values;
  if constexpr (sizeof(a) != sizeof(b)) return false;
  for (size_t i = 0; i < sizeof(a); ++i) {
    if (a[i] != b[i] || a[i] == '?') return false;
  }
  return true;
}
#define FOREBAY_EXPECT_ALIKE(name) \
  static_assert(AreAlike(decltype(CublasLt::name)(nullptr), decltype (&cublasLt##name)(nullptr)))
FOREBAY_EXPECT_ALIKE(GetVersion);
FOREBAY_EXPECT_ALIKE(Create);
FOREBAY_EXPECT_ALIKE(Destroy);
FOREBAY_EXPECT_ALIKE(MatmulDescCreate);
FOREBAY_EXPECT_ALIKE(MatmulDescDestroy);
FOREBAY_EXPECT_ALIKE(MatmulDescSetAttribute);
FOREBAY_EXPECT_ALIKE(MatrixLayoutCreate);
FOREBAY_EXPECT_ALIKE(MatrixLayoutDestroy);
FOREBAY_EXPECT_ALIKE(MatmulPreferenceCreate);
FOREBAY_EXPECT_ALIKE(MatmulPreferenceDestroy);
FOREBAY_EXPECT_ALIKE(MatmulPreferenceSetAttribute);
FOREBAY_EXPECT_ALIKE(MatmulAlgoGetHeuristic);
FOREBAY_EXPECT_ALIKE(MatmulAlgoCheck);
FOREBAY_EXPECT_ALIKE(Matmul);
#undef FOREBAY_EXPECT_ALIKE

}  // namespace
}  // namespace forebay
