// Describes products of every kind to the cuBLASLt of this machine, without a GPU, and prints the
// library's version, how many there were, and its file; or the first call that it refused, with
// exit code 1 (wheels_test.py).
#include <cstdio>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/device/gpu_matmul_plan.h"

namespace forebay {
namespace {

absl::StatusOr<int> DescribeAll(const CublasLt& library) {
  alignas(16) static std::byte bias[32];
  int num_products = 0;
  for (const DType inputs : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (int bits = 0; bits < 64; ++bits) {
      const auto has = [&](int bit) { return (bits >> bit & 1) != 0; };
      // Rows without gaps and with; sizes and addresses that are aligned, and those that are not.
      const int64_t odd = has(4) ? 1 : 0;
      const MatmulShape shape = {.m = 64 + odd,
                                 .n = 128 + odd,
                                 .k = 96 + odd,
                                 .transpose_a = has(0),
                                 .transpose_b = has(1),
                                 .ldd = has(3) ? 256 : 0,
                                 .inputs = inputs,
                                 .output = has(2) ? DType::kF32 : inputs,
                                 .tf32 = inputs == DType::kF32 && has(3)};
      const uint32_t alignment = has(4) ? static_cast<uint32_t>(SizeOf(inputs)) : 16;
      const MatmulProduct product = {.shape = shape,
                                     .a_alignment = alignment,
                                     .b_alignment = alignment,
                                     .d_alignment = alignment,
                                     .bias_alignment = has(5) ? alignment : 0};
      ProductPlan plan(&library);
      FOREBAY_RETURN_IF_ERROR(
          DescribeProduct(product, int64_t{32} << 20, bias + product.bias_alignment, plan));
      ++num_products;
    }
  }
  return num_products;
}

// An attribute of a wrong size has to be refused, or the library does not look at them.
bool RefusesAWrongSize(const CublasLt& library) {
  ProductPlan plan(&library);
  const uint8_t value = 0;
  return library.MatmulDescCreate(&plan.desc, CublasLt::kComputeF32, CublasLt::kF32) ==
             CublasLt::kSuccess &&
         library.MatmulDescSetAttribute(plan.desc, CublasLt::kTransposeA, &value, sizeof(value)) ==
             CublasLt::kInvalidValue;
}

}  // namespace
}  // namespace forebay

int main() {
  const auto library = forebay::LoadCublasLt();
  const auto num_products =
      library.ok() ? forebay::DescribeAll(**library) : absl::StatusOr<int>(library.status());
  if (!num_products.ok()) {
    std::puts(forebay::MessageOf(num_products.status()).c_str());
    return 1;
  }
  if (!forebay::RefusesAWrongSize(**library)) {
    std::puts("an attribute of a wrong size was taken");
    return 1;
  }
  std::puts(fmt::format("{} {} {}", (*library)->GetVersion(), *num_products,
                        forebay::CublasLtFile().value())
                .c_str());
}
