#include "forebay/device/matmul_algorithms.h"

#include <optional>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/base/json_fields.h"

namespace forebay {
namespace {

constexpr int kFormat = 1;
constexpr int64_t kMostSize = int64_t{1} << 48;
constexpr size_t kNumWords = std::size(CublasLt::Algorithm{}.data);
constexpr size_t kWordDigits = 16;

std::string HexOf(const CublasLt::Algorithm& algorithm) {
  std::string hex;
  for (const uint64_t word : algorithm.data) hex += fmt::format("{:016x}", word);
  return hex;
}

std::optional<CublasLt::Algorithm> AlgorithmOf(const std::string& hex) {
  if (hex.size() != kNumWords * kWordDigits ||
      hex.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return std::nullopt;
  }
  CublasLt::Algorithm algorithm = {};
  for (size_t i = 0; i < kNumWords; ++i) {
    algorithm.data[i] = std::stoull(hex.substr(i * kWordDigits, kWordDigits), nullptr, 16);
  }
  return algorithm;
}

// All of a product, as numbers in this order.
std::vector<int64_t> NumbersOf(const MatmulProduct& product) {
  const MatmulShape& shape = product.shape;
  return {shape.m,
          shape.n,
          shape.k,
          shape.transpose_a,
          shape.transpose_b,
          shape.lda,
          shape.ldb,
          shape.ldd,
          static_cast<int64_t>(shape.inputs),
          static_cast<int64_t>(shape.output),
          shape.tf32,
          product.a_alignment,
          product.b_alignment,
          product.d_alignment,
          product.bias_alignment};
}

std::optional<MatmulProduct> ProductFrom(const Json& json) {
  const size_t num_numbers = NumbersOf({}).size();
  if (!json.is_array() || json.size() != num_numbers) return std::nullopt;
  std::vector<int64_t> numbers;
  for (const Json& number : json) {
    if (!IsIntegerIn(number, 0, kMostSize)) return std::nullopt;
    numbers.push_back(number.get<int64_t>());
  }
  MatmulProduct product;
  product.shape = {.m = numbers[0],
                   .n = numbers[1],
                   .k = numbers[2],
                   .transpose_a = numbers[3] != 0,
                   .transpose_b = numbers[4] != 0,
                   .lda = numbers[5],
                   .ldb = numbers[6],
                   .ldd = numbers[7],
                   .inputs = static_cast<DType>(numbers[8]),
                   .output = static_cast<DType>(numbers[9]),
                   .tf32 = numbers[10] != 0};
  product.a_alignment = static_cast<uint32_t>(numbers[11]);
  product.b_alignment = static_cast<uint32_t>(numbers[12]);
  product.d_alignment = static_cast<uint32_t>(numbers[13]);
  product.bias_alignment = static_cast<uint32_t>(numbers[14]);
  // Nothing that was cut off, or is no type.
  if (NumbersOf(product) != numbers || numbers[8] > 2 || numbers[9] > 2) return std::nullopt;
  return product;
}

Json Contents(const MatmulAlgorithms& algorithms) {
  Json products = Json::array();
  for (const auto& [product, algorithm] : algorithms.chosen) {
    products.push_back({{"product", NumbersOf(product)}, {"algorithm", HexOf(algorithm)}});
  }
  return {{"format", kFormat},
          {"card", algorithms.card},
          {"cublaslt", algorithms.library},
          {"products", std::move(products)}};
}

}  // namespace

std::string DigestOf(const MatmulAlgorithms& algorithms) {
  return Xxh3_128Hex(Contents(algorithms).dump());
}

Json ToJson(const MatmulAlgorithms& algorithms) {
  Json json = Contents(algorithms);
  json["digest"] = DigestOf(algorithms);
  return json;
}

absl::StatusOr<MatmulAlgorithms> AlgorithmsFrom(const Json& json, std::string_view source) {
  const auto damaged = [&](std::string_view what) {
    return CorruptError(fmt::format("'{}' is damaged: {}", source, what));
  };
  const auto text = [&](const char* name) {
    return json.contains(name) && json[name].is_string() ? json[name].get<std::string>() : "";
  };
  if (!json.is_object() || !json.contains("format") || json["format"] != kFormat) {
    return damaged(fmt::format("'format' is not {}", kFormat));
  }
  MatmulAlgorithms algorithms = {.card = text("card"), .library = text("cublaslt"), .chosen = {}};
  if (!json.contains("products") || !json["products"].is_array()) {
    return damaged("'products' is no list");
  }
  for (const Json& entry : json["products"]) {
    const bool is_entry = entry.is_object() && entry.contains("product") &&
                          entry.contains("algorithm") && entry["algorithm"].is_string();
    const auto product = is_entry ? ProductFrom(entry["product"]) : std::nullopt;
    const auto algorithm = is_entry ? AlgorithmOf(entry["algorithm"]) : std::nullopt;
    if (!product.has_value() || !algorithm.has_value()) {
      return damaged(fmt::format("'products' has an entry that is none: {}", entry.dump()));
    }
    algorithms.chosen[*product] = *algorithm;
  }
  if (text("digest") != DigestOf(algorithms)) return damaged("its digest is of other contents");
  return algorithms;
}

}  // namespace forebay
