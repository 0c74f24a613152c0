// cuBLASLt's matrix products as loops on the emulated GPU. There are two algorithms for each, which
// add in orders of their own: so results tell which of them it was.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "forebay/base/bfloat16.h"
#include "forebay/device/cublaslt.h"
#include "forebay/device/emulation/counters.h"
#include "forebay/device/emulation/kernel_twin.h"
#include "forebay/device/emulation/options.h"

namespace forebay {
namespace {

using emulation::Die;
using emulation::TheOptions;

struct Description {
  int32_t transpose_a = CublasLt::kPlain;
  int32_t transpose_b = CublasLt::kPlain;
  uint32_t epilogue = CublasLt::kNoEpilogue;
  const void* bias = nullptr;
};

// Bytes that the addresses of a, b, c and d are multiples of: what an algorithm is chosen for.
struct Alignments {
  uint32_t of[4] = {256, 256, 256, 256};
};

constexpr int kNumAlgorithms = 2;

// Lies in a CublasLt::Algorithm.
struct Choice {
  Alignments alignments;
  uint64_t version;  // of the library, which takes no other's
  int64_t number;
};
static_assert(sizeof(Choice) <= sizeof(CublasLt::Algorithm));
Choice ChoiceOf(const CublasLt::Algorithm& algorithm) {
  Choice choice;
  std::memcpy(static_cast<void*>(&choice), &algorithm, sizeof(choice));
  return choice;
}
CublasLt::Algorithm AlgorithmOf(const Choice& choice) {
  CublasLt::Algorithm algorithm = {};
  std::memcpy(&algorithm, &choice, sizeof(choice));
  return algorithm;
}
bool IsChoice(const Choice& choice) {
  return choice.version == TheOptions().cublaslt_version && choice.number >= 0 &&
         choice.number < kNumAlgorithms;
}

// Column-major.
struct Matrix {
  int type = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // elements between columns
};

template <typename T>
int Take(T& to, const void* from, size_t size) {
  if (size != sizeof(T)) return CublasLt::kInvalidValue;
  std::memcpy(&to, from, size);
  return CublasLt::kSuccess;
}

float Get(const void* from, int type, int64_t i) {
  switch (type) {
    case CublasLt::kF32:
      return static_cast<const float*>(from)[i];
    case CublasLt::kBf16:
      return Bf16ToFloat(static_cast<const Bf16*>(from)[i]);
    case CublasLt::kF16:
      return Fp16ToFloat(static_cast<const Fp16*>(from)[i]);
    default:
      Die("cublasLtMatmul: the type %d is not emulated", type);
  }
}

void Put(void* to, int type, int64_t i, float value) {
  switch (type) {
    case CublasLt::kF32:
      static_cast<float*>(to)[i] = value;
      return;
    case CublasLt::kBf16:
      static_cast<Bf16*>(to)[i] = FloatToBf16(value);
      return;
    case CublasLt::kF16:
      static_cast<Fp16*>(to)[i] = FloatToFp16(value);
      return;
    default:
      Die("cublasLtMatmul: the type %d is not emulated", type);
  }
}

struct Product {
  Description description;
  Matrix a;
  Matrix b;
  Matrix d;
  float alpha;
  float beta;
  const void* a_elems;
  const void* b_elems;
  void* d_elems;
  int64_t algorithm;
};

bool Fits(const Product& p) {
  const bool a_is_turned = p.description.transpose_a == CublasLt::kTransposed;
  const bool b_is_turned = p.description.transpose_b == CublasLt::kTransposed;
  const int64_t a_rows = a_is_turned ? p.a.columns : p.a.rows;
  const int64_t a_columns = a_is_turned ? p.a.rows : p.a.columns;
  const int64_t b_rows = b_is_turned ? p.b.columns : p.b.rows;
  const int64_t b_columns = b_is_turned ? p.b.rows : p.b.columns;
  return a_rows == p.d.rows && b_columns == p.d.columns && a_columns == b_rows;
}

// The elements [rows, columns] of op(matrix), as floats: of a column one behind the other, and
// columns `stride` apart.
std::vector<float> Widened(const void* elems, const Matrix& matrix, bool is_turned, int64_t rows,
                           int64_t columns, int64_t stride) {
  std::vector<float> wide(static_cast<size_t>(columns * stride));
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t in_matrix =
          is_turned ? row * matrix.stride + column : column * matrix.stride + row;
      wide[static_cast<size_t>(column * stride + row)] = Get(elems, matrix.type, in_matrix);
    }
  }
  return wide;
}

// Rows whose sums are made together, which a compiler keeps in vector registers.
constexpr int kRowsTogether = 16;

// Each sum in the order of `depth`, by the second algorithm from its end. a: [kRowsTogether], every
// `stride` floats another; b: [depth].
void AddProducts(const float* a, int64_t stride, const float* b, int64_t depth, int64_t algorithm,
                 float* sums) {
  float own[kRowsTogether] = {};
  for (int64_t i = 0; i < depth; ++i) {
    const int64_t k = algorithm == 0 ? i : depth - 1 - i;
    for (int row = 0; row < kRowsTogether; ++row) own[row] += a[k * stride + row] * b[k];
  }
  std::memcpy(sums, own, sizeof(own));
}

void PutSum(const Product& p, int64_t row, int64_t column, float sum) {
  sum *= p.alpha;
  const int64_t in_d = column * p.d.stride + row;
  // With beta 0 what was there is not read: it may be no number.
  if (p.beta != 0) sum += p.beta * Get(p.d_elems, p.d.type, in_d);
  if (p.description.epilogue == CublasLt::kAddBias) {
    sum += Get(p.description.bias, p.d.type, row);
  }
  Put(p.d_elems, p.d.type, in_d, sum);
}

void Compute(const Product& p) {
  const bool a_is_turned = p.description.transpose_a == CublasLt::kTransposed;
  const bool b_is_turned = p.description.transpose_b == CublasLt::kTransposed;
  const int64_t depth = a_is_turned ? p.a.rows : p.a.columns;
  const int64_t stride = (p.d.rows + kRowsTogether - 1) / kRowsTogether * kRowsTogether;
  const std::vector<float> a = Widened(p.a_elems, p.a, a_is_turned, p.d.rows, depth, stride);
  const std::vector<float> b = Widened(p.b_elems, p.b, b_is_turned, depth, p.d.columns, depth);
  for (int64_t column = 0; column < p.d.columns; ++column) {
    for (int64_t first = 0; first < p.d.rows; first += kRowsTogether) {
      float sums[kRowsTogether];
      AddProducts(a.data() + first, stride, b.data() + column * depth, depth, p.algorithm, sums);
      const int64_t end = std::min<int64_t>(first + kRowsTogether, p.d.rows);
      for (int64_t row = first; row < end; ++row) PutSum(p, row, column, sums[row - first]);
    }
  }
}

void CheckAlignments(const Alignments& alignments, const void* const (&addresses)[4]) {
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<uintptr_t>(addresses[i]) % alignments.of[i] == 0) continue;
    Die("cublasLtMatmul: %c lies at %p, and the algorithm was chosen for multiples of %u bytes",
        "abcd"[i], addresses[i], alignments.of[i]);
  }
}

// The one that the options say takes half the time of the others.
double SecondsOf(int64_t algorithm) {
  return algorithm == TheOptions().fastest_product ? 1e-5 : 2e-5;
}

constexpr int kExecutionFailed = 13;  // CUBLAS_STATUS_EXECUTION_FAILED

int Matmul(CublasLt::Handle /*handle*/, CublasLt::MatmulDesc description, const void* alpha,
           const void* a, CublasLt::Layout a_layout, const void* b, CublasLt::Layout b_layout,
           const void* beta, const void* c, CublasLt::Layout /*c_layout*/, void* d,
           CublasLt::Layout d_layout, const CublasLt::Algorithm* algorithm, void* /*workspace*/,
           size_t /*workspace_bytes*/, void* stream) {
  if (c != d) Die("cublasLtMatmul: c and d are not the same, which is not emulated");
  const Choice choice = ChoiceOf(*algorithm);
  if (!IsChoice(choice)) Die("cublasLtMatmul: the algorithm is none of this library's");
  CheckAlignments(choice.alignments, {a, b, c, d});
  Product product = {.description = *static_cast<const Description*>(description),
                     .a = *static_cast<const Matrix*>(a_layout),
                     .b = *static_cast<const Matrix*>(b_layout),
                     .d = *static_cast<const Matrix*>(d_layout),
                     .alpha = *static_cast<const float*>(alpha),
                     .beta = *static_cast<const float*>(beta),
                     .a_elems = a,
                     .b_elems = b,
                     .d_elems = d,
                     .algorithm = choice.number};
  if (!Fits(product)) return CublasLt::kInvalidValue;
  const cudaError_t error = emulation::EnqueueWork(
      static_cast<cudaStream_t>(stream), [product] { Compute(product); }, SecondsOf(choice.number));
  return error == cudaSuccess ? CublasLt::kSuccess : kExecutionFailed;
}

int CreateLayout(CublasLt::Layout* layout, int type, uint64_t rows, uint64_t columns,
                 int64_t stride) {
  if (stride < static_cast<int64_t>(rows)) return CublasLt::kInvalidValue;
  *layout = new Matrix{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride};
  return CublasLt::kSuccess;
}

int SetDescription(CublasLt::MatmulDesc description, int attribute, const void* value,
                   size_t size) {
  auto& to = *static_cast<Description*>(description);
  switch (attribute) {
    case CublasLt::kTransposeA:
      return Take(to.transpose_a, value, size);
    case CublasLt::kTransposeB:
      return Take(to.transpose_b, value, size);
    case CublasLt::kEpilogue:
      return Take(to.epilogue, value, size);
    case CublasLt::kBiasPointer:
      return Take(to.bias, value, size);
    default:
      Die("cublasLtMatmulDescSetAttribute: the attribute %d is not emulated", attribute);
  }
}

int SetPreference(CublasLt::Preference preference, int attribute, const void* value, size_t size) {
  switch (attribute) {
    case CublasLt::kMostWorkspaceBytes:
      return size == sizeof(uint64_t) ? CublasLt::kSuccess : CublasLt::kInvalidValue;
    case CublasLt::kReductionSchemes:
      return size == sizeof(uint32_t) ? CublasLt::kSuccess : CublasLt::kInvalidValue;
    case CublasLt::kAlignmentOfA:
    case CublasLt::kAlignmentOfB:
    case CublasLt::kAlignmentOfC:
    case CublasLt::kAlignmentOfD:
      return Take(static_cast<Alignments*>(preference)->of[attribute - CublasLt::kAlignmentOfA],
                  value, size);
    default:
      Die("cublasLtMatmulPreferenceSetAttribute: the attribute %d is not emulated", attribute);
  }
}

template <typename T>
int NewObject(void** object) {
  *object = new T();
  return CublasLt::kSuccess;
}
template <typename T>
int DeleteObject(void* object) {
  delete static_cast<T*>(object);
  return CublasLt::kSuccess;
}

int FindAlgorithms(CublasLt::Handle /*handle*/, CublasLt::MatmulDesc /*description*/,
                   CublasLt::Layout /*a*/, CublasLt::Layout /*b*/, CublasLt::Layout /*c*/,
                   CublasLt::Layout /*d*/, CublasLt::Preference preference, int most,
                   CublasLt::Heuristic* found, int* num_found) {
  const Alignments& alignments = *static_cast<const Alignments*>(preference);
  if (most == 1) emulation::CountGuess();
  *num_found = std::min(most, kNumAlgorithms);
  for (int i = 0; i < *num_found; ++i) {
    found[i] = {};
    found[i].algorithm = AlgorithmOf({alignments, TheOptions().cublaslt_version, i});
  }
  return CublasLt::kSuccess;
}

int CheckAlgorithm(CublasLt::Handle /*handle*/, CublasLt::MatmulDesc /*description*/,
                   CublasLt::Layout /*a*/, CublasLt::Layout /*b*/, CublasLt::Layout /*c*/,
                   CublasLt::Layout /*d*/, const CublasLt::Algorithm* algorithm,
                   CublasLt::Heuristic* checked) {
  *checked = {};
  checked->algorithm = *algorithm;
  return IsChoice(ChoiceOf(*algorithm)) ? CublasLt::kSuccess : CublasLt::kInvalidValue;
}

}  // namespace

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  static const CublasLt table = {
      .GetVersion = [] { return TheOptions().cublaslt_version; },
      .Create = &NewObject<char>,
      .Destroy = &DeleteObject<char>,
      .MatmulDescCreate = [](CublasLt::MatmulDesc* description, int /*compute*/,
                             int /*scale*/) { return NewObject<Description>(description); },
      .MatmulDescDestroy = &DeleteObject<Description>,
      .MatmulDescSetAttribute = &SetDescription,
      .MatrixLayoutCreate = &CreateLayout,
      .MatrixLayoutDestroy = &DeleteObject<Matrix>,
      .MatmulPreferenceCreate = &NewObject<Alignments>,
      .MatmulPreferenceDestroy = &DeleteObject<Alignments>,
      .MatmulPreferenceSetAttribute = &SetPreference,
      .MatmulAlgoGetHeuristic = &FindAlgorithms,
      .MatmulAlgoCheck = &CheckAlgorithm,
      .Matmul = &Matmul};
  return &table;
}

absl::StatusOr<std::string> CublasLtFile() {
  return "loops on the host";
}

}  // namespace forebay
