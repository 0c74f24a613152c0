// The algorithms that were chosen for matrix products on a GPU, so that they are used again: others
// may add in another order, and then results differ in their last bits.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/device/cublaslt.h"
#include "forebay/device/gpu_matmul.h"

namespace forebay {

struct MatmulAlgorithms {
  // They are good for cards of this kind with this version of cuBLASLt, and for nothing else.
  std::string card;
  std::string library;
  std::map<MatmulProduct, CublasLt::Algorithm> chosen;
  // Whether other products are measured. If not, they are computed by the library's first guess.
  // No part of what is kept.
  bool may_measure = true;

  bool operator==(const MatmulAlgorithms&) const = default;
};

// docs/formats.md, "Algorithms of products". With a digest of the rest.
Json ToJson(const MatmulAlgorithms& algorithms);
// CorruptError names `source` and what is wrong.
absl::StatusOr<MatmulAlgorithms> AlgorithmsFrom(const Json& json, std::string_view source);
// 32 hexadecimal digits: the same where algorithms, card and library are.
std::string DigestOf(const MatmulAlgorithms& algorithms);

}  // namespace forebay
